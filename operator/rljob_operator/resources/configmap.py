"""The ConfigMap that holds a job's resolved configs and its pinned images."""

import json

from rljob_api import names
from rljob_operator.resources.inputs import Inputs, Manifest, first_config, job_labels, metadata


def config_map(inputs: Inputs) -> Manifest:
    """Return `<job>-config`: `<role>.json` per role (replicas share one) and `images.json`."""
    name = f"{inputs.job.metadata.name}-config"
    data = {f"{role}.json": first_config(inputs, role).model_dump_json(indent=1) for role in names.Role}
    images = {str(role): image for role, image in sorted(inputs.images.items())}
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata(inputs, name, job_labels(inputs.job)),
        "data": {**data, "images.json": json.dumps(images)},
    }
