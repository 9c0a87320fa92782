"""From a pydantic model to a structural OpenAPI v3 schema: references inlined, nulls and titles gone, all bounded."""

from typing import TypeAlias, cast

from pydantic import BaseModel, JsonValue

from rljob_api.spec.base import INT32

Schema: TypeAlias = dict[str, JsonValue]

# What pydantic writes and a structural schema must not hold, or has other words for.
_DROPPED = frozenset(
    (
        "title",
        "$defs",
        "$ref",
        "const",
        "anyOf",
        "default",
        "additionalProperties",
        "propertyNames",
        "properties",
        "items",
    )
)


def structural(model: type[BaseModel]) -> Schema:
    """Return the structural schema of a model, by YAML keys."""
    document = cast(Schema, model.model_json_schema(by_alias=True))
    return _node(document, cast(Schema, document["$defs"]))


def properties(schema: JsonValue) -> Schema:
    """Return the properties of an object schema."""
    return cast(Schema, properties_of(schema)["properties"])


def properties_of(schema: JsonValue) -> Schema:
    """Return a schema node as a mapping."""
    assert isinstance(schema, dict), f"{schema!r} is no schema node"
    return schema


def _node(raw: Schema, defs: Schema) -> Schema:
    """Convert one node."""
    merged = _inlined(raw, defs)
    node: Schema = {key: value for key, value in merged.items() if key not in _DROPPED}
    if "const" in merged:
        node["enum"] = [merged["const"]]
    if "x-kubernetes-int-or-string" in node:
        node["anyOf"] = merged["anyOf"]
    kind = node.get("type")
    if kind == "object":
        _fill_object(node, merged, defs)
    elif kind == "array":
        node["items"] = _node(cast(Schema, merged["items"]), defs)
        node.setdefault("x-kubernetes-list-type", "atomic")
    elif kind == "integer":
        node["format"] = "int32" if cast(int, node["maximum"]) <= INT32 else "int64"
    if "enum" in node:
        node["maxLength"] = max(len(str(word)) for word in cast(list[JsonValue], node["enum"]))
    _set_default(node, merged)
    return _ordered(node)


def _inlined(raw: Schema, defs: Schema) -> Schema:
    """Follow references and drop the null member of optional fields; the field's own words win."""
    merged = dict(raw)
    while True:
        options = cast(list[Schema], merged.get("anyOf", []))
        present = [option for option in options if option.get("type") != "null"]
        if "$ref" in merged:
            target = cast(Schema, defs[cast(str, merged.pop("$ref")).rsplit("/", 1)[-1]])
        elif options and len(present) < len(options):
            del merged["anyOf"]
            target = present[0]
        else:
            return merged
        merged = {**target, **merged}


def _fill_object(node: Schema, merged: Schema, defs: Schema) -> None:
    if "properties" in merged:
        fields = cast(dict[str, Schema], merged["properties"])
        node["properties"] = {key: _node(value, defs) for key, value in fields.items()}
    elif "x-kubernetes-preserve-unknown-fields" not in node:
        node["additionalProperties"] = _node(cast(Schema, merged["additionalProperties"]), defs)


def _set_default(node: Schema, merged: Schema) -> None:
    """Keep defaults; an object's is written in full, for its rules read it before the API server would fill it in."""
    default = merged.get("default")
    if "properties" in node and "default" in merged and default is not None:
        children = cast(dict[str, Schema], node["properties"])
        node["default"] = {key: child["default"] for key, child in children.items() if "default" in child}
    elif default not in (None, [], {}):
        node["default"] = default


def _ordered(node: Schema) -> Schema:
    first = ("type", "description", "default")
    return {key: node[key] for key in (*first, *(key for key in node if key not in first)) if key in node}
