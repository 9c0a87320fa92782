"""The options of each reward type: what `verifier.rewards[].config` may hold. Their meaning: the graders themselves.

Here and not beside the graders, because a wrong option is refused when the job is admitted.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Literal

import pydantic
import pydantic.alias_generators


class Options(pydantic.BaseModel):
    """Base of a reward's `config`: camelCase keys, unknown ones refused."""

    model_config = pydantic.ConfigDict(
        alias_generator=pydantic.alias_generators.to_camel, populate_by_name=True, extra="forbid", frozen=True
    )


class ExactOptions(Options):
    """Options of `exact`."""

    ignore_case: bool = False
    first_line: bool = False


class MathOptions(Options):
    """Options of `math`."""

    boxed_only: bool = False


class GymOptions(Options):
    """Options of `reasoning_gym`."""

    require_tags: bool = False
    binary: bool = False
    datasets: tuple[str, ...] = ()


class SolutionOptions(Options):
    """Options of `areal-math`, `areal-code` and `code`: a file of golds or tests; empty: the data source itself."""

    solution_path: str = ""


class RepositoryOptions(Options):
    """Options of `repository-tests`: none; all there is to say stands in the record."""


class Gsm8kOptions(Options):
    """Options of `gsm8k`. `method` is an extraction rule and has nothing to do with `mode`."""

    method: Literal["strict", "flexible", "math_verify"] = "strict"
    format_score: float = pydantic.Field(default=0.0, ge=0.0, le=1.0)
    precision: int = pydantic.Field(default=6, ge=1, le=15)


class ClevrOptions(Options):
    """Options of `clevr_count_70k`. `method` is for hashes."""

    answer_format: Literal["brackets", "hashes"] = "brackets"
    method: Literal["strict", "flexible"] = "strict"


class BoxedOptions(Options):
    """Options of `boxed`."""

    verifier_version: Literal["fast", "math_verify"] = "fast"


class AnswerTagOptions(BoxedOptions):
    """Options of `answer_tag`."""

    tag_rule: Literal["exact", "loose"] = "exact"


class CustomOptions(Options):
    """Options of `module:function`: weights by name of what it returns; whatever else there is goes to the function."""

    model_config = pydantic.ConfigDict(extra="allow")

    weights: dict[str, pydantic.FiniteFloat] = pydantic.Field(default_factory=dict)

    @pydantic.field_validator("weights", mode="before")
    @classmethod
    def _numbers(cls, value: object) -> object:
        """Refuse what pydantic would turn into numbers."""
        if isinstance(value, Mapping) and not all(_is_number(weight) for weight in value.values()):
            raise ValueError("must map names to finite numbers")
        return value


OPTIONS: Mapping[str, type[Options]] = {
    "answer_tag": AnswerTagOptions,
    "areal-code": SolutionOptions,
    "areal-math": SolutionOptions,
    "boxed": BoxedOptions,
    "clevr_count_70k": ClevrOptions,
    "code": SolutionOptions,
    "exact": ExactOptions,
    "gsm8k": Gsm8kOptions,
    "math": MathOptions,
    "reasoning_gym": GymOptions,
    "repository-tests": RepositoryOptions,
}


def problems(type_: str, config: Mapping[str, object]) -> Iterator[tuple[str, object, str]]:
    """Yield path below `config`, value and what would be right, for each option that is wrong."""
    kind = CustomOptions if ":" in type_ else OPTIONS[type_]
    try:
        kind.model_validate(config)
    except pydantic.ValidationError as error:
        for problem in error.errors():
            path = ".".join(str(part) for part in problem["loc"])
            yield path, problem["input"], _reason(type_, kind, problem["type"], problem["msg"])


def _reason(type_: str, kind: type[Options], problem: str, message: str) -> str:
    if problem != "extra_forbidden":
        return message[:1].lower() + message[1:]
    known = ", ".join(str(field.alias) for field in kind.model_fields.values())
    return f"{type_} has no such option; it has {known or 'none'}"


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
