"""What every section is made of: the frozen base class and the scalar types that YAML, pydantic and the CRD agree on.

Non-integers are decimal strings, because an API server may not store floats; quantities are numbers with a unit suffix.
"""

import re
from decimal import Decimal as ExactDecimal
from typing import Annotated

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, JsonValue, WithJsonSchema
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticCustomError

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


class WrittenFloat(float):
    """A float that remembers how it was written, so that a refusal can quote it."""

    text: str = ""


def number(text: str) -> float:
    """Return the value of a decimal string."""
    return float(text)


def optional_number(text: str | None) -> float | None:
    """Return the value of a decimal string, or None."""
    return None if text is None else float(text)


def num_bytes(quantity: str) -> int:
    """Return a quantity such as "512Mi" or "1.5G" as whole units (bytes), rounded up as Kubernetes does."""
    digits = quantity.rstrip("kKMGTPEim")
    suffix = quantity[len(digits) :]
    scale = ExactDecimal(2) ** _BINARY_SUFFIXES[suffix] if suffix in _BINARY_SUFFIXES else None
    exact = ExactDecimal(digits) * (scale if scale is not None else ExactDecimal(10) ** _SUFFIXES[suffix])
    return int(exact.to_integral_value(rounding="ROUND_CEILING"))


def _decimal(value: object) -> object:
    if not isinstance(value, str) or len(value) > DECIMAL_MAX_LENGTH or not re.match(DECIMAL_PATTERN, value):
        raise PydanticCustomError("decimal", "not a decimal string")
    return value


def _quantity(value: object) -> object:
    text = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
    if not isinstance(text, str) or len(text) > QUANTITY_MAX_LENGTH or not re.match(QUANTITY_PATTERN, text):
        raise PydanticCustomError("quantity", "not a quantity")
    return text


Decimal = Annotated[
    str,
    BeforeValidator(_decimal),
    WithJsonSchema({"type": "string", "pattern": DECIMAL_PATTERN, "maxLength": DECIMAL_MAX_LENGTH}),
]
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
Label = Annotated[str, Field(max_length=317)]
TokenId = Annotated[int, Field(ge=0, le=INT32)]
Config = dict[Annotated[str, Field(max_length=128)], JsonValue]


def one_of(*names: str, prefixes: tuple[str, ...] = (), imports: bool = True, max_length: int = 256) -> object:
    """Return the type of a string: one of `names`, something after a prefix (`runtimeClass:`), or an import path."""
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
