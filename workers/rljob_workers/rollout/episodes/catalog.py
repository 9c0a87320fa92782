"""`workflow.type` to a collector: a discriminated union that refuses unknown names and keys."""

from collections.abc import Mapping
from typing import Annotated, Literal

import pydantic

from rljob_api import errors
from rljob_workers.rollout.episodes import protocols, rlvr


class RlvrConfig(pydantic.BaseModel):
    """`workflow.config` of rlvr: it has no options."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)

    type: Literal["rlvr"]


_WORKFLOWS: pydantic.TypeAdapter[RlvrConfig] = pydantic.TypeAdapter(
    Annotated[RlvrConfig, pydantic.Field(description="one member per served workflow")]
)
KNOWN = ("rlvr",)


def make_collector(
    *,
    workflow: str,
    config: Mapping[str, object],
    tokens: protocols.Tokens,
    template: str,
    max_model_len: int,
) -> protocols.RolloutCollector:
    """Return the collector of `workflow`. Raises ManifestError that names the field, its value and what there is."""
    if workflow not in KNOWN:
        raise errors.ManifestError(f"spec.workflow.type is '{workflow}', but must be one of {', '.join(KNOWN)}")
    try:
        _WORKFLOWS.validate_python({"type": workflow, **config})
    except pydantic.ValidationError as error:
        problems = (".".join(str(part) for part in problem["loc"]) for problem in error.errors())
        raise errors.ManifestError(
            *(f"spec.workflow.config.{field} does not belong to workflow '{workflow}'; remove it" for field in problems)
        ) from error
    return rlvr.RlvrCollector(tokens=tokens, template=template, max_model_len=max_model_len)
