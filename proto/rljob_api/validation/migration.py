"""What other systems call our fields: for the manifest reference, and so that a refusal of an unknown key can name
ours. The data are in `migration.yaml`.
"""

import dataclasses
import enum
import functools
import importlib.resources
import re
from collections.abc import Mapping

import pydantic
import yaml


class System(enum.StrEnum):
    """Whose name it is."""

    VERL = "verl"
    PRIME_RL = "prime-rl"
    AREAL = "AReaL"
    OPENRLHF = "OpenRLHF"
    TRL = "TRL"


@dataclasses.dataclass(frozen=True, slots=True)
class ForeignField:
    """`name` in the config of `system` is our `path` below spec. `note`: where the two differ, empty if they agree."""

    path: str
    system: System
    name: str
    note: str = ""


class _Tables(pydantic.BaseModel, extra="forbid", frozen=True):
    """The file. words: of users, compared as `folded`; values: by full path, what is to be written instead of one."""

    fields: dict[str, dict[System, list[str | tuple[str, str]]]]
    words: dict[str, str]
    values: dict[str, dict[str, str]]


# Last parts that say nothing without the rest of their name.
_GENERAL = frozenset((
    "dtype", "enable", "eps", "learningrate", "len", "maxmodellen", "metric",
    "mintokens", "mode", "offload", "project", "stop",
    "stoptokenids", "temperature", "tensorparallelsize",
))  # fmt: skip


@functools.cache
def _tables() -> _Tables:
    text = importlib.resources.files(__package__).joinpath("migration.yaml").read_text(encoding="utf-8")
    return _Tables.model_validate(yaml.safe_load(text))


@functools.cache
def foreign_fields() -> tuple[ForeignField, ...]:
    """Return every name of a field of ours in another system, in the order of the file."""
    return tuple(
        ForeignField(path, system, *((name,) if isinstance(name, str) else name))
        for path, by_system in _tables().fields.items()
        for system, names in by_system.items()
        for name in names
    )


def folded(key: str) -> str:
    """Return a key without case, dashes, dots and underscores."""
    return re.sub(r"[-_.]", "", key).lower()


def our_path(key: str) -> str | None:
    """Return our path below spec for another system's key, or None."""
    return _paths().get(folded(key))


def value_hint(path: str, value: object) -> str | None:
    """Return what to write instead of another system's value at our full path, or None."""
    return _tables().values.get(path, {}).get(value) if isinstance(value, str) else None


@functools.cache
def _paths() -> Mapping[str, str]:
    """Return our path by the last part of a foreign name, where that has one meaning; words come first."""
    paths: dict[str, set[str]] = {}
    for field in foreign_fields():
        paths.setdefault(folded(field.name.rsplit(".", 1)[-1]), set()).add(field.path)
    derived = {
        key: candidates.pop() for key, candidates in paths.items() if len(candidates) == 1 and key not in _GENERAL
    }
    return derived | {folded(word): path for word, path in _tables().words.items()}


# By path below spec.
UNSUPPORTED: Mapping[str, str] = {
    "model.lora.dropout": "ratios compare two forwards of the same weights, so nothing is dropped",
    "observability.traces": "a run shows logs and metrics",
    "teacher.pod": "a teacher is in the trainer's processes, with the resources of trainer.pod",
    "teacher.replicas": "a teacher is in each of the trainer's processes",
    "teacher.url": "teacher.model is loaded by the trainer: a hub id, a folder, or one of an object store",
    "trainer.masterWeightsDtype": "master weights are float32",
}

# By path below spec: what is said outside of the manifest, and where.
ELSEWHERE: Mapping[str, str] = {
    "queue": "the label kueue.x-k8s.io/queue-name of the job names its queue",
    "gang": "jobs.gangScheduler of the operator's chart places all pods of a trainer at once",
}
