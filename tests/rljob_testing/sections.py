"""Sections, specs and configs for tests: the defaults plus changes.

Changes of a spec are by the name of a field where it is the only one of that name (`group_size=2`), by its path in the
manifest where it is not (`{"algorithm.epochs": 2}`). A value may be a section, None by name is no change;
a float stands for a decimal.
"""

import collections
import functools
import json
import pathlib
from collections.abc import Mapping
from typing import Any, TypeVar, get_args

from rljob_api import placement, process_config, resolve
from rljob_api.manifest.base import Decimal, Section
from rljob_api.manifest.job import JobSpec, Metadata, RLJob
from rljob_api.validation import fields

SectionT = TypeVar("SectionT", bound=Section)
SpecConfigT = TypeVar("SpecConfigT", bound=process_config.SpecConfig)
ConfigT = TypeVar("ConfigT", bound=process_config.ProcessConfig)

# The smallest job: a row of 64 tokens, two groups of two.
SMALL: Mapping[str, object] = {
    "maxSteps": 10,
    "seed": 7,
    "model.name": "tiny",
    "model.dtype": "float32",
    "data.train": [{"name": "train", "path": "train.jsonl", "maxPromptTokens": 56}],
    "data.filterGroups.enabled": False,
    "algorithm.groupSize": 2,
    "algorithm.promptsPerStep": 2,
    "rollout.sampling.maxTokens": 8,
    "rollout.engine.maxModelLen": 64,
    "verifier.rewards": [{"name": "right", "type": "exact"}],
    "trainer.dtype": "float32",
    "trainer.maxTokensPerMicroBatch": 64,
    "trainer.deepspeed.zeroStage": 0,
    "observability.trajectoryDump": "None",
    "device": "cpu",
}


def section(kind: type[SectionT], **changes: Any) -> SectionT:
    """Return a section with other values than its defaults; numbers stand for decimal strings."""
    values = {name: _value(kind.model_fields[name].annotation, value) for name, value in changes.items()}
    return kind.model_validate(values, by_name=True)


def _value(annotation: object, value: object) -> object:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if is_number and (annotation is Decimal or Decimal in get_args(annotation)):
        return Decimal(value)  # type: ignore[arg-type]
    if isinstance(value, tuple):
        return tuple(Decimal(item) if isinstance(item, float) else item for item in value)
    return value


def make_spec(changes: Mapping[str, object] | None = None, **by_name: object) -> JobSpec:
    """Return the small job's spec with changes. Its rules are not asked."""
    document: dict[str, Any] = {}
    named = {_path_of(name): value for name, value in by_name.items() if value is not None}
    for path, value in {**SMALL, **(changes or {}), **named}.items():
        *parents, last = path.split(".")
        functools.reduce(lambda node, key: node.setdefault(key, {}), parents, document)[last] = _text(value)
    return JobSpec.model_validate_json(json.dumps(document, default=_content))


def changed(spec: JobSpec, changes: Mapping[str, object] | None = None, **by_name: object) -> JobSpec:
    """Return a spec with other values; nothing that was derived from them follows."""
    document = spec.model_dump(mode="json")
    for path, value in {**(changes or {}), **{_path_of(name): value for name, value in by_name.items()}}.items():
        *parents, last = path.split(".")
        functools.reduce(lambda node, key: node[key], parents, document)[last] = _text(value)
    return JobSpec.model_validate_json(json.dumps(document, default=_content))


def with_spec(config: SpecConfigT, changes: Mapping[str, object] | None = None, **by_name: object) -> SpecConfigT:
    """Return a config with other values in its spec; nothing that was derived from them follows."""
    return config.model_copy(update={"spec": changed(config.spec, changes, **by_name)})


def make_configs(
    folder: pathlib.Path, changes: Mapping[str, object] | None = None, **by_name: object
) -> resolve.ResolvedJob:
    """Return the configs of the small job on this machine's CPU, its data and state in `folder`; all ports are 0."""
    head = {"apiVersion": "rljob.dev/v1alpha1", "kind": "RLJob", "metadata": Metadata(name="job")}
    job = RLJob.model_validate({**head, "spec": make_spec(changes, **by_name)})
    place = placement.local_placement(
        job,
        uid="uid",
        run_dir=str(folder),
        base_dir=str(folder),
        cache_dir=str(folder / "cache"),
        ports=[0] * placement.num_local_ports(job),
        num_cores=2,
    )
    return resolve.configs(job, place)


def make_config(
    kind: type[ConfigT], folder: pathlib.Path, changes: Mapping[str, object] | None = None, **by_name: object
) -> ConfigT:
    """Return the config of one process of the small job; `by_name` also takes fields of the config itself."""
    own = {name: value for name, value in by_name.items() if name in kind.model_fields}
    resolved = make_configs(folder, changes, **{name: by_name[name] for name in by_name.keys() - own})
    config = next(config for config in resolved.configs if isinstance(config, kind))
    return config.model_copy(update=own)


def _text(value: object) -> object:
    return str(value) if isinstance(value, float) else value


def _content(value: object) -> object:
    if isinstance(value, Section):
        return value.model_dump(mode="json", exclude_unset=True)
    raise TypeError(f"{value!r} is no value of a manifest")


@functools.cache
def _paths() -> Mapping[str, list[str]]:
    found = collections.defaultdict(list)
    for path, _ in fields.all_paths(JobSpec):
        if "[]" not in path and ".pod." not in path:
            parent = fields.model_at(JobSpec, path.split(".")[:-1])
            assert parent is not None, path
            found[fields.attribute(parent, path.rpartition(".")[2])].append(path)
    return found


def _path_of(name: str) -> str:
    paths = _paths().get(name, [])
    if len(paths) != 1:
        raise ValueError(f"{name} is the name of {' and '.join(paths) or 'no field'}: name one by its path")
    return paths[0]
