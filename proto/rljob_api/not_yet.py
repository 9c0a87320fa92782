"""What the schema already has and no process serves yet: one table, and a refusal for each such value."""

import dataclasses
from collections.abc import Callable, Iterator

from rljob_api import fields, sentences
from rljob_api.job import JobSpec


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Unserved:
    """One path below spec, which of its values are served, and what works instead."""

    path: str
    served: Callable[[object], bool]
    works: str


def _unset(value: object) -> bool:
    return value is None


def _empty(value: object) -> bool:
    return not value


def _among(*names: str | None) -> Callable[[object], bool]:
    return lambda value: value in names


NOT_YET: tuple[Unserved, ...] = (
    Unserved(path="queue", served=_unset, works="start without a queue"),
    Unserved(path="gang", served=_among(None, "none"), works="none"),
    Unserved(path="model.lora", served=_unset, works="training all weights"),
    Unserved(path="observability.traces", served=_empty, works="logs and metrics"),
)


def problems(spec: JobSpec) -> list[str]:
    """Return a sentence for every value that was written and is not served yet."""
    return [sentence for row in NOT_YET for sentence in _problems(row, spec)]


def _problems(row: Unserved, spec: JobSpec) -> Iterator[str]:
    for path, value in fields.values_at(spec, row.path):
        if not row.served(value):
            yield f"not supported yet: spec.{path} = {sentences.show(value)} (what works today: {row.works})"
