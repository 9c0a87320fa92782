"""One Verdict from the grades of a completion: the weighted sum, named parts, and the most important reason. Pure."""

from collections.abc import Mapping, Sequence

import rljob_api
from rljob_api import enums, errors, process_config, types
from rljob_workers.data import record_task
from rljob_workers.verifier.graders import base


def combine(
    rewards: Sequence[process_config.GraderConfig], grades: Sequence[base.Grade], item: types.VerifyItem
) -> types.Verdict:
    """Return the verdict: reward = sum of weight * score.

    If one grader could not judge, there is no reward at all: half a reward would be a lower one by accident.
    """
    if not rewards:
        raise ValueError("a verdict needs at least one reward")
    decisive = min(grades, key=lambda grade: enums.VERDICT_RANK.index(grade.reason))
    judged = decisive.reason is not enums.VerdictReason.INFRA_FAILURE
    return types.Verdict(
        reward=_weighted_sum(rewards, grades) if judged else None,
        reason=decisive.reason,
        outcome=decisive.outcome,
        formatted=all(grade.formatted for grade in grades),
        truncated=item.truncated,
        extracted=decisive.extracted,
        detail=decisive.detail,
        parts=_parts(rewards, grades) if judged else {},
        grader="+".join(f"{reward.type}/{reward.mode}" for reward in rewards),
        cpu_s=sum(grade.cpu_s for grade in grades),
        wall_s=sum(grade.wall_s for grade in grades),
        attempt=item.attempt,
        case_results=decisive.case_results,
        error_code=decisive.error_code,
        grader_version=rljob_api.__version__,
    )


def _weighted_sum(rewards: Sequence[process_config.GraderConfig], grades: Sequence[base.Grade]) -> float:
    return sum(reward.weight * (grade.score or 0.0) for reward, grade in zip(rewards, grades, strict=True))


def _parts(rewards: Sequence[process_config.GraderConfig], grades: Sequence[base.Grade]) -> dict[str, float]:
    parts = {reward.name: grade.score or 0.0 for reward, grade in zip(rewards, grades, strict=True)}
    for reward, grade in zip(rewards, grades, strict=True):
        parts |= {f"{reward.name}.{name}": value for name, value in grade.parts.items()}
    return parts


def graded_by(
    rewards: Sequence[process_config.GraderConfig], indexes: Sequence[int], columns: Mapping[str, object]
) -> tuple[int, ...]:
    """Return those of `indexes` into `rewards` that grade a record. Raises DataError for a task that none is for."""
    if not by_task(rewards, indexes):
        return tuple(indexes)
    tasks = [task for index in indexes for task in rewards[index].tasks]
    task = record_task.of(columns)
    if task not in tasks:
        # Not the value: this sentence is logged, and a record may hold anything.
        raise errors.DataError(f"{record_task.TASK!r} must be one of {', '.join(tasks)}")
    return tuple(index for index in indexes if not rewards[index].tasks or task in rewards[index].tasks)


def by_task(rewards: Sequence[process_config.GraderConfig], indexes: Sequence[int]) -> bool:
    """Return whether these rewards are distinguished by the record's task."""
    return any(rewards[index].tasks for index in indexes)
