import pytest

from rljob_api import enums, types
from rljob_workers.coordinator.reporting import processes


def load(*, wait_s: float = 0.0, tokens: int = 0, waiting_for: str = "", since: float = 0.0) -> types.RolloutLoad:
    return types.RolloutLoad(
        wait_s={"staleness": wait_s}, generated_tokens=tokens, waiting_for=waiting_for, waiting_since=since
    )


def reported(*reports: tuple[float, float, int]) -> processes.Pods:
    """Return pods after one rollout's reports of (time, total wait seconds, total tokens)."""
    known = processes.Pods()
    known.add(processes.Pod(token="t", role=enums.Role.ROLLOUT, pod="rollout-0"))
    for now, wait_s, tokens in reports:
        known.report(
            "t",
            serving_version=1,
            receiver_state="SERVING",
            load=load(wait_s=wait_s, tokens=tokens),
            draining=False,
            now=now,
        )
    return known


def test_the_wait_share_is_seconds_lost_per_replica_over_seconds_passed() -> None:
    # Simulated: one replica lost 2 of 10 s, another 8 of 10 s.
    everybody = reported((100, 50, 0), (110, 52, 0)).all() + reported((100, 0, 0), (110, 8, 0)).all()
    assert processes.wait_share(everybody) == pytest.approx(0.5)


def test_the_window_slides() -> None:
    known = reported((0, 0, 0), (100, 100, 0), (450, 100, 700), (460, 100, 1700))
    assert processes.wait_share(known.all()) == 0.0
    assert processes.tokens_per_s(known.all()) == pytest.approx(100.0)


def test_without_two_reports_nothing_is_claimed() -> None:
    assert processes.wait_share(reported((100, 5, 5)).all()) == 0.0
    assert processes.tokens_per_s(reported((100, 5, 5)).all()) == 0.0


def test_a_replaced_process_is_forgotten() -> None:
    known = reported((0, 0, 0))
    known.add(processes.Pod(token="new", role=enums.Role.ROLLOUT, pod="rollout-0"), replaced=["t"])
    assert [pod.token for pod in known.all()] == ["new"]
    assert known.record_contact("t", now=1.0) is None


def test_a_wait_keeps_its_beginning() -> None:
    known = processes.Pods()
    known.add(processes.Pod(token="t", role=enums.Role.TRAINER, pod="trainer-0"))
    known.waits("t", what="3 of 8 groups", on="rollout", since=10.0)
    known.waits("t", what="5 of 8 groups", on="rollout", since=20.0)
    (pod,) = known.all()
    assert (pod.waiting_for, pod.waiting_since) == ("5 of 8 groups", 10.0)
    known.waits("t", what="", on="", since=0.0)
    assert (pod.waiting_for, pod.waiting_since) == ("", 0.0)


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        pytest.param({}, True, id="serving within the bound"),
        pytest.param({"receiver_state": "FETCHING"}, False, id="not serving"),
        pytest.param({"draining": True}, False, id="draining"),
        pytest.param({"last_seen": 80.0}, False, id="silent"),
    ],
)
def test_a_rollout_counts_while_it_serves(changed: dict[str, object], expected: bool) -> None:
    pod = processes.Pod(token="t", role=enums.Role.ROLLOUT, pod="r", receiver_state="SERVING", last_seen=99.0)
    for name, value in changed.items():
        setattr(pod, name, value)
    assert processes.is_ready(pod, serving_step=4, head_step=5, bound=1, now=100.0, silent_s=10.0) is expected


def test_a_rollout_beyond_the_bound_does_not_count() -> None:
    pod = processes.Pod(token="t", role=enums.Role.ROLLOUT, pod="r", receiver_state="SERVING", last_seen=99.0)
    assert not processes.is_ready(pod, serving_step=3, head_step=5, bound=1, now=100.0, silent_s=10.0)


def test_a_rollout_that_evaluates_an_older_version_is_ready() -> None:
    (pod,) = reported((100, 0, 0)).all()

    def ready(evaluates: bool) -> bool:
        return processes.is_ready(pod, serving_step=1, head_step=9, bound=1, now=100, silent_s=10, evaluates=evaluates)

    assert (ready(False), ready(True)) == (False, True)
