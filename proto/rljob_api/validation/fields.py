"""Walks over manifest models by path: which field stands where, and which values a dotted path names."""

import types
import typing
from collections.abc import Iterator, Sequence

from pydantic import BaseModel
from pydantic.fields import FieldInfo


def alias_of(name: str, info: FieldInfo) -> str:
    """Return the YAML key of a field."""
    return info.alias or name


def fields_of(model: type[BaseModel]) -> dict[str, FieldInfo]:
    """Return the fields of a model by YAML key."""
    return {alias_of(name, info): info for name, info in model.model_fields.items()}


def model_in(annotation: object) -> type[BaseModel] | None:
    """Return the model inside an annotation such as `X | None` or `tuple[X, ...]`; None if there is none."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    if typing.get_origin(annotation) in (typing.Union, types.UnionType, tuple, typing.Annotated):
        models = (model_in(part) for part in typing.get_args(annotation))
        return next((model for model in models if model is not None), None)
    return None


def is_list(annotation: object) -> bool:
    """Return whether an annotation is that of a list, possibly an optional one."""
    return typing.get_origin(annotation) is tuple or any(is_list(part) for part in typing.get_args(annotation))


def model_at(root: type[BaseModel], location: Sequence[str | int]) -> type[BaseModel] | None:
    """Return the model whose value stands at a location such as ("spec", "data", "train", 0); None if there is none."""
    model: type[BaseModel] | None = root
    for key in location:
        if isinstance(key, int) or model is None:
            continue
        info = fields_of(model).get(key)
        model = None if info is None else model_in(info.annotation)
    return model


def field_at(root: type[BaseModel], location: Sequence[str | int]) -> FieldInfo | None:
    """Return the field that a location ends in; for a list item the field of the list. None if there is none."""
    keys = list(location)
    while keys and isinstance(keys[-1], int):
        keys.pop()
    if not keys:
        return None
    model = model_at(root, keys[:-1])
    return None if model is None else fields_of(model).get(str(keys[-1]))


def path_text(location: Sequence[str | int]) -> str:
    """Return a location as text: spec.data.train[0].path."""
    parts = [f"[{key}]" if isinstance(key, int) else f".{key}" for key in location]
    return "".join(parts).removeprefix(".")


def all_paths(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """Yield every path below a model with its field, lists as `[]`: spec.data.train[].path."""
    for key, info in fields_of(model).items():
        path = f"{prefix}.{key}" if prefix else key
        yield path, info
        inner = model_in(info.annotation)
        if inner is not None:
            yield from all_paths(inner, f"{path}[]" if is_list(info.annotation) else path)


def values_at(root: BaseModel, path: str) -> Iterator[tuple[str, object]]:
    """Yield (concrete path, value) for a path such as "verifier.rewards[].type"; nothing where a parent is unset."""
    yield from _values(root, path.split("."), "")


def _values(value: object, keys: list[str], done: str) -> Iterator[tuple[str, object]]:
    if not keys:
        yield done, value
        return
    if not isinstance(value, BaseModel):
        return
    key = keys[0].removesuffix("[]")
    inner = getattr(value, attribute(type(value), key))
    path = f"{done}.{key}" if done else key
    if not keys[0].endswith("[]"):
        yield from _values(inner, keys[1:], path)
        return
    for index, item in enumerate(inner):
        yield from _values(item, keys[1:], f"{path}[{index}]")


def attribute(model: type[BaseModel], key: str) -> str:
    """Return the Python name of a YAML key. Raises KeyError for one that the model does not have."""
    for name, info in model.model_fields.items():
        if alias_of(name, info) == key:
            return name
    raise KeyError(f"{model.__name__} has no field {key}")
