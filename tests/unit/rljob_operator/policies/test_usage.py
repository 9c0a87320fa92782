"""What a job has used: exact sums of whole seconds, whatever the operator saw of them."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_api import enums, types
from rljob_api.manifest.base import Decimal
from rljob_api.manifest.status import UsageStatus
from rljob_operator import clock
from rljob_operator.model import Pod
from rljob_operator.policies import usage

R, T = enums.Role.ROLLOUT, enums.Role.TRAINER
NOW = 1_800_000_000


def pod(name: str = "p", *, role: enums.Role = R, begin: float = NOW, end: float = 0.0, **changes: object) -> Pod:
    phase = "Succeeded" if end else "Running"
    base = Pod(name=name, uid=name, role=role, phase=phase, scheduled_at=begin, finished_at=end, gpus=2, cpu_milli=1500)
    return dataclasses.replace(base, **changes)


def run(**tokens: int) -> types.RunStatus:
    return types.RunStatus(job="job", phase=enums.Phase.RUNNING, tokens=tokens)


def used(before: UsageStatus | None, pods: list[Pod], now: float) -> UsageStatus:
    after = usage.usage(before, pods, None, now=now)
    assert after is not None
    return after


def test_a_pod_counts_what_it_asks_for_from_its_node_to_its_end() -> None:
    after = used(None, [pod(end=NOW + 100), pod("t", role=T, begin=NOW + 10)], NOW + 60.9)
    assert (after.gpu_seconds, after.as_of) == (2 * 60 + 2 * 50, clock.to_timestamp(NOW + 60))
    assert after.cpu_core_seconds == Decimal("165.000")
    assert [(row.name, row.gpu_seconds, str(row.cpu_core_seconds)) for row in after.roles] == [
        ("rollout", 120, "90.000"),
        ("trainer", 100, "75.000"),
    ]
    later = used(after, [pod(end=NOW + 100), pod("t", role=T, begin=NOW + 10)], NOW + 1000)
    assert later.gpu_seconds == 2 * 100 + 2 * 990


def test_an_operator_that_was_away_adds_what_the_times_of_pods_say() -> None:
    before = used(None, [pod()], NOW + 10)
    after = used(before, [pod(end=NOW + 500), pod("new", begin=NOW + 300)], NOW + 1000)
    assert after.gpu_seconds == 2 * 500 + 2 * 700


@pytest.mark.parametrize(
    "one",
    [
        pod(begin=0.0),
        pod(begin=NOW + 50),
        # A node that was lost reports no end: nothing of it is made up.
        pod(phase="Failed"),
        pod(gpus=0, cpu_milli=0),
    ],
)
def test_a_pod_without_a_node_or_an_end_or_a_request_counts_nothing(one: Pod) -> None:
    after = used(None, [one], NOW + 20)
    assert (after.gpu_seconds, after.cpu_core_seconds) == (0, 0)


def test_a_job_that_never_had_a_pod_has_no_usage_and_one_that_had_keeps_it() -> None:
    assert usage.usage(None, [], run(generated=1), now=NOW) is None
    before = used(None, [pod()], NOW + 10)
    assert used(before, [], NOW + 99).gpu_seconds == before.gpu_seconds


def test_tokens_are_the_ledgers_and_a_lost_ledger_takes_none_away() -> None:
    first = usage.usage(None, [pod()], run(generated=100, trained=60), now=NOW)
    assert first is not None
    assert (first.generated_tokens, first.trained_tokens) == (100, 60)
    second = usage.usage(first, [pod()], run(generated=5), now=NOW)
    assert second is not None
    assert (second.generated_tokens, second.trained_tokens) == (100, 60)


pods = st.builds(
    lambda name, role, begin, length, gpus, cpu: pod(
        f"p{name}", role=role, begin=NOW + begin, end=0.0 if length is None else NOW + begin + length, gpus=gpus,
        cpu_milli=cpu,
    ),
    st.integers(0, 99), st.sampled_from(list(enums.STANDARD_ROLES)), st.floats(0, 1000), st.none() | st.floats(0, 1000),
    st.integers(0, 8), st.integers(0, 64_000),
)  # fmt: skip


@given(st.lists(pods, max_size=6), st.lists(st.floats(-50, 3000), max_size=12))
def test_however_often_it_is_counted_the_sum_is_that_of_one_count(there: list[Pod], offsets: list[float]) -> None:
    # Clocks that step back, operators that die in between, passes in the same second: all are times here.
    last = NOW + max([0.0, *offsets])
    before: UsageStatus | None = None
    for offset in offsets:
        after = usage.usage(before, visible(there, NOW + offset), None, now=NOW + offset)
        if before is not None and after is not None:
            assert after.gpu_seconds >= before.gpu_seconds
            assert after.cpu_core_seconds >= before.cpu_core_seconds
            assert after.as_of >= before.as_of
        # What is written and read again is the same.
        before = after if after is None else UsageStatus.model_validate_json(after.model_dump_json(by_alias=True))
    assert usage.usage(before, visible(there, last), None, now=last) == usage.usage(
        None, visible(there, last), None, now=last
    )


def visible(there: list[Pod], now: float) -> list[Pod]:
    """Return the pods as they are at a time: one that has not ended yet runs."""
    begun = [each for each in there if each.scheduled_at <= now]
    return [
        dataclasses.replace(each, phase="Running", finished_at=0.0) if each.finished_at > now else each
        for each in begun
    ]


def test_core_seconds_are_exact_over_many_sums() -> None:
    role = {"name": "rollout", "cpuCoreSeconds": "0.1"}
    before: UsageStatus | None = UsageStatus.model_validate({"asOf": clock.to_timestamp(NOW), "roles": (role,)})
    for second in range(1, 1001):
        before = usage.usage(before, [pod(cpu_milli=1)], None, now=NOW + second)
    assert before is not None
    assert str(before.cpu_core_seconds) == "1.100"
