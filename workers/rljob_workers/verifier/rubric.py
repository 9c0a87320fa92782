"""Which rewards grade a completion, and their grades -> one Verdict: weighted sum, named parts, the reason that matters
most.
"""

from collections.abc import Sequence

import rljob_api
from rljob_api import names, roles, types
from rljob_workers.verifier.graders import protocol

# What a verdict reports when its graders disagree: the first of these that any of them gave.
_RANK = (
    names.VerdictReason.INFRA_FAILURE,
    names.VerdictReason.TIMEOUT,
    names.VerdictReason.RESOURCE_LIMIT,
    names.VerdictReason.CRASH,
    names.VerdictReason.PARSE_ERROR,
    names.VerdictReason.NO_ANSWER,
    names.VerdictReason.WRONG,
    names.VerdictReason.OK,
)


def chosen(rewards: Sequence[roles.GraderConfig], suite: str) -> tuple[int, ...]:
    """Return the indexes of the rewards that grade a suite: its own, else those of training (suite "")."""
    own = tuple(index for index, reward in enumerate(rewards) if reward.suite == suite)
    return own or chosen(rewards, "") if suite else own


def combine(
    rewards: Sequence[roles.GraderConfig], grades: Sequence[protocol.Grade], item: types.VerifyItem
) -> types.Verdict:
    """Return the verdict: reward = sum of weight * score.

    If one grader could not judge, there is no reward at all: half a reward would be a lower one by accident.
    """
    if not rewards:
        raise ValueError("a verdict needs at least one reward")
    told = min(grades, key=lambda grade: _RANK.index(grade.reason))
    judged = told.reason is not names.VerdictReason.INFRA_FAILURE
    return types.Verdict(
        reward=_weighted_sum(rewards, grades) if judged else None,
        reason=told.reason,
        outcome=told.outcome,
        formatted=all(grade.formatted for grade in grades),
        truncated=item.truncated,
        extracted=told.extracted,
        detail=told.detail,
        parts=_parts(rewards, grades) if judged else {},
        grader="+".join(f"{reward.type}/{reward.mode}" for reward in rewards),
        cpu_s=sum(grade.cpu_s for grade in grades),
        wall_s=sum(grade.wall_s for grade in grades),
        attempt=item.attempt,
        case_results=told.case_results,
        error_code=told.error_code,
        grader_version=rljob_api.__version__,
    )


def _weighted_sum(rewards: Sequence[roles.GraderConfig], grades: Sequence[protocol.Grade]) -> float:
    return sum(reward.weight * (grade.score or 0.0) for reward, grade in zip(rewards, grades, strict=True))


def _parts(rewards: Sequence[roles.GraderConfig], grades: Sequence[protocol.Grade]) -> dict[str, float]:
    parts = {reward.name: grade.score or 0.0 for reward, grade in zip(rewards, grades, strict=True)}
    for reward, grade in zip(rewards, grades, strict=True):
        parts |= {f"{reward.name}.{name}": value for name, value in grade.parts.items()}
    return parts
