"""What a grader is: two pure steps over one completion and its record.

`quick` runs in the serving process: linear time on capped text, no library that could hang. It may decide or pass.
`grade` runs in a worker process that can be killed, and must decide.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Protocol, TypeVar

import pydantic
import pydantic.alias_generators

from rljob_api import errors, names, roles

MAX_EXTRACTED_CHARS = 256
MAX_DETAIL_CHARS = 512

OptionsT = TypeVar("OptionsT", bound="Options")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What is graded: the policy's text and the record's columns."""

    prompt: str
    completion: str
    columns: Mapping[str, object]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Grade:
    """One grader's word on one completion. `score` is None exactly for reason infra_failure; texts are cut."""

    score: float | None
    reason: names.VerdictReason
    outcome: names.VerifyOutcome
    formatted: bool = False
    extracted: str = ""
    detail: str = ""
    cpu_s: float = 0.0
    wall_s: float = 0.0

    def __post_init__(self) -> None:
        """Check the score and cut the texts."""
        if (self.score is None) != (self.reason is names.VerdictReason.INFRA_FAILURE):
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

    def warm(self) -> None:
        """Import what `grade` needs. Called once per worker, before its limits apply."""

    def quick(self, answer: Answer) -> Grade | None:
        """Return the grade if a cheap, bounded look decides, else None."""

    def grade(self, answer: Answer) -> Grade:
        """Return the grade. May take its time: the process is killed at its limit."""


def passed(extracted: str, *, formatted: bool = True) -> Grade:
    """Return the grade of an equal answer."""
    return Grade(
        score=1.0,
        reason=names.VerdictReason.OK,
        outcome=names.VerifyOutcome.PASS,
        formatted=formatted,
        extracted=extracted,
    )


def failed(reason: names.VerdictReason, *, extracted: str = "", formatted: bool = False, detail: str = "") -> Grade:
    """Return a grade of 0 for an answer that was looked at and is not right."""
    return Grade(
        score=0.0,
        reason=reason,
        outcome=names.VerifyOutcome.FAIL,
        formatted=formatted,
        extracted=extracted,
        detail=detail,
    )


class Options(pydantic.BaseModel):
    """Base of a grader's `config`: camelCase keys, unknown ones refused."""

    model_config = pydantic.ConfigDict(
        alias_generator=pydantic.alias_generators.to_camel, populate_by_name=True, extra="forbid", frozen=True
    )


def options(kind: type[OptionsT], config: roles.GraderConfig) -> OptionsT:
    """Return the parsed options. Raises ManifestError with one sentence per problem."""
    try:
        return kind.model_validate(config.config)
    except pydantic.ValidationError as error:
        where = f"reward {config.name!r} (type {config.type}): config"
        problems = [(".".join(str(part) for part in problem["loc"]), problem["msg"]) for problem in error.errors()]
        raise errors.ManifestError(*(f"{where}.{field}: {message}" for field, message in problems)) from error
