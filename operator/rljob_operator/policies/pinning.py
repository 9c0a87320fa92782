"""What stays as it was when a run segment began: images, and templates that an older operator rendered
(docs/design/operator.md#s-4-4, #s-4-5).

A chart upgrade in mid-run changes no running job: images are read back from the job's own ConfigMap, and a template is
replaced only if its inputs changed. A template that this version rendered is compared in full, so that an edit by hand
is undone.
"""

import json
from collections.abc import Mapping
from typing import Any

import pydantic

import rljob_api
from rljob_api import enums, process_config
from rljob_api.resolve import ResolvedJob
from rljob_operator.model import Child, Manifest, Observed, Ref

RENDERED_BY = "rljob.dev/rendered-by"
TEMPLATE_HASH = "rljob.dev/template-hash"


def images(
    pinned: Mapping[enums.Role, str], *, settings: Mapping[enums.Role, str], job: Mapping[enums.Role, str]
) -> dict[enums.Role, str]:
    """Return the image of each role that has one: pinned ones, else what the manifest names, else the operator's."""
    return {**settings, **job, **pinned}


def template(live: Child | None, desired: Manifest, *, version: str = rljob_api.__version__) -> Manifest:
    """Return the workload that is wanted: with the template that lives if another version rendered it from the same
    inputs, else as it is, marked with this version.
    """
    if live is not None and _hash(live.manifest) == _hash(desired) and _rendered_by(live.manifest) != version:
        return _with_template(_marked(desired, _rendered_by(live.manifest)), _template(live.manifest))
    return _marked(desired, version)


def config(live: Child | None, desired: Manifest, *, version: str = rljob_api.__version__) -> Manifest:
    """Return the ConfigMap that is wanted: with the configs that live if another version resolved them from the same
    generation of the spec, else as it is, marked with this version.
    """
    if (
        live is None
        or _rendered_by(live.manifest) in ("", version)
        or _generation(live.manifest) != _generation(desired)
    ):
        return _marked(desired, version)
    return {**_marked(desired, _rendered_by(live.manifest)), "data": live.manifest["data"]}


def resolved(observed: Observed) -> ResolvedJob | None:
    """Return the configs that a run was begun with, as its ConfigMap has them; None without one that can be read."""
    child = observed.children.get(Ref("ConfigMap", f"{observed.job.metadata.name}-config"))
    data = child.manifest.get("data") if child is not None else None
    if not isinstance(data, Mapping):
        return None
    try:
        return ResolvedJob(
            coordinator=process_config.CoordinatorConfig.model_validate_json(str(data.get("coordinator.json"))),
            rollouts=(process_config.RolloutConfig.model_validate_json(str(data.get("rollout.json"))),),
            verifiers=(process_config.VerifierConfig.model_validate_json(str(data.get("verifier.json"))),),
            trainer=process_config.TrainerConfig.model_validate_json(str(data.get("trainer.json"))),
        )
    except pydantic.ValidationError:
        return None  # Another version wrote it, or another hand.


def device(observed: Observed) -> str | None:
    """Return what the trainer of a run computes on, as its ConfigMap has it; None without one that says it."""
    child = observed.children.get(Ref("ConfigMap", f"{observed.job.metadata.name}-config"))
    data = child.manifest.get("data") if child is not None else None
    text = data.get(f"{enums.Role.TRAINER}.json") if isinstance(data, Mapping) else None
    try:
        device = json.loads(str(text)).get("device")
    except (ValueError, AttributeError):
        return None  # Another hand wrote it.
    return str(device) if device in ("cpu", "cuda") else None


def _generation(manifest: Manifest) -> object:
    """Return the generation of the spec that the configs of a ConfigMap were resolved from."""
    data = manifest.get("data")
    text = data.get(f"{enums.Role.COORDINATOR}.json", "{}") if isinstance(data, Mapping) else "{}"
    return (json.loads(text).get("job") or {}).get("config_generation")


def _template(manifest: Manifest) -> Any:
    spec = manifest.get("spec")
    return spec.get("template") if isinstance(spec, Mapping) else None


def _hash(manifest: Manifest) -> str:
    metadata = (_template(manifest) or {}).get("metadata") or {}
    return str((metadata.get("annotations") or {}).get(TEMPLATE_HASH, ""))


def _rendered_by(manifest: Manifest) -> str:
    metadata = manifest.get("metadata")
    annotations = metadata.get("annotations") if isinstance(metadata, Mapping) else None
    return str((annotations or {}).get(RENDERED_BY, ""))


def _marked(manifest: Manifest, version: str) -> Manifest:
    metadata = manifest["metadata"]
    assert isinstance(metadata, Mapping), "every object has metadata"
    annotations = {**(metadata.get("annotations") or {}), RENDERED_BY: version}
    return {**manifest, "metadata": {**metadata, "annotations": annotations}}


def _with_template(manifest: Manifest, template: object) -> Manifest:
    spec = manifest["spec"]
    assert isinstance(spec, Mapping), "a workload has a spec"
    return {**manifest, "spec": {**spec, "template": template}}
