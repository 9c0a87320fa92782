"""What stays as it was when a run segment began: images, configs and pod templates that another version of the operator
made (docs/design/operator.md#s-4-4, #s-4-5).

A chart upgrade in mid-run changes no running job. Images are read back from the job's own ConfigMap. Configs stay in
the schema of those images, which refuse a field that they do not know: what a running job takes over by itself is
written into them, whatever else this version resolves. A pod template is replaced only if its inputs changed; the
trainer's is kept in the ConfigMap, since each attempt has a Job of its own. What this version made itself is compared
in full, so that an edit by hand is undone.
"""

import copy
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pydantic

import rljob_api
from rljob_api import enums, process_config
from rljob_api.manifest.job import LIVE
from rljob_api.resolve import ResolvedJob
from rljob_operator.model import ATTEMPT_LABEL, TEMPLATE_HASH, TRAINER_TEMPLATE_KEY, Child, Manifest, Observed
from rljob_operator.resources import gangs

RENDERED_BY = "rljob.dev/rendered-by"
_CONFIGS = tuple(f"{role}.json" for role in enums.Role)


def images(
    pinned: Mapping[enums.Role, str], *, settings: Mapping[enums.Role, str], job: Mapping[enums.Role, str]
) -> dict[enums.Role, str]:
    """Return the image of each role that has one: pinned ones, else what the manifest names, else the operator's."""
    return {**settings, **job, **pinned}


def template(
    live: Child | None,
    desired: Manifest,
    *,
    handed_on: Callable[[Mapping[str, str]], Mapping[str, str]] = lambda pairs: {},  # noqa: ARG005  # none
    version: str = rljob_api.__version__,
) -> Manifest:
    """Return the workload that is desired: with the template that lives if another version rendered it from the same
    inputs, else as it is, marked with this version.

    handed_on: of a template's labels or annotations, those that come from the job's own. They stay as they are in a
    template with the same inputs: another team or cost center restarts no pod.
    """
    if live is None or _hash(live.manifest) != _hash(desired):
        return _marked(desired, version)
    if _rendered_by(live.manifest) != version:
        return _with_template(_marked(desired, _rendered_by(live.manifest)), _template(live.manifest))
    return _with_template(_marked(desired, version), _kept(_template(live.manifest), _template(desired), handed_on))


def _kept(live: Any, desired: Any, handed_on: Callable[[Mapping[str, str]], Mapping[str, str]]) -> Any:
    """Return the template that is desired, with what the live one has of the labels that are handed on."""
    metadata = dict(desired["metadata"])
    for key in ("labels", "annotations"):
        ours, theirs = metadata.get(key) or {}, (live.get("metadata") or {}).get(key) or {}
        without = {name: value for name, value in ours.items() if name not in handed_on(ours)}
        if both := {**handed_on(theirs), **without}:
            metadata[key] = both
    return {**desired, "metadata": metadata}


def trainer_job(config: Child | None, desired: Manifest, *, version: str = rljob_api.__version__) -> Manifest:
    """Return the Job of an attempt: with the template that is kept in a ConfigMap, if another version rendered it from
    the same inputs, and the variables of this one.
    """
    if config is None or _rendered_by(config.manifest) in ("", version):
        return desired
    pinned = _read(_data(config.manifest).get(TRAINER_TEMPLATE_KEY, ""))
    if not pinned or _hash({"spec": {"template": pinned}}) != _hash(desired):
        return desired
    template = _template(desired)
    # The attempt is in the labels alone; other labels may be another version's.
    pinned["metadata"]["labels"][ATTEMPT_LABEL] = template["metadata"]["labels"][ATTEMPT_LABEL]
    gangs.with_group_of(pinned, template)
    variables = {container["name"]: container["env"] for container in _containers(template) if "env" in container}
    for container in _containers(pinned):
        container |= {"env": variables[container["name"]]} if container["name"] in variables else {}
    return _with_template(desired, pinned)


def config(
    live: Child | None, desired: Manifest, *, written: Mapping[str, Any], version: str = rljob_api.__version__
) -> Manifest:
    """Return the ConfigMap that is desired: with the configs that live if another version resolved them, and in them
    what a running job takes over; else as it is, marked with this version.

    written: the spec of the manifest without defaults, by YAML keys.
    """
    if live is None or _rendered_by(live.manifest) in ("", version):
        return _marked(desired, version)
    begun, fresh = _data(live.manifest), _data(desired)
    documents = {key: _with_live_settings(begun[key], fresh[key], written) for key in _CONFIGS if key in begun}
    return {**_marked(desired, _rendered_by(live.manifest)), "data": {**begun, **documents}}


def _with_live_settings(begun: str, desired: str, written: Mapping[str, Any]) -> str:
    """Return a role's config as another version wrote it, with the generation of the spec and what is taken over."""
    config, fresh = _read(begun), json.loads(desired)
    if "config_generation" not in (config.get("job") or {}):
        return begun  # Another hand wrote it.
    taken = copy.deepcopy(config)
    taken["job"]["config_generation"] = fresh["job"]["config_generation"]
    # A verifier's config has sections of the manifest, the others have it whole.
    old, new = taken.get("spec", taken), fresh.get("spec", fresh)
    for path in LIVE:
        *parents, leaf = path.split(".")
        above, value = _below(old, parents), _below(new, parents)
        if isinstance(above, dict) and isinstance(value, dict) and leaf in above and leaf in value:
            above[leaf] = _taken_over(above[leaf], value[leaf], _below(written, path.split(".")))
    return begun if taken == config else json.dumps(taken, indent=1)


def _below(section: Any, path: Sequence[str]) -> Any:
    for key in path:
        section = section.get(key) if isinstance(section, Mapping) else None
    return section


def _taken_over(begun: Any, desired: Any, written: Any) -> Any:
    """Return a value of the manifest in the fields that another version knows: those which it wrote, or those which
    are written in the manifest where it wrote none.
    """
    if isinstance(begun, Mapping) and isinstance(desired, Mapping):
        return {
            key: _taken_over(value, desired[key], _below(written, [key])) if key in desired else value
            for key, value in begun.items()
        }
    return written if isinstance(desired, (Mapping, list)) and written is not None else desired


def resolved(observed: Observed) -> ResolvedJob | None:
    """Return the configs that a run was begun with, as its ConfigMap has them; None without one that can be read."""
    child = observed.children.get(observed.config_ref)
    data = _data(child.manifest) if child is not None else {}
    try:
        return ResolvedJob(
            coordinator=process_config.CoordinatorConfig.model_validate_json(str(data.get("coordinator.json"))),
            rollouts=(process_config.RolloutConfig.model_validate_json(str(data.get("rollout.json"))),),
            verifiers=(process_config.VerifierConfig.model_validate_json(str(data.get("verifier.json"))),),
            trainer=process_config.TrainerConfig.model_validate_json(str(data.get("trainer.json"))),
            judge=process_config.JudgeConfig.model_validate_json(judge) if (judge := data.get("judge.json")) else None,
            environments=tuple(
                process_config.EnvironmentConfig.model_validate_json(text)
                for text in [data.get("environment.json")]
                if text
            ),
        )
    except pydantic.ValidationError:
        return None  # Another version wrote it, or another hand.


def device(observed: Observed) -> str | None:
    """Return what the trainer of a run computes on, as its ConfigMap has it; None without one that says it."""
    child = observed.children.get(observed.config_ref)
    device = _read(_data(child.manifest).get(f"{enums.Role.TRAINER}.json", "") if child else "").get("device")
    return str(device) if device in ("cpu", "cuda") else None


def _read(text: str) -> dict[str, Any]:
    """Return a JSON object; an empty one for what another hand wrote."""
    try:
        content = json.loads(text)
    except ValueError:
        return {}
    return content if isinstance(content, dict) else {}


def _data(manifest: Manifest) -> Mapping[str, str]:
    data = manifest.get("data")
    return data if isinstance(data, Mapping) else {}


def _containers(template: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [*template["spec"].get("initContainers", ()), *template["spec"]["containers"]]


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
