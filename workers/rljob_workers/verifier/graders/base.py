"""What a grader is: two pure steps over one completion and its record.

`quick` runs in the serving process: linear time on capped text, no library that could hang. It may decide or pass.
`grade` runs in a worker process that can be killed, and must decide.
An exception that a grader raises is a verdict on that one answer (`guarded`), never the end of its batch."""

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Protocol, TypeVar, runtime_checkable

from rljob_api import enums, errors, process_config
from rljob_api.manifest import reward_options

MAX_EXTRACTED_CHARS = 256
MAX_DETAIL_CHARS = 512

OptionsT = TypeVar("OptionsT", bound=reward_options.Options)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What is graded: the policy's text and the record's columns. Few graders read the ids, which may be empty.

    cpu_factor: seconds of this machine per reference second, for graders that keep limits of CPU time themselves.
    """

    prompt: str
    completion: str
    columns: Mapping[str, object]
    prompt_ids: tuple[int, ...] = ()
    completion_ids: tuple[int, ...] = ()
    cpu_factor: float = 1.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Grade:
    """One grader's word on one completion. `score` is None exactly for reason infra_failure; texts are cut.

    parts: named numbers behind the score. case_results, error_code: of programs, as in a Verdict.
    """

    score: float | None
    reason: enums.VerdictReason
    outcome: enums.VerifyOutcome
    formatted: bool = False
    extracted: str = ""
    detail: str = ""
    cpu_s: float = 0.0
    wall_s: float = 0.0
    parts: Mapping[str, float] = dataclasses.field(default_factory=dict)
    case_results: tuple[int, ...] = ()
    error_code: int | None = None

    def __post_init__(self) -> None:
        """Check the score and cut the texts."""
        if (self.score is None) != (self.reason is enums.VerdictReason.INFRA_FAILURE):
            raise ValueError(f"a grade with reason {self.reason} cannot have score {self.score}")
        if self.score is not None and not math.isfinite(self.score):
            raise ValueError(f"score {self.score} is not finite")
        object.__setattr__(self, "extracted", self.extracted[:MAX_EXTRACTED_CHARS])
        object.__setattr__(self, "detail", self.detail[:MAX_DETAIL_CHARS])


class Grader(Protocol):
    """One reward function; an instance serves any number of answers and holds caches only."""

    @property
    def needs_worker(self) -> bool:
        """Return False if `quick` always decides, so that no worker has to be kept for this grader."""

    def check(self, columns: Mapping[str, object]) -> None:
        """Raise DataError, naming the key, if this record cannot be graded."""

    def num_time_limits(self, columns: Mapping[str, object]) -> int:
        """Return how many times the reward's time limits one answer to this checked record may take, at least 1."""

    def warm(self) -> None:
        """Import what `grade` needs. Called once per worker, before its limits apply."""

    def quick(self, answer: Answer) -> Grade | None:
        """Return the grade if a cheap, bounded look decides, else None."""

    def grade(self, answer: Answer) -> Grade:
        """Return the grade. May take its time: the process is killed at its limit."""


@runtime_checkable
class ParsesReferences(Protocol):
    """A grader that parses references as expressions: one that it cannot parse matches as text only."""

    def unparsed_references(self, columns: Mapping[str, object]) -> list[str]:
        """Return the references of a checked record that are outside the parser's grammar or over its bounds."""


class SingleTimeLimit:
    """Base of a grader whose time limits are those of the whole answer."""

    def num_time_limits(self, columns: Mapping[str, object]) -> int:  # noqa: ARG002  # the Protocol's signature
        return 1


def passed(extracted: str, *, formatted: bool = True) -> Grade:
    """Return the grade of an equal answer."""
    return Grade(
        score=1.0,
        reason=enums.VerdictReason.OK,
        outcome=enums.VerifyOutcome.PASS,
        formatted=formatted,
        extracted=extracted,
    )


def failed(reason: enums.VerdictReason, *, extracted: str = "", formatted: bool = False, detail: str = "") -> Grade:
    """Return a grade of 0 for an answer that was looked at and is not right."""
    return Grade(
        score=0.0,
        reason=reason,
        outcome=enums.VerifyOutcome.FAIL,
        formatted=formatted,
        extracted=extracted,
        detail=detail,
    )


def options(kind: type[OptionsT], config: process_config.GraderConfig) -> OptionsT:
    """Return the parsed options. Raises ManifestError with one sentence per problem."""
    where = f"reward {config.name!r} (type {config.type}): config"
    wrong = [
        f"{where}.{path} is {value!r}, but {reason}"
        for path, value, reason in reward_options.problems(config.type, config.config, model=kind)
    ]
    if wrong:
        raise errors.ManifestError(*wrong)
    return kind.model_validate(config.config)


Decide = Callable[[Answer], Grade | None]


def guarded(decide: Decide, answer: Answer) -> Grade | None:
    """Return what `decide` returns, or the grade of its failure. The completion's text is not in the detail.

    Raises GraderError: a reward function that returns no number is wrong for every answer.
    """
    try:
        return decide(answer)
    except errors.GraderError:
        raise
    except MemoryError:
        grade = failed(enums.VerdictReason.RESOURCE_LIMIT, detail="memory limit")
        return replace(grade, outcome=enums.VerifyOutcome.OOM)
    except RecursionError:
        return failed(enums.VerdictReason.PARSE_ERROR, detail="nested too deep")
    except Exception as error:  # noqa: BLE001  # the named boundary
        return failed(enums.VerdictReason.CRASH, detail=f"the grader raised {type(error).__name__}")
