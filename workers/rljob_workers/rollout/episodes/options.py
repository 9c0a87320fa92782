"""A manifest's options as their model: each one that is wrong is named by its path and value."""

from typing import TypeVar

import pydantic

from rljob_api import errors

Model = TypeVar("Model", bound=pydantic.BaseModel)


def validated(model: type[Model], value: object, field: str, *, owner: str = "") -> Model:
    """Return options as their model; `owner` is whose options they are. Raises ManifestError."""
    try:
        return model.model_validate(value)
    except pydantic.ValidationError as error:
        raise errors.ManifestError(*(_sentence(dict(problem), field, owner) for problem in error.errors())) from error


def _sentence(problem: dict[str, object], field: str, owner: str) -> str:
    place = problem["loc"]
    assert isinstance(place, tuple), "pydantic's places are tuples"
    path = ".".join([field, *map(str, place)])
    if owner and problem["type"] == "extra_forbidden":
        return f"{path} does not belong to {owner}; remove it"
    return f"{path} is {problem['input']!r}: {problem['msg']}"
