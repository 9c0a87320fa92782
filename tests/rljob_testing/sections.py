"""Sections of a manifest by their Python names: the defaults plus changes."""

from typing import Any, TypeVar, get_args

from rljob_api.manifest.base import Decimal, Section

SectionT = TypeVar("SectionT", bound=Section)


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
