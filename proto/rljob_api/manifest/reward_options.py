"""Reward types: one class each, with its options (`verifier.rewards[].config`) and what other parts must know of it.

What an option means, the grader itself says. The classes are here and not with the graders, because a wrong option is
refused when the job is admitted, by a process that has no grader installed.
To add a reward type: a class here, an entry in OPTIONS, and the grader (docs/contributing.md).
"""

import math
from collections.abc import Iterator, Mapping
from typing import ClassVar, Literal

import pydantic
import pydantic.alias_generators

from rljob_api import plugins

DEFAULT_CPU_S = 10.0


class Options(pydantic.BaseModel):
    """Base of a reward's `config`: camelCase keys, unknown ones refused.

    reproduces: whether the grader reproduces a published one, and has mode compat for that.
    runs: what of the policy's text it executes: nothing, a program, or the tests of a repository that it changes.
    tasks: the tasks whose records it grades in the environment math_code_single_step; empty: records of any task.
    """

    model_config = pydantic.ConfigDict(
        alias_generator=pydantic.alias_generators.to_camel, populate_by_name=True, extra="forbid", frozen=True
    )

    reproduces: ClassVar[bool] = False
    runs: ClassVar[Literal["", "program", "repository"]] = ""
    tasks: ClassVar[tuple[str, ...]] = ()

    def cpu_s(self, mode: str) -> float:  # noqa: ARG002  # some types have a limit per mode
        """Return the CPU limit where the manifest sets none: seconds of the reference machine for one time limit."""
        return DEFAULT_CPU_S


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
    """A file of references or tests; empty: the data source itself."""

    solution_path: str = ""


class CodeOptions(SolutionOptions):
    """Options of `code`. The limit is of one test case."""

    runs = "program"

    def cpu_s(self, mode: str) -> float:  # noqa: ARG002
        return 6.0


class ArealCodeOptions(CodeOptions):
    """Options of `areal-code`."""

    reproduces = True
    tasks = ("code",)


class ArealMathOptions(SolutionOptions):
    """Options of `areal-math`. The limit is of one pair of answer and reference."""

    reproduces = True
    tasks = ("math", "stem")

    def cpu_s(self, mode: str) -> float:
        """Return the original's limit in mode compat, a shorter one in mode strict."""
        return 15.0 if mode == "Compat" else 5.0


class RepositoryOptions(Options):
    """Options of `repository-tests`: none; the record says everything."""

    runs = "repository"


class Gsm8kOptions(Options):
    """Options of `gsm8k`. `method` is an extraction rule and has nothing to do with `mode`."""

    reproduces = True

    method: Literal["strict", "flexible", "math_verify"] = "strict"
    format_score: float = pydantic.Field(default=0.0, ge=0.0, le=1.0)
    precision: int = pydantic.Field(default=6, ge=1, le=15)

    def cpu_s(self, mode: str) -> float:  # noqa: ARG002
        return 5.0 if self.method == "math_verify" else 1.0


class ClevrOptions(Options):
    """Options of `clevr_count_70k`. `method` is for hashes."""

    reproduces = True

    answer_format: Literal["brackets", "hashes"] = "brackets"
    method: Literal["strict", "flexible"] = "strict"

    def cpu_s(self, mode: str) -> float:  # noqa: ARG002
        return 1.0


class BoxedOptions(Options):
    """Options of `boxed`."""

    reproduces = True

    verifier_version: Literal["fast", "math_verify"] = "fast"

    def cpu_s(self, mode: str) -> float:  # noqa: ARG002
        return 3.0 if self.verifier_version == "math_verify" else 1.0


class AnswerTagOptions(BoxedOptions):
    """Options of `answer_tag`."""

    tag_rule: Literal["exact", "loose"] = "exact"


class PluginOptions(Options):
    """Options of `plugin:<name>`: any; the plugin's own model checks them where the plugin is installed."""

    model_config = pydantic.ConfigDict(extra="allow")


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


# Our own types first, then those that reproduce a published grader.
OPTIONS: Mapping[str, type[Options]] = {
    "math": MathOptions,
    "code": CodeOptions,
    "repository-tests": RepositoryOptions,
    "exact": ExactOptions,
    "reasoning_gym": GymOptions,
    "boxed": BoxedOptions,
    "answer_tag": AnswerTagOptions,
    "gsm8k": Gsm8kOptions,
    "clevr_count_70k": ClevrOptions,
    "areal-math": ArealMathOptions,
    "areal-code": ArealCodeOptions,
}


def is_function(type_: str) -> bool:
    """Return whether a reward type is `module:function`."""
    return ":" in type_ and not plugins.plugin_name(type_)


def options_class(type_: str) -> type[Options]:
    """Raises KeyError for an unknown one."""
    if plugins.plugin_name(type_):
        return PluginOptions
    return CustomOptions if is_function(type_) else OPTIONS[type_]


def problems(
    type_: str, config: Mapping[str, object], *, model: type[pydantic.BaseModel] | None = None
) -> Iterator[tuple[str, object, str]]:
    """Yield path below `config`, value and what would be right, for each option that is wrong.

    model: the class of the options, by default that of the type.
    """
    kind = model or options_class(type_)
    try:
        kind.model_validate(config)
    except pydantic.ValidationError as error:
        for problem in error.errors():
            path = ".".join(str(part) for part in problem["loc"])
            yield path, problem["input"], _reason(type_, kind, problem["type"], problem["msg"])


def _reason(type_: str, kind: type[pydantic.BaseModel], problem: str, message: str) -> str:
    if problem != "extra_forbidden":
        return message[:1].lower() + message[1:]
    options = ", ".join(str(field.alias) for field in kind.model_fields.values())
    return f"{type_} has no such option; it has {options or 'none'}"


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
