"""Whether the RLJob that an API server serves has every field that this operator knows (operator reference 2.4).

A field that is missing there is dropped from each write without a word: a status would never be what was written.
"""

from collections.abc import Iterator, Mapping
from typing import Any

Schema = Mapping[str, Any]
_MOST_NAMED = 3


def problem(served: Schema | None, known: Schema) -> str:
    """Return why the served definition does not do, as one sentence; empty if it does. None: none is served."""
    if served is None:
        return "no RLJob is served: apply the CustomResourceDefinition of this version"
    missing = [path for part in ("spec", "status") for path in _missing(_part(served, part), _part(known, part), part)]
    if not missing:
        return ""
    more = f" and {len(missing) - _MOST_NAMED} more" if len(missing) > _MOST_NAMED else ""
    named = ", ".join(missing[:_MOST_NAMED])
    return f"the RLJob that is served lacks {named}{more}: apply the CustomResourceDefinition of this version"


def _part(schema: Schema, name: str) -> Schema:
    found: Schema = (schema.get("properties") or {}).get(name) or {}
    return found


def _missing(served: Schema, known: Schema, path: str) -> Iterator[str]:
    """Yield the paths of what `served` would drop, the outermost ones alone."""
    if served.get("x-kubernetes-preserve-unknown-fields"):
        return
    there = served.get("properties") or {}
    for name, schema in sorted((known.get("properties") or {}).items()):
        if name in there:
            yield from _missing(there[name], schema, f"{path}.{name}")
        else:
            yield f"{path}.{name}"
    for key, mark in (("items", "[]"), ("additionalProperties", "{}")):
        if isinstance(known.get(key), Mapping) and isinstance(served.get(key), Mapping):
            yield from _missing(served[key], known[key], path + mark)
