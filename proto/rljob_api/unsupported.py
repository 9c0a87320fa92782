"""What the schema already has and no process serves yet: one table, and a refusal for each such value."""

import dataclasses
from collections.abc import Callable, Iterator

from rljob_api import fields, messages
from rljob_api.manifest.job import JobSpec


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class UnsupportedField:
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


UNSUPPORTED: tuple[UnsupportedField, ...] = (
    UnsupportedField(path="queue", served=_unset, works="start without a queue"),
    UnsupportedField(path="gang", served=_among(None, "none"), works="none"),
    UnsupportedField(path="model.lora", served=_unset, works="training all weights"),
    UnsupportedField(path="observability.traces", served=_empty, works="logs and metrics"),
)


def problems(spec: JobSpec) -> list[str]:
    """Return a sentence for every value that was written and is not served yet."""
    return [sentence for row in UNSUPPORTED for sentence in _problems(row, spec)]


def _problems(row: UnsupportedField, spec: JobSpec) -> Iterator[str]:
    for path, value in fields.values_at(spec, row.path):
        if not row.served(value):
            yield f"not supported yet: spec.{path} = {messages.show(value)} (what works today: {row.works})"
