"""Lists whose items have a key: server-side apply refuses the same key twice."""

from collections.abc import Iterable, Mapping

Item = Mapping[str, object]


def merge(items: Iterable[Item], *, key: str) -> list[dict[str, object]]:
    """Return the items, each key once, at its first place with its last value."""
    merged: dict[object, dict[str, object]] = {}
    for item in items:
        merged[item[key]] = dict(item)
    return list(merged.values())


def distinct(items: Iterable[Item]) -> list[dict[str, object]]:
    """Return items that have no key of their own, without repetitions."""
    found: list[dict[str, object]] = []
    for item in items:
        if dict(item) not in found:
            found.append(dict(item))
    return found
