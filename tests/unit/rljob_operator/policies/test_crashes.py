import dataclasses

import pytest

from rljob_api import enums
from rljob_operator.model import Pod
from rljob_operator.policies.failure import misconfigured
from rljob_testing.operator_runs import Run

CRASHING = Pod(
    name="r-0", uid="u", role=enums.Role.ROLLOUT, phase="Running", waiting_reason="CrashLoopBackOff", last_exit_code=78
)


def test_role_whose_pods_all_refuse_their_configuration_is_named() -> None:
    assert misconfigured([CRASHING, dataclasses.replace(CRASHING, name="r-1")]) == CRASHING


@pytest.mark.parametrize(
    "other",
    [
        {"waiting_reason": "", "ready": True},
        {"last_exit_code": 1},
        {"last_exit_code": None},
    ],
)
def test_one_pod_that_does_not_is_enough_to_go_on(other: dict[str, object]) -> None:
    pods = [CRASHING, dataclasses.replace(CRASHING, name="r-1", **other)]  # type: ignore[arg-type]  # fields of Pod
    assert misconfigured(pods) is None


def test_trainers_pods_are_judged_by_attempt() -> None:
    assert misconfigured([dataclasses.replace(CRASHING, role=enums.Role.TRAINER)]) is None
    assert misconfigured([]) is None


def test_run_whose_verifier_refuses_its_configuration_fails_at_once() -> None:
    run = Run()
    run.settle()
    for name, pod in run.cluster.pods.items():
        if pod.role is enums.Role.VERIFIER:
            crash = {"ready": False, "waiting_reason": "CrashLoopBackOff", "last_exit_code": 78}
            run.cluster.pods[name] = dataclasses.replace(pod, **crash)  # type: ignore[arg-type]  # fields of Pod
    run.reconcile()
    job = run.cluster.job
    assert job is not None
    assert job.status is not None
    assert (job.status.summary, job.status.reason) == ("Failed", "ConfigurationError")
