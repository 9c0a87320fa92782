import dataclasses

import pytest

from rljob_api import enums
from rljob_operator.kube import projection
from rljob_operator.model import Pod
from rljob_operator.telemetry.replacements import Cause, replacements


def _pod(uid: str, **more: object) -> Pod:
    pod = Pod(name=f"rollout-{uid}", uid=uid, role=enums.Role.ROLLOUT, phase="Running", ready=True)
    return dataclasses.replace(pod, **more)  # type: ignore[arg-type]  # names of its fields


BOTH = (_pod("a"), _pod("b"))


@pytest.mark.parametrize(
    ("seen_last", "cause"),
    [
        ({"phase": "Failed", "reason": "Evicted", "disruption": "TerminationByKubelet"}, Cause.EVICTED),
        ({"deleting": True, "disruption": "EvictionByEvictionAPI"}, Cause.DRAIN),
        ({"deleting": True, "disruption": "PreemptionByScheduler"}, Cause.EVICTED),
        ({"deleting": True, "disruption": "DeletionByTaintManager"}, Cause.NODE),
        ({"phase": "Failed", "reason": "NodeShutdown"}, Cause.NODE),
        ({"phase": "Failed", "exit_code": 137, "container_reason": "OOMKilled"}, Cause.OOM),
        ({"phase": "Failed", "exit_code": 1, "container_reason": "Error"}, Cause.CRASH),
        ({"deleting": True}, Cause.OTHER),
    ],
    ids=lambda each: " ".join(map(str, each.values())) if isinstance(each, dict) else None,
)
def test_a_lost_pod_is_replaced_for_the_reason_that_was_seen_last(seen_last: dict[str, object], cause: Cause) -> None:
    assert replacements(BOTH, (BOTH[0], _pod("b", **seen_last)), num_wanted=2) == (cause,)


def test_a_pod_that_is_gone_between_two_looks_counts_whether_its_successor_is_there_or_not() -> None:
    assert replacements(BOTH, BOTH[:1], num_wanted=2) == (Cause.OTHER,)
    assert replacements(BOTH, (BOTH[0], _pod("c")), num_wanted=2) == (Cause.OTHER,)


def test_a_loss_counts_once_and_a_successor_is_none() -> None:
    gone, fresh = _pod("b", deleting=True), _pod("c")
    assert replacements((BOTH[0], gone), (BOTH[0], gone, fresh), num_wanted=2) == ()
    assert replacements((BOTH[0], gone, fresh), (BOTH[0], fresh), num_wanted=2) == ()


@pytest.mark.parametrize("num_wanted", [1, 0])
def test_a_pod_that_goes_because_fewer_are_wanted_is_not_replaced(num_wanted: int) -> None:
    left = tuple(dataclasses.replace(pod, deleting=True) for pod in BOTH[num_wanted:])
    assert replacements(BOTH, (*BOTH[:num_wanted], *left), num_wanted=num_wanted) == ()


def test_pods_that_succeeded_are_not_replaced() -> None:
    done = tuple(dataclasses.replace(pod, phase="Succeeded", exit_code=0) for pod in BOTH)
    assert replacements(BOTH, done, num_wanted=2) == ()


@pytest.mark.parametrize(("reason", "cause"), [("Error", Cause.CRASH), ("OOMKilled", Cause.OOM)])
def test_a_container_that_is_started_again_in_its_pod_counts(reason: str, cause: Cause) -> None:
    again = _pod("a", restarts=1, ready=False, last_exit_code=137, last_container_reason=reason)
    assert replacements(BOTH, (again, BOTH[1]), num_wanted=2) == (cause,)


def test_negative_number_is_refused() -> None:
    with pytest.raises(ValueError, match="num_wanted=-1"):
        replacements((), (), num_wanted=-1)


def test_a_pod_is_kept_with_why_it_is_taken_away_and_how_its_last_container_ended() -> None:
    owner = {"controller": True, "uid": "o"}
    died = {"reason": "OOMKilled", "exitCode": 137}
    labels = {"rljob.dev/role": "rollout", "rljob.dev/uid": "u"}
    raw = {
        "metadata": {"name": "p", "uid": "1", "resourceVersion": "5", "labels": labels, "ownerReferences": [owner]},
        "status": {
            "phase": "Running",
            "conditions": [{"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}],
            "containerStatuses": [{"restartCount": 1, "lastState": {"terminated": died}}],
        },
    }
    kept = projection.project_pod(raw)
    assert kept is not None
    assert (kept.pod.disruption, kept.pod.last_container_reason) == ("EvictionByEvictionAPI", "OOMKilled")
