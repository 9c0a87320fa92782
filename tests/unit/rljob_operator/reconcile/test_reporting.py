import dataclasses
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_api import enums, types
from rljob_api.manifest.status import AttemptStatus, CheckpointStatus, JobStatus, TrainerStatus
from rljob_operator.model import Report
from rljob_operator.reconcile import status as reporting

RUN = types.RunStatus(
    job="job",
    phase=enums.Phase.RUNNING,
    step=7,
    published_version=9,
    live_version=8,
    oldest_serving_version=6,
    version_lag_steps=2,
    trajectories={"accepted": 40, "stale": 3, "infra_failure": 2, "filtered": 1},
    left_out={"too_long": 5, "invalid_record": 6},
    dump_failures=4,
    reward_mean=0.1250000001,
    checkpoint_step=5,
    checkpoint_uri="/state/5",
    checkpoint_at=100.0,
    config_generation=3,
    evaluations=(
        types.EvaluationResult(suite="held-out", step=4, version=4, accuracy=0.25, n=8, score=0.3, pass_at_k=0.3),
        types.EvaluationResult(suite="held-out", step=6, version=6, accuracy=0.5, n=8, score=0.6, pass_at_k=0.6),
    ),
)


def told(run: types.RunStatus = RUN, status: JobStatus | None = None, *, started_at: float | None = 0.0) -> JobStatus:
    report = Report(run=run, read_at=200.0)
    return reporting.with_report(status or JobStatus(), report, started_at=started_at, now=200.0)


def test_status_shows_what_the_coordinator_reports() -> None:
    shown = told().model_dump(by_alias=True, exclude_none=True, mode="json")
    assert shown["step"] == 7
    assert shown["version"] == {"published": 9, "live": 8, "oldestServing": 6, "lag": 2}
    assert shown["trajectories"] == {
        "accepted": 40, "stale": 3, "infraFailed": 2, "filtered": 1, "tooLong": 5, "invalidRecord": 6,
        "dumpFailures": 4,
    }  # fmt: skip
    assert shown["reward"] == {"mean": "0.125", "step": 7}
    assert shown["lastCheckpoint"] == {"step": 5, "uri": "/state/5", "time": "1970-01-01T00:01:40Z"}
    assert shown["evaluation"] == [{"suite": "held-out", "accuracy": "0.5", "step": 6}], "the last score of a suite"
    assert shown["configGeneration"] == 3


def test_number_of_supervised_steps_is_shown_where_there_are_any() -> None:
    assert told(dataclasses.replace(RUN, sft_steps=20)).sft_steps == 20
    assert told().sft_steps is None


PACE = {"step_s": 4.25, "tokens_per_s": 412.0, "trainer_wait_share": 0.08, "rollout_wait_share": 0.314}


def test_pace_is_told_once_per_step_so_that_a_run_between_two_steps_causes_no_write() -> None:
    first = told(dataclasses.replace(RUN, **PACE, reward_delta=-0.03))
    assert first.pace is not None
    assert first.pace.model_dump(by_alias=True, mode="json") == {
        "step": 7, "stepSeconds": "4.25", "tokensPerSecond": "412", "trainerWaitShare": "0.08",
        "rolloutWaitShare": "0.314", "rewardDelta": "-0.03",
    }  # fmt: skip
    faster = dataclasses.replace(RUN, **{**PACE, "tokens_per_s": 500.0})
    assert told(faster, first) == told(dataclasses.replace(RUN, **PACE), first)
    later = told(dataclasses.replace(faster, step=8), first)
    assert later.pace is not None
    assert (later.pace.step, later.pace.tokens_per_second) == (8, 500.0)


def test_pace_is_left_out_before_the_first_step_and_where_a_number_is_none() -> None:
    assert told(dataclasses.replace(RUN, step=0)).pace is None
    assert told(dataclasses.replace(RUN, reward_delta=math.nan)).pace is None


def test_without_a_report_the_status_stays_as_it_is() -> None:
    status = told()
    assert reporting.with_report(status, None, started_at=0.0, now=300.0) == status
    assert reporting.on_latest(status, None) is None


def attempt(number: int, *, resume_step: int = 0, at: float = 0.0) -> types.TrainerAttempt:
    return types.TrainerAttempt(attempt=number, resume_step=resume_step, first_step_at=at)


RESUMED = JobStatus().model_copy(
    update={
        "first_attempt": 2,
        "trainer": TrainerStatus(
            attempts=(AttemptStatus(number=1, end="1970-01-01T00:00:10Z", step=49, reason="SuspendRequested"),)
        ),
    }
)


@pytest.mark.parametrize(
    ("attempts", "stepped_at"),
    [
        ((attempt(1, at=5.0),), None),
        ((attempt(1, at=5.0), attempt(2, resume_step=40)), None),
        ((attempt(1, at=5.0), attempt(2, resume_step=40, at=120.0)), "1970-01-01T00:02:00Z"),
        ((attempt(2, resume_step=40, at=120.0), attempt(3, resume_step=40)), "1970-01-01T00:02:00Z"),
        ((attempt(2, resume_step=40), attempt(3, resume_step=40, at=150.0)), "1970-01-01T00:02:30Z"),
        ((attempt(2, resume_step=40), attempt(3, resume_step=45)), "1970-01-01T00:03:20Z"),
    ],
    ids=[
        "another segment's step",
        "it has only loaded",
        "below the highest step of an attempt before",
        "an attempt that failed made it",
        "the second attempt made it",
        "a checkpoint was taken on the way",
    ],
)
def test_first_step_is_that_of_the_segment_and_not_of_the_run(
    attempts: tuple[types.TrainerAttempt, ...], stepped_at: str | None
) -> None:
    run = dataclasses.replace(RUN, step=42, attempts=attempts)
    assert told(run, RESUMED).first_step_time == stepped_at
    assert told(run, RESUMED, started_at=None).first_step_time is None, "a segment without a pod has no step"


def test_first_step_that_was_done_while_nobody_asked_is_known_by_its_own_time() -> None:
    run = dataclasses.replace(RUN, step=300, attempts=(attempt(1, at=20.0),))
    assert told(run).first_step_time == "1970-01-01T00:00:20Z"
    assert told(run, started_at=50.0).first_step_time == "1970-01-01T00:00:50Z", "a node's clock may go wrong"
    ahead = dataclasses.replace(RUN, attempts=(attempt(1, at=9999.0),))
    assert told(ahead).first_step_time == "1970-01-01T00:03:20Z"


def test_steps_before_a_ledger_was_lost_count() -> None:
    run = dataclasses.replace(RUN, step=7, attempts=(attempt(2, resume_step=7),))
    assert told(run).first_step_time == "1970-01-01T00:03:20Z"


def test_coordinator_of_an_older_version_that_tells_of_no_attempt_is_judged_by_its_steps() -> None:
    assert told(dataclasses.replace(RUN, step=0)).first_step_time is None
    assert told(dataclasses.replace(RUN, step=1)).first_step_time == "1970-01-01T00:03:20Z"
    checkpoint = RESUMED.model_copy(update={"last_checkpoint": CheckpointStatus(step=40)})
    assert told(dataclasses.replace(RUN, step=40), checkpoint).first_step_time is None
    assert told(dataclasses.replace(RUN, step=41), checkpoint).first_step_time == "1970-01-01T00:03:20Z"


def test_rollouts_on_the_newest_version_are_counted() -> None:
    pods = [types.PodStatus(role="rollout", pod=f"r{number}", serving_version=number) for number in (8, 9, 9)]
    others = [types.PodStatus(role="trainer", pod="t", serving_version=9)]
    report = Report(run=dataclasses.replace(RUN, pods=pods + others), read_at=0.0)
    assert reporting.on_latest(JobStatus(), report) == 2


@pytest.mark.parametrize(
    ("value", "text"), [(0.0, "0"), (-0.00001, "0"), (1.0, "1"), (0.123456, "0.1235"), (-2.5, "-2.5"), (100.0, "100")]
)
def test_fraction_is_a_decimal_string_of_four_digits(value: float, text: str) -> None:
    assert str(reporting.decimal(value)) == text


@given(st.floats(min_value=-1e6, max_value=1e6))
def test_decimal_string_is_within_half_a_digit_of_the_number(value: float) -> None:
    assert abs(float(reporting.decimal(value)) - value) <= 0.5e-4 + 1e-9


def test_run_that_diverged_is_shown_without_the_numbers_that_it_has_not() -> None:
    lost = types.EvaluationResult(suite="lost", step=6, version=6, accuracy=float("nan"), n=8, score=0.0, pass_at_k=0.0)
    shown = told(dataclasses.replace(RUN, reward_mean=float("nan"), evaluations=(lost,)))
    assert (shown.step, shown.reward, shown.evaluation) == (7, None, ())


def test_number_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="finite"):
        reporting.decimal(float("nan"))
