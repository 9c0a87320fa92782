"""The ConfigMap with a job's resolved configs and pinned images, and the hash of what a pod template is made from.

Pods are rolled when the hash changes, never because another version renders them differently. Fields that a running job
takes over by itself are not part of it: they change the ConfigMap alone. Fields at their default are not either, so
that a new version of the schema rolls nothing.
"""

import dataclasses
import hashlib
import json
from collections.abc import Sequence

from rljob_api import enums, suites
from rljob_api.manifest import base
from rljob_api.manifest.job import LIVE
from rljob_operator.model import IMAGES_KEY, RUNTIME_KEY, TRAINER_TEMPLATE_KEY
from rljob_operator.resources.inputs import Inputs, Manifest, first_config, job_labels, metadata, placed_as


def config_map(inputs: Inputs, *, trainer_template: object) -> Manifest:
    """Return `<job>-config`: `<role>.json` per program (replicas share one), `images.json`, the pod template of the
    trainer's attempts and, with a runtime, that.
    """
    name = f"{inputs.job.metadata.name}-config"
    roles = suites.roles(inputs.job.spec)
    programs = suites.programs(inputs.job.spec)
    data = {f"{role}.json": first_config(inputs, role).model_dump_json(indent=1) for role in programs}
    images = {str(role): image for role, image in sorted(inputs.images.items()) if role in roles}
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata(inputs, name, job_labels(inputs.job)),
        "data": {
            **data,
            IMAGES_KEY: json.dumps(images),
            TRAINER_TEMPLATE_KEY: json.dumps(trainer_template),
            **_runtime(inputs),
        },
    }


def _runtime(inputs: Inputs) -> dict[str, str]:
    """Return the runtime that the configs were resolved with: its object may be edited or deleted while a run is under
    way.
    """
    if inputs.runtime is None:
        return {}
    return {RUNTIME_KEY: inputs.runtime.model_dump_json(by_alias=True, exclude={"status"})}


# Nothing of a pod depends on these.
_NOT_IN_TEMPLATES = (*LIVE, "managedBy")
_LENGTH = 16


def template_hash(inputs: Inputs, role: enums.Role) -> str:
    """Return 16 hexadecimal digits of the role's own inputs; other roles' pods do not count."""
    spec = base.written(inputs.job.spec)
    own = {role, placed_as(inputs.job.spec, role)}
    others = (f"{other}.pod" for other in enums.Role if other not in own)
    for path in (*_NOT_IN_TEMPLATES, *others):
        _drop(spec, path.split("."))
    parts = {
        "spec": {key: value for key, value in spec.items() if value != {}},
        "image": inputs.images[role],
        "template": inputs.template(role) or None,
        **_placed(inputs, role),
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:_LENGTH]


def _placed(inputs: Inputs, role: enums.Role) -> dict[str, object]:
    """Return what a queue's admission and a gang add to the pods; nothing where there is neither."""
    placement, settings = inputs.placements.get(role), inputs.settings
    placed: dict[str, object] = {} if placement is None else {"placement": dataclasses.asdict(placement)}
    if role is enums.Role.TRAINER and settings.gang_scheduler != "none":
        placed["gang"] = [settings.gang_scheduler, settings.gang_scheduler_name]
    return placed


def _drop(section: dict[str, object], path: Sequence[str]) -> None:
    for key in path[:-1]:
        below = section.get(key)
        if not isinstance(below, dict):
            return
        section = below
    section.pop(path[-1], None)
