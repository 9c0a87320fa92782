"""Whether an object already is what we want, and when to write it. Pure: only what we mean to own is compared, as the
API server reads it.

Quantities are compared by value, an absent field equals an empty one, and lists of named things are matched by name.
Each child says in an annotation what it was last applied from. A webhook may change what we write whenever we do:

    another intent than the annotation's ------------> write
    the same, and ours is as the last answer had it --> leave it: writing it again changes nothing
    the same, and ours was changed since -------------> write; after 2, 4, 8 s .. 10 minutes if that continues
"""

import fractions
import functools
import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence

from rljob_operator.model import Manifest, Written

_QUANTITY = re.compile(r"^([+-]?[0-9.]+)(m|k|[KMGTPE]i?|[eE][+-]?[0-9]+)?$")
_SUFFIXES: Mapping[str, fractions.Fraction] = {
    "": fractions.Fraction(1),
    "m": fractions.Fraction(1, 1000),
    "k": fractions.Fraction(1000),
    **{letter: fractions.Fraction(1000**power) for power, letter in enumerate("KMGTPE", start=1)},
    **{f"{letter}i": fractions.Fraction(1024**power) for power, letter in enumerate("KMGTPE", start=1)},
}
_QUANTITY_FIELDS = frozenset({"limits", "requests", "sizeLimit", "storage", "capacity"})
# What distinguishes the members of a list: the first that all of them have and no two of them share.
_KEYS = ("name", "mountPath", "containerPort", "port", "uid", "key")
APPLIED = "rljob.dev/applied"
_LENGTH = 16
# Repairs of one child: the second of a row waits for the first of these, and a row ends when it was left alone so long.
_FIRST_REPAIR_S, _MOST_REPAIR_S, _LEFT_ALONE_S = 2.0, 600.0, 1800.0


def signed(manifest: Manifest) -> Manifest:
    """Return the manifest with a digest of what it is applied from.

    A pod template counts by the hash of its inputs and by who rendered it, as it does where it is pinned.
    """
    plain = _unsigned(manifest)
    metadata, spec = _part(plain, "metadata"), plain.get("spec")
    counted: object = plain
    if isinstance(spec, Mapping) and "template" in spec:
        marks = _part(_part(_part(spec, "template"), "metadata"), "annotations")
        counted = {**plain, "spec": {**spec, "template": marks}}
    annotations = {**_part(metadata, "annotations"), APPLIED: _digest(counted)}
    return {**plain, "metadata": {**metadata, "annotations": annotations}}


def _unsigned(manifest: Manifest) -> Manifest:
    metadata = _part(manifest, "metadata")
    annotations = {key: value for key, value in _part(metadata, "annotations").items() if key != APPLIED}
    return {**manifest, "metadata": {**metadata, "annotations": annotations}}


def intent(manifest: Manifest) -> str:
    """Return the digest that `signed` wrote; empty without one."""
    return str(_part(_part(manifest, "metadata"), "annotations").get(APPLIED, ""))


def labels(manifest: Manifest) -> Mapping[str, str]:
    return {str(key): str(value) for key, value in _part(_part(manifest, "metadata"), "labels").items()}


def answer(live: Manifest, desired: Manifest) -> str:
    """Return a digest of what an object has in the fields that are wanted, whatever is wanted of them."""
    return _digest(_ours(live, desired))


def due_at(live: Manifest, desired: Manifest, written: Written | None, *, now: float) -> float | None:
    """Return when to write a child, in unix seconds; None if it is to be left as it is."""
    before, after = intent(live), intent(desired)
    is_new = bool(before) and before != after
    if not is_new and _fits(live, desired):
        return None
    if written is None or written.intent != after:
        return now
    if written.answer == answer(live, desired):
        return None
    wait_s = _FIRST_REPAIR_S * 2.0 ** min(written.times - 1, 10)
    return max(now, written.at + min(_MOST_REPAIR_S, wait_s)) if written.times else now


def write(previous: Written | None, live: Manifest, desired: Manifest, *, repair: bool, now: float) -> Written | None:
    """Return what to remember of a child that was just written and is `live` now; None if nothing.

    repair: it had been written from the same intent before.
    """
    follows = previous is not None and previous.intent == intent(desired) and now - previous.at < _LEFT_ALONE_S
    times = previous.times + 1 if previous is not None and follows else int(repair)
    if not times and _fits(live, desired):
        return None
    return Written(intent=intent(desired), answer=answer(live, desired), times=times, at=now)


def _fits(live: Manifest, desired: Manifest) -> bool:
    """Return whether a child has what is wanted. What others added counts where no mark shows that we did not."""
    return covers(live, _unsigned(desired), injected=bool(intent(live)))


def covers(live: object, desired: object, *, injected: bool = False) -> bool:
    """Return whether `live` holds everything that `desired` says; fields that only `live` has do not count.

    injected: nor do named things that only lists of a pod template in `live` have, such as the variable, volume or
    container that a webhook adds: server-side apply leaves to others what others added.
    """
    return _covers(live, desired, quantities=False, injected=injected, more=False)


def _covers(live: object, desired: object, *, quantities: bool, injected: bool, more: bool) -> bool:
    if isinstance(desired, Mapping):
        live_value = live if isinstance(live, Mapping) else {}
        return all(
            _covers(
                live_value.get(key),
                value,
                quantities=quantities or key in _QUANTITY_FIELDS,
                injected=injected,
                more=more or (injected and key == "template"),
            )
            for key, value in desired.items()
        )
    if isinstance(desired, Sequence) and not isinstance(desired, str):
        return _covers_list(live, desired, quantities=quantities, injected=injected, more=more)
    if quantities and desired is not None and live is not None:
        return _same_quantity(live, desired)
    return live == desired or (_is_empty(live) and _is_empty(desired))


def _covers_list(live: object, desired: Sequence[object], *, quantities: bool, injected: bool, more: bool) -> bool:
    live_value = live if isinstance(live, Sequence) and not isinstance(live, str) else ()
    key = _key_of(desired)
    if len(live_value) != len(desired) and (not more or key is None or len(live_value) < len(desired)):
        return False
    by_key = {item.get(key): item for item in live_value if isinstance(item, Mapping)}
    named = ((by_key.get(item.get(key)), item) for item in desired if isinstance(item, Mapping))
    pairs: Iterable[tuple[object, object]] = named if key is not None else zip(live_value, desired, strict=True)
    return all(_covers(first, other, quantities=quantities, injected=injected, more=more) for first, other in pairs)


def _ours(live: object, desired: object) -> object:
    """Return what of `live` is in fields of `desired`; lists whole, but for those of named things."""
    if isinstance(desired, Mapping) and isinstance(live, Mapping):
        return {key: _ours(live.get(key), value) for key, value in desired.items() if key != APPLIED}
    if isinstance(desired, Sequence) and not isinstance(desired, str) and isinstance(live, Sequence):
        key = _key_of(desired)
        if key is not None:
            desired_items = {item[key]: item for item in desired if isinstance(item, Mapping)}
            return [
                _ours(item, desired_items.get(item.get(key))) if isinstance(item, Mapping) else item for item in live
            ]
    return live


def _digest(value: object) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:_LENGTH]


def _part(section: Mapping[str, object], key: str) -> Mapping[str, object]:
    value = section.get(key)
    return value if isinstance(value, Mapping) else {}


def _key_of(items: Sequence[object]) -> str | None:
    for key in _KEYS:
        values = [item.get(key) for item in items if isinstance(item, Mapping)]
        if len(set(map(str, values))) == len(items) and None not in values:
            return key
    return None


def _is_empty(value: object) -> bool:
    # The API server leaves these out; 0 and false are written where we set them and absent where they are defaults.
    return value is None or value in ("", 0, False)


def _same_quantity(left: object, right: object) -> bool:
    first, second = quantity(left), quantity(right)
    return left == right if first is None or second is None else first == second


def quantity(value: object) -> fractions.Fraction | None:
    """Return the value of a Kubernetes quantity such as "500m" or "1Gi"; None if it is none."""
    return None if isinstance(value, bool) else _quantity(str(value))


# Ten thousand pods ask for a few different amounts.
@functools.lru_cache(maxsize=4096)
def _quantity(text: str) -> fractions.Fraction | None:
    match = _QUANTITY.match(text)
    if match is None:
        return None
    number, suffix = match.group(1), match.group(2) or ""
    try:
        if suffix[:1] in "eE" and len(suffix) > 1 and suffix != "Ei":
            return fractions.Fraction(f"{number}{suffix}")
        return fractions.Fraction(number) * _SUFFIXES[suffix]
    except ValueError:
        return None
