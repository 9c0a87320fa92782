"""`workflow.type` to a collector: a discriminated union that refuses unknown names and keys."""

from collections.abc import Mapping
from typing import Annotated, Literal

import pydantic
import pydantic_core

from rljob_api import errors
from rljob_workers.rollout.episodes import custom, multi_turn, protocols, rlvr, single_step


class RlvrConfig(pydantic.BaseModel):
    """`workflow.config` of rlvr: it has no options."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)

    type: Literal["rlvr"]


Config = RlvrConfig | single_step.SingleStepConfig | multi_turn.MultiTurnConfig
_WORKFLOWS: pydantic.TypeAdapter[Config] = pydantic.TypeAdapter(Annotated[Config, pydantic.Field(discriminator="type")])
KNOWN = ("rlvr", "math_code_single_step", "multi_turn_math")


def make_collector(
    *,
    workflow: str,
    config: Mapping[str, object],
    tokens: protocols.Tokens,
    template: str,
    max_model_len: int,
    code: str = "",
) -> protocols.RolloutCollector:
    """Return the collector of `workflow`, which may be module:Class; `code` is the user's file.

    Raises ManifestError that names the field, its value and what there is.
    """
    if ":" in workflow:
        return custom.make_collector(
            workflow, file=code, config=config, tokens=tokens, template=template, max_model_len=max_model_len
        )
    if workflow not in KNOWN:
        raise errors.ManifestError(
            f"spec.workflow.type is '{workflow}', but must be one of {', '.join(KNOWN)}, or module:Class"
        )
    if "type" in config:
        raise errors.ManifestError("spec.workflow.config.type does not exist; spec.workflow.type names the workflow")
    try:
        options = _WORKFLOWS.validate_python({"type": workflow, **config})
    except pydantic.ValidationError as error:
        raise errors.ManifestError(*(_problem(workflow, problem) for problem in error.errors())) from error
    if isinstance(options, multi_turn.MultiTurnConfig):
        return multi_turn.MultiTurnCollector(options, tokens=tokens, template=template, max_model_len=max_model_len)
    if isinstance(options, single_step.SingleStepConfig):
        return single_step.make_collector(tokens=tokens, template=template, max_model_len=max_model_len)
    return rlvr.RlvrCollector(tokens=tokens, template=template, max_model_len=max_model_len)


def _problem(workflow: str, problem: pydantic_core.ErrorDetails) -> str:
    # The first part of the place is the union's member.
    field = ".".join(str(part) for part in problem["loc"][1:])
    if problem["type"] == "extra_forbidden":
        return f"spec.workflow.config.{field} does not belong to workflow '{workflow}'; remove it"
    return f"spec.workflow.config.{field} is {problem['input']!r}: {problem['msg']}"
