"""Whether an object already is what we want. Pure: only what we mean to own is compared, as the API server reads it.

Quantities are compared by value, an absent field equals an empty one, and lists of named things are matched by name.
"""

import fractions
import re
from collections.abc import Mapping, Sequence

_QUANTITY = re.compile(r"^([+-]?[0-9.]+)(m|k|[KMGTPE]i?|[eE][+-]?[0-9]+)?$")
_SUFFIXES: Mapping[str, fractions.Fraction] = {
    "": fractions.Fraction(1),
    "m": fractions.Fraction(1, 1000),
    "k": fractions.Fraction(1000),
    **{letter: fractions.Fraction(1000**power) for power, letter in enumerate("KMGTPE", start=1)},
    **{f"{letter}i": fractions.Fraction(1024**power) for power, letter in enumerate("KMGTPE", start=1)},
}
_QUANTITY_FIELDS = frozenset({"limits", "requests", "sizeLimit", "storage", "capacity"})
# What tells the members of a list apart: the first that all of them have and no two of them share.
_KEYS = ("name", "mountPath", "containerPort", "port", "uid", "key")


def covers(live: object, desired: object) -> bool:
    """Return whether `live` holds everything that `desired` says; fields that only `live` has do not count."""
    return _covers(live, desired, quantities=False)


def _covers(live: object, desired: object, *, quantities: bool) -> bool:
    if isinstance(desired, Mapping):
        known = live if isinstance(live, Mapping) else {}
        return all(
            _covers(known.get(key), value, quantities=quantities or key in _QUANTITY_FIELDS)
            for key, value in desired.items()
        )
    if isinstance(desired, Sequence) and not isinstance(desired, str):
        return _covers_list(live, desired, quantities=quantities)
    if quantities and desired is not None and live is not None:
        return _same_quantity(live, desired)
    return live == desired or (_is_empty(live) and _is_empty(desired))


def _covers_list(live: object, desired: Sequence[object], *, quantities: bool) -> bool:
    known = live if isinstance(live, Sequence) and not isinstance(live, str) else ()
    if len(known) != len(desired):
        return False
    key = _key_of(desired)
    if key is None:
        return all(_covers(one, other, quantities=quantities) for one, other in zip(known, desired, strict=True))
    by_key = {item.get(key): item for item in known if isinstance(item, Mapping)}
    return all(
        _covers(by_key.get(item[key]), item, quantities=quantities) for item in desired if isinstance(item, Mapping)
    )


def _key_of(items: Sequence[object]) -> str | None:
    for key in _KEYS:
        values = [item.get(key) for item in items if isinstance(item, Mapping)]
        if len(set(map(str, values))) == len(items) and None not in values:
            return key
    return None


def _is_empty(value: object) -> bool:
    # The API server leaves these out; 0 and false are written where we set them and absent where they are defaults.
    return value is None or value in ("", 0, False)


def _same_quantity(one: object, other: object) -> bool:
    first, second = quantity(one), quantity(other)
    return one == other if first is None or second is None else first == second


def quantity(value: object) -> fractions.Fraction | None:
    """Return the value of a Kubernetes quantity such as "500m" or "1Gi"; None if it is none."""
    found = _QUANTITY.match(str(value))
    if found is None or isinstance(value, bool):
        return None
    number, suffix = found.group(1), found.group(2) or ""
    try:
        if suffix[:1] in "eE" and len(suffix) > 1 and suffix != "Ei":
            return fractions.Fraction(f"{number}{suffix}")
        return fractions.Fraction(number) * _SUFFIXES[suffix]
    except ValueError:
        return None
