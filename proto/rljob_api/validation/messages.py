"""One sentence per problem of a manifest: the field's full path, the value, and what would be right."""

import difflib
import json
import re
import types
import typing
from collections.abc import Iterator, Sequence

from pydantic import BaseModel, JsonValue, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from rljob_api.manifest import base
from rljob_api.validation import fields, migration
from rljob_api.validation.migration import ELSEWHERE, UNSUPPORTED

MAX_VALUE_LENGTH = 60
Location = Sequence[str | int]
# A field of pods whose values may be secrets. A refusal is logged and stands in status, so it shows none of them.
ENVIRONMENT = "env"
# Where a URI may hold keys: before the last @ (a key may have slashes), and in its query.
_USER_OF_URI = re.compile(r'(?<=://)[^"]*@')
_QUERY_OF_URI = re.compile(r'(://[^"?]*\?)[^"\']+')


def explain_errors(
    error: ValidationError, *, document: JsonValue, model: type[BaseModel], is_part: bool = False
) -> list[str]:
    """Return one sentence per error of pydantic, in the order of the manifest's fields, without repetitions.

    is_part: the document is a part of one, and lacks nothing but in items of its lists.
    """
    sentences: dict[str, None] = {}
    for detail in error.errors(include_url=False):
        in_list = any(isinstance(key, int) for key in detail["loc"])
        if is_part and detail["type"] == "missing" and not in_list:
            continue
        if detail["type"] != "default_factory_not_called" and not _follows_from_another(detail, document):
            sentences.setdefault(_sentence(detail, document=document, model=model))
    return list(sentences)


def show(value: object) -> str:
    """Return a value as a refusal prints it: text in quotes, floats as written, keys in URIs hidden, long ones cut."""
    if isinstance(value, base.WrittenFloat):
        return value.text
    if isinstance(value, base.Decimal):
        value = value.text
    if isinstance(value, BaseModel):
        value = value.model_dump(mode="json", exclude_unset=True)
    text = f"'{value}'" if isinstance(value, str) else json.dumps(value, default=str)
    text = _QUERY_OF_URI.sub(r"\1***", _USER_OF_URI.sub("***@", text))
    return text if len(text) <= MAX_VALUE_LENGTH else text[: MAX_VALUE_LENGTH - 3] + "..."


def _sentence(detail: ErrorDetails, *, document: JsonValue, model: type[BaseModel]) -> str:
    location = _known_location(detail["loc"], model)
    path = fields.path_text(location)
    field = fields.field_at(model, location)
    if detail["type"] == "missing":
        return f"{path} is missing: {_purpose(field)}"
    if detail["type"] == "extra_forbidden":
        return _unknown_key(location, model)
    value = _value_at(document, location)
    if ENVIRONMENT in location:
        quoting = ": write it in quotes" if isinstance(value, int | float) else ""
        return f"{path} is {_kind(value)}, but {_expectation(detail, field=field, value=None)}{quoting}"
    hint = migration.value_hint(path, value)
    if hint is not None:
        return f"{path} is {show(value)}, but that is {hint}"
    return f"{path} is {show(value)}, but {_expectation(detail, field=field, value=value)}{_quoting(value, field)}"


def _kind(value: object) -> str:
    words = {
        str: "a text",
        bool: "true or false",
        int: "a number",
        float: "a number",
        list: "a list",
        dict: "a mapping",
    }
    return next((word for kind, word in words.items() if isinstance(value, kind)), "empty")


def _follows_from_another(detail: ErrorDetails, document: JsonValue) -> bool:
    """Say whether a list only counts as too short because its items, reported by themselves, were refused."""
    value = _value_at(document, detail["loc"])
    return detail["type"] == "too_short" and isinstance(value, list) and len(value) >= detail["ctx"]["min_length"]


def _known_location(location: Location, model: type[BaseModel]) -> Location:
    """Cut off what pydantic adds for map keys and union members, which no YAML path has."""
    for length in range(len(location), 0, -1):
        if fields.model_at(model, location[: length - 1]) is not None:
            return location[:length]
    return location


def _value_at(document: JsonValue, location: Location) -> object:
    value: object = document
    for key in location:
        if isinstance(value, dict):
            value = value.get(key)
        elif isinstance(value, list) and isinstance(key, int):
            value = value[key]
    return value


def _purpose(field: FieldInfo | None) -> str:
    return (field.description if field is not None and field.description else "it is required").rstrip(".")


def _unknown_key(location: Location, model: type[BaseModel]) -> str:
    key, path = str(location[-1]), fields.path_text(location)
    instead = UNSUPPORTED.get(path.removeprefix("spec."))
    if instead is not None:
        return f"{path} is not supported yet: {instead}; leave it out"
    if elsewhere := ELSEWHERE.get(path.removeprefix("spec.")):
        return f"{path} is not a field: {elsewhere}"
    parent = fields.model_at(model, location[:-1])
    siblings = [] if parent is None else list(fields.fields_of(parent))
    target = _meant(key, siblings=siblings, model=model)
    if target is None:
        return f"{path} is not a field; {fields.path_text(location[:-1]) or 'the manifest'} has {', '.join(siblings)}"
    spec = fields.model_at(model, ("spec",)) if len(location) == 1 else None
    if spec is not None and target in fields.fields_of(spec):
        return f"{path} is not a field; spec.{target} is probably meant"
    if target in siblings:
        return f"{path} is not a field; {target} is probably meant"
    return f"{path} is not a field; `{key}` is `{target}` here"


def _meant(key: str, *, siblings: Sequence[str], model: type[BaseModel]) -> str | None:
    """Return a sibling, or a path below spec, that an unknown key probably means."""
    same = next((name for name in siblings if migration.folded(name) == migration.folded(key)), None)
    if same is not None:
        return same
    path = migration.our_path(key)
    if path is not None:
        return path
    close = difflib.get_close_matches(key, siblings, n=1, cutoff=0.7)
    if close:
        return close[0]
    return _misplaced_path(key, model)


def _misplaced_path(key: str, model: type[BaseModel]) -> str | None:
    """Return the only path below spec that ends in this key, so that a misplaced field is told its place."""
    folded_key = migration.folded(key)
    paths = [path for path, _ in fields.all_paths(model) if migration.folded(path.rsplit(".", 1)[-1]) == folded_key]
    spec_paths = [path.removeprefix("spec.") for path in paths if path.startswith("spec.")]
    return spec_paths[0] if len(spec_paths) == 1 else None


def _expectation(detail: ErrorDetails, *, field: FieldInfo | None, value: object) -> str:
    kind, context = detail["type"], detail.get("ctx", {})
    match kind:
        case "decimal":
            return f'must be a decimal number such as "{_example(field)}"'
        case "quantity":
            return f'must be a quantity such as "{_example(field, default="512Mi")}"'
        case "literal_error":
            return _choice(value, _literals(field))
        case "one_of":
            return _choice(value, list(context["names"]))
        case "greater_than_equal":
            return f"must be at least {context['ge']}"
        case "less_than_equal":
            return f"must be at most {context['le']}"
        case "string_too_short" | "too_short":
            return f"must have at least {context['min_length']} {_unit(kind)}"
        case "string_too_long" | "too_long":
            return f"must have at most {context['max_length']} {_unit(kind)}"
        case "string_pattern_mismatch":
            return _pattern(field, str(context["pattern"]))
    return _of_type(kind, field)


def _unit(kind: str) -> str:
    return "characters" if kind.startswith("string") else "items"


def _of_type(kind: str, field: FieldInfo | None) -> str:
    words = {"int": "a whole number", "bool": "true or false", "string": "text", "tuple": "a list", "dict": "a mapping"}
    expected = next((word for prefix, word in words.items() if kind.startswith(prefix)), "a mapping")
    return f"must be {expected}{_bounds(field) if expected == 'a whole number' else ''}"


def _bounds(field: FieldInfo | None) -> str:
    limits = dict(_limits(field))
    if "ge" in limits and "le" in limits:
        return f" from {limits['ge']} to {limits['le']}"
    return ""


def _limits(field: FieldInfo | None) -> Iterator[tuple[str, object]]:
    for item in [] if field is None else field.metadata:
        for name in ("ge", "le"):
            if getattr(item, name, None) is not None:
                yield name, getattr(item, name)


def _example(field: FieldInfo | None, default: str = "0.5") -> str:
    return str(field.default) if field is not None and isinstance(field.default, str | base.Decimal) else default


def _literals(field: FieldInfo | None) -> list[str]:
    return [] if field is None else list(_literal_values(field.annotation))


def _literal_values(annotation: object) -> Iterator[str]:
    if typing.get_origin(annotation) is typing.Literal:
        yield from (str(value) for value in typing.get_args(annotation))
    else:
        for part in typing.get_args(annotation):
            yield from _literal_values(part)


def _choice(value: object, names: Sequence[str]) -> str:
    listed = f"must be {names[0]}" if len(names) == 1 else f"must be one of {', '.join(names)}"
    close = difflib.get_close_matches(value, names, n=1) if isinstance(value, str) else []
    return f"{listed}; did you mean {close[0]}?" if close else listed


def _pattern(field: FieldInfo | None, pattern: str) -> str:
    if pattern == base.LAMBDA_PATTERN:
        return 'must be a decimal number such as "0.95", "vapo{0.05}" or "relativePosition{0.25}"'
    if pattern == base.NAME_PATTERN:
        return "must be letters, digits, dots and dashes, beginning and ending with a letter or digit"
    if pattern == base.JOB_NAME_PATTERN:
        return "must be lower-case letters, digits and dashes, beginning with a letter (RFC 1035)"
    if pattern == base.OBJECT_URI_PATTERN:
        return f"must be {base.OBJECT_URI_FORM}"
    purpose = "" if field is None else f" ({_purpose(field)})"
    return f"must match {pattern}{purpose}"


def _quoting(value: object, field: FieldInfo | None) -> str:
    """Say how to write a value that YAML took for something else."""
    if field is None or not _takes_text(field.annotation):
        return ""
    if isinstance(value, bool):
        words = "no or off" if value is False else "yes or on"
        return f" (YAML reads an unquoted {words} as {str(value).lower()}: write it in quotes)"
    return f': write it in quotes, "{show(value)}"' if isinstance(value, int | float) else ""


def _takes_text(annotation: object) -> bool:
    """Say whether a value is text: str or a choice, possibly optional; neither a list nor a mapping of text."""
    origin = typing.get_origin(annotation)
    if origin in (typing.Union, types.UnionType, typing.Annotated):
        return any(_takes_text(part) for part in typing.get_args(annotation))
    return annotation in (str, base.Decimal) or origin is typing.Literal


def invalid(path: str, value: object, reason: str) -> str:
    """Return "spec.<path> is <value>, but <reason>"."""
    return f"spec.{path} is {show(value)}, but {reason}"
