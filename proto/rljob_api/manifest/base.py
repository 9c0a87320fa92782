"""What every section is made of: the frozen base class, its rules, and the scalar types that YAML, pydantic and the CRD
agree on.

Non-integers are decimal strings, because an API server may not store floats; quantities are numbers with a unit suffix.

A field has a `default`, which the API server writes into the object, or a `default_factory`: a value derived from other
fields, which stays out of the object so that "written" and "default" stay apart. Its description ends in
"Default: <where it comes from>.", which `rljob plan` prints. What a section cannot derive from itself, the job fills in
(`manifest.job`).
"""

import dataclasses
import functools
import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal as ExactDecimal
from typing import Annotated, Any, TypeVar, cast

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    JsonValue,
    WithJsonSchema,
)
from pydantic.alias_generators import to_camel
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

DECIMAL_PATTERN = r"^-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]{1,2})?$"
DECIMAL_MAX_LENGTH = 24
QUANTITY_PATTERN = r"^(0|[1-9][0-9]*)(\.[0-9]+)?(m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)?$"
QUANTITY_MAX_LENGTH = 24
LAMBDA_PATTERN = r"^(-?(0|[1-9][0-9]*)(\.[0-9]+)?|(vapo|relativePosition)\{(0|[1-9][0-9]*)(\.[0-9]+)?\})$"
IMPORT_PATTERN = r"[A-Za-z_][A-Za-z0-9_.]*:[A-Za-z_][A-Za-z0-9_]*"
JOB_NAME_PATTERN = r"^[a-z]([-a-z0-9]*[a-z0-9])?$"
NAME_PATTERN = r"^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$"

INT32 = 2**31 - 1
# Largest integer that JSON readers with doubles keep exact; the API server refuses larger bounds.
INT64 = 2**53 - 1

_SUFFIXES = {"": 0, "m": -3, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY_SUFFIXES = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}

# A list whose items are told apart by `name`: the API server merges and refuses duplicates by it.
NAMED: dict[str, JsonValue] = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]}
SET: dict[str, JsonValue] = {"x-kubernetes-list-type": "set"}
FREE: dict[str, JsonValue] = {"x-kubernetes-preserve-unknown-fields": True}


INVALID = "FieldValueInvalid"
FORBIDDEN = "FieldValueForbidden"
REQUIRED = "FieldValueRequired"

# Path below the section ("": the section itself), value, and what would be right.
Problem = tuple[str, object, str]
Check = Callable[[Any], Iterator[Problem]]
CheckT = TypeVar("CheckT", bound=Callable[..., Iterator[Problem]])


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CelRule:
    """A rule as the API server evaluates it, `self` being the value of a section; `field` is the one that it blames.

    at: the schema node, [] for list items; the section's own where a section states the rule. values: an expression
    for a message with values in it.
    """

    rule: str
    message: str
    field: str = ""
    reason: str = INVALID
    values: str = ""
    at: str = ""

    def to_schema(self) -> dict[str, JsonValue]:
        """Return the entry of x-kubernetes-validations."""
        entry: dict[str, JsonValue] = {"rule": self.rule, "message": self.message, "reason": self.reason}
        if self.field:
            entry["fieldPath"] = f".{self.field}"
        if self.values:
            entry["messageExpression"] = self.values
        return entry


def rule(*twins: CelRule) -> Callable[[CheckT], CheckT]:
    """Mark a method of a section as a rule across fields; `twins` are what the API server checks of it by itself."""

    def mark(check: CheckT) -> CheckT:
        check.__dict__["twins"] = twins
        return check

    return mark


class Section(BaseModel):
    """Base of every section: unknown keys refused, types strict, frozen; camelCase in YAML, snake_case in Python."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        alias_generator=to_camel,
        validate_by_alias=True,
        validate_by_name=False,
        serialize_by_alias=True,
    )

    def is_written(self, name: str) -> bool:
        """Return whether a field was given a value, which may be its default."""
        return name in self.model_fields_set

    def unused(self) -> Mapping[str, str]:
        """Return the fields, by their YAML path, that other values leave without effect, each with the reason.

        Written, they are refused; their defaults are not shown.
        """
        return {}


SectionT = TypeVar("SectionT", bound=Section)


# A class's rules are those that it was written with, and an operator asks for them at every look at a job.
@functools.cache
def rules_of(section: type[BaseModel]) -> tuple[tuple[str, Check, tuple[CelRule, ...]], ...]:
    """Return name, check and CEL twins of the rules of a section, those of its base classes first."""
    return tuple(
        (name, value, value.__dict__["twins"])
        for base in reversed(section.__mro__)
        for name, value in vars(base).items()
        if inspect.isfunction(value) and "twins" in value.__dict__
    )


NO_SHARE = "it is a share and must be from 0 to 1"


def no_effect(because: str) -> str:
    """Return the reason against a written value that the chosen path would not read."""
    return f"{because}: leave it out"


def filled(section: SectionT, **derived: object) -> SectionT:
    """Return a copy of a section with derived values in fields that are not written; they still count as unwritten."""
    return with_parts(section, **{name: value for name, value in derived.items() if not section.is_written(name)})


def with_parts(section: SectionT, **parts: object) -> SectionT:
    """Return a copy of a section with other values that are not checked; what was written stays what was written."""
    copy = section.model_copy()
    copy.__dict__.update(parts)
    return copy


def narrowed(section: Section, kind: type[SectionT]) -> SectionT:
    """Return the fields that a base class of a section has, as a section of that class."""
    values = {name: getattr(section, name) for name in kind.model_fields}
    names = section.model_fields_set & kind.model_fields.keys()
    return cast(SectionT, kind.model_construct(_fields_set=names, **values))


def written(section: Section, *, without: str = "") -> dict[str, object]:
    """Return what differs from the schema's defaults, by YAML keys: derived values, empty blocks and the field
    `without` are left out, so that a field that a later release adds changes nothing.
    """
    content = section.model_dump(mode="json", by_alias=True, exclude_defaults=True, exclude_unset=True)
    return {key: value for key, value in _without_empty(content).items() if key != without}


def _without_empty(content: Mapping[str, object]) -> dict[str, object]:
    pruned = {key: _without_empty(value) if isinstance(value, dict) else value for key, value in content.items()}
    return {key: value for key, value in pruned.items() if value != {}}


class WrittenFloat(float):
    """A float that remembers how it was written, so that a refusal can quote it."""

    text: str = ""


class Decimal(float):
    """A decimal string of the manifest and its value: a float that remembers how it was written."""

    text: str

    def __new__(cls, value: str | float) -> "Decimal":
        """Raise ValueError for text that is no number."""
        number = super().__new__(cls, value)
        number.text = value if isinstance(value, str) else repr(float(value))
        return number

    def __str__(self) -> str:
        """Return the text as it was written."""
        return self.text

    @classmethod
    def __get_pydantic_core_schema__(cls, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Take a decimal string, or a Decimal; serialise to the text."""
        return core_schema.no_info_plain_validator_function(
            _decimal,
            serialization=core_schema.plain_serializer_function_ser_schema(
                str, return_schema=core_schema.str_schema(), when_used="json"
            ),
        )

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"type": "string", "pattern": DECIMAL_PATTERN, "maxLength": DECIMAL_MAX_LENGTH}


def _decimal(value: object) -> Decimal:
    if isinstance(value, Decimal):
        return value
    if not isinstance(value, str) or len(value) > DECIMAL_MAX_LENGTH or not re.match(DECIMAL_PATTERN, value):
        raise PydanticCustomError("decimal", "not a decimal string")
    return Decimal(value)


def num_bytes(quantity: str) -> int:
    """Return a quantity such as "512Mi" or "1.5G" as whole units (bytes), rounded up as Kubernetes does."""
    digits = quantity.rstrip("kKMGTPEim")
    suffix = quantity[len(digits) :]
    scale = ExactDecimal(2) ** _BINARY_SUFFIXES[suffix] if suffix in _BINARY_SUFFIXES else None
    exact = ExactDecimal(digits) * (scale if scale is not None else ExactDecimal(10) ** _SUFFIXES[suffix])
    return int(exact.to_integral_value(rounding="ROUND_CEILING"))


def _quantity(value: object) -> object:
    text = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
    if not isinstance(text, str) or len(text) > QUANTITY_MAX_LENGTH or not re.match(QUANTITY_PATTERN, text):
        raise PydanticCustomError("quantity", "not a quantity")
    return text


Quantity = Annotated[
    str,
    BeforeValidator(_quantity),
    WithJsonSchema(
        {
            "anyOf": [{"type": "integer"}, {"type": "string"}],
            "x-kubernetes-int-or-string": True,
            "pattern": QUANTITY_PATTERN,
            "maxLength": QUANTITY_MAX_LENGTH,
        }
    ),
]
Name = Annotated[str, Field(min_length=1, max_length=63, pattern=NAME_PATTERN)]
Text = Annotated[str, Field(min_length=1, max_length=256)]
Import = Annotated[str, Field(max_length=256, pattern=f"^{IMPORT_PATTERN}$")]
Module = Annotated[
    str, Field(min_length=1, max_length=128, pattern=r"^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*$")
]
Path = Annotated[str, Field(min_length=1, max_length=1024)]
# A bucket and what is below it, or a folder. No user, password, query or fragment: keys come by the environment.
OBJECT_URI_PATTERN = (
    r"^((s3|gs|az)://[a-z0-9][a-z0-9._-]{1,61}[a-z0-9](/[A-Za-z0-9._=+-]+)*/?|file://(/[A-Za-z0-9._=+-]+)+/?)$"
)
OBJECT_URI_FORM = (
    "s3://bucket/prefix, gs://bucket/prefix, az://account/container/prefix or file:///folder, without keys: those come"
    " by the environment"
)


def is_object_uri(text: str) -> bool:
    """Return whether a text names something in an object store."""
    return re.match(OBJECT_URI_PATTERN, text) is not None


ObjectUri = Annotated[str, Field(max_length=1024, pattern=OBJECT_URI_PATTERN)]
Label = Annotated[str, Field(max_length=317)]
TokenId = Annotated[int, Field(ge=0, le=INT32)]
Config = dict[Annotated[str, Field(max_length=128)], JsonValue]


def one_of(*names: str, prefixes: tuple[str, ...] = (), imports: bool = True, max_length: int = 256) -> object:
    """Return the type of a string: one of `names`, something after a prefix (`plugin:`), or an import path."""
    words = "|".join(re.escape(name).replace(r"\-", "-") for name in names)
    named = [f"{prefix}[a-z0-9]([a-z0-9.-]*[a-z0-9])?" for prefix in prefixes]
    pattern = "^(" + "|".join([words, *named, *([IMPORT_PATTERN] if imports else [])]) + ")$"
    shapes = [*names, *(f"{prefix}<name>" for prefix in prefixes), *(["module:name"] if imports else [])]

    def check(value: str) -> str:
        if len(value) > max_length or not re.match(pattern, value):
            raise PydanticCustomError("one_of", "not one of the known names", {"names": shapes})
        return value

    schema = {"type": "string", "pattern": pattern, "maxLength": max_length}
    return Annotated[str, AfterValidator(check), WithJsonSchema(schema)]
