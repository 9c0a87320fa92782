"""Grades of several graders become one verdict."""

import math

import hypothesis
import pytest
from hypothesis import strategies as st

import rljob_api
from rljob_api import enums, process_config, types
from rljob_api.manifest.base import Decimal
from rljob_workers.verifier import pool, rubric
from rljob_workers.verifier.graders import base

ITEM = types.VerifyItem(sample_id="s", attempt=3, prompt="", completion="", columns={}, truncated=True)
WEIGHTS = st.floats(-10, 10, allow_nan=False)


def reward(name: str, weight: float = 1.0) -> process_config.GraderConfig:
    return process_config.GraderConfig(name=name, type="exact", weight=Decimal(weight))


def scored(score: float) -> base.Grade:
    return base.Grade(score=score, reason=enums.VerdictReason.WRONG, outcome=enums.VerifyOutcome.FAIL, formatted=True)


@pytest.mark.covers("graders 2.1")
@hypothesis.given(pairs=st.lists(st.tuples(WEIGHTS, st.floats(0, 1)), min_size=1, max_size=5))
def test_reward_is_the_weighted_sum_and_parts_are_the_raw_scores(pairs: list[tuple[float, float]]) -> None:
    rewards = [reward(f"r{index}", weight) for index, (weight, _) in enumerate(pairs)]
    verdict = rubric.combine(rewards, [scored(score) for _, score in pairs], ITEM)
    assert verdict.reward == pytest.approx(math.fsum(weight * score for weight, score in pairs), abs=1e-9)
    assert verdict.parts == {f"r{index}": score for index, (_, score) in enumerate(pairs)}


@pytest.mark.covers("graders 2.1")
@hypothesis.given(position=st.integers(0, 3))
def test_one_infrastructure_failure_leaves_no_reward_at_all(position: int) -> None:
    grades = [base.passed("5") for _ in range(4)]
    grades[position] = pool.infra("node lost")
    verdict = rubric.combine([reward(f"r{index}") for index in range(4)], grades, ITEM)
    assert verdict.reward is None
    assert verdict.reason is enums.VerdictReason.INFRA_FAILURE
    assert verdict.parts == {}


def test_reason_is_the_gravest_and_ok_needs_all() -> None:
    rewards = [reward("a"), reward("b")]
    mixed = rubric.combine(rewards, [base.passed("5"), base.failed(enums.VerdictReason.NO_ANSWER)], ITEM)
    assert (mixed.reason, mixed.reward, mixed.formatted) == (enums.VerdictReason.NO_ANSWER, 1.0, False)
    timeout = rubric.combine(rewards, [base.failed(enums.VerdictReason.WRONG), pool.timed_out(5)], ITEM)
    assert (timeout.reason, timeout.outcome) == (enums.VerdictReason.TIMEOUT, enums.VerifyOutcome.TIMEOUT_CPU)
    good = rubric.combine(rewards, [base.passed("5"), base.passed("5")], ITEM)
    assert (good.reason, good.outcome, good.reward) == (enums.VerdictReason.OK, enums.VerifyOutcome.PASS, 2.0)


@pytest.mark.covers("graders 2.1")
def test_truncation_and_attempt_are_copied_and_the_grader_is_named() -> None:
    verdict = rubric.combine([reward("a"), reward("b")], [base.passed("5"), base.passed("5")], ITEM)
    assert (verdict.truncated, verdict.attempt, verdict.grader) == (True, 3, "exact/Strict+exact/Strict")
    assert verdict.grader_version == rljob_api.__version__


def test_a_suite_with_rewards_of_its_own_is_graded_by_those_and_any_other_by_the_ones_of_training() -> None:
    rewards = [reward("a"), reward("b").model_copy(update={"suite": "maths"}), reward("c")]
    assert process_config.graders_of(rewards, "maths") == (1,)
    assert process_config.graders_of(rewards, "plain") == (0, 2)
    assert process_config.graders_of(rewards, "") == (0, 2)
