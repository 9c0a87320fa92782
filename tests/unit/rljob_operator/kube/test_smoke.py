"""The test of an installation, against an API that plays the operator."""

from collections.abc import Mapping
from typing import Any

import pytest

from rljob_operator import smoke
from rljob_operator.kube.kinds import Kind
from rljob_testing.clock import FakeClock

MANIFEST: dict[str, Any] = {"metadata": {"name": "rljob-smoke"}, "spec": {"maxSteps": 2}}
COMPLETE = {"summary": "Succeeded", "step": 2, "conditions": [{"type": "Complete", "status": "True"}]}


class Api:
    """Serves one job, whose status goes through a list of statuses, one a read."""

    def __init__(self, *statuses: dict[str, Any], exists: bool = False, pods: int = 0) -> None:
        self._statuses, self._pods = list(statuses), pods
        self._job: dict[str, Any] | None = dict(MANIFEST) if exists else None
        self.deleted = False

    async def get(self, kind: Kind, namespace: str, name: str) -> dict[str, Any] | None:
        if self._job is None:
            return None
        status = self._statuses.pop(0) if len(self._statuses) > 1 else self._statuses[0]
        return {**self._job, "status": status}

    async def list(self, kind: Kind, namespace: str | None, *, selector: str = "") -> list[dict[str, Any]]:
        assert selector == "rljob.dev/uid=u-1"
        self._pods -= 1
        return [{"metadata": {"name": "left-1"}}] if self._pods >= 0 else []

    async def apply(self, kind: Kind, namespace: str, body: Mapping[str, object]) -> dict[str, Any]:
        self._job = {**body, "metadata": {**MANIFEST["metadata"], "uid": "u-1"}}
        return self._job

    async def delete(self, kind: Kind, namespace: str, name: str, *, uid: str, grace_s: int | None) -> dict[str, Any]:
        assert uid == "u-1"
        self.deleted = True
        return {}


def _smoke(api: Api, lines: list[str], *, metrics: str = 'rljob_step{rljob="rljob-smoke"} 2.0\n') -> smoke.Smoke:
    clock = FakeClock()

    async def sleep(seconds: float) -> None:
        clock.tick(seconds)

    return smoke.Smoke(
        api,
        namespace="team",
        timeout_s=60,
        say=lines.append,
        fetch=lambda url: metrics,
        monotonic=clock.monotonic,
        sleep=sleep,
    )


async def test_a_job_that_completes_passes_and_every_change_is_a_line() -> None:
    lines: list[str] = []
    api = Api({"summary": "Starting"}, {"summary": "Starting"}, {"summary": "Running", "step": 1}, COMPLETE)
    assert await _smoke(api, lines).run(MANIFEST) == []
    assert [line.split(":")[0] for line in lines[1:4]] == ["Starting, step 0", "Running, step 1", "Succeeded, step 2"]
    assert api.deleted


async def test_a_job_that_never_ends_is_deleted_and_its_conditions_are_reported() -> None:
    stuck = {
        "conditions": [{"type": "PodsScheduled", "status": "False", "reason": "Unschedulable", "message": "no cpu"}]
    }
    api = Api(stuck)
    wrong = await _smoke(api, []).run(MANIFEST)
    assert wrong == ["the job did not complete", "PodsScheduled=False Unschedulable: no cpu"]
    assert api.deleted


async def test_another_test_in_the_same_namespace_is_left_alone() -> None:
    api = Api(COMPLETE, exists=True)
    (wrong,) = await _smoke(api, []).run(MANIFEST)
    assert "exists already" in wrong
    assert not api.deleted


async def test_pods_that_outlive_the_job_are_named() -> None:
    assert await _smoke(Api(COMPLETE, pods=2), []).run(MANIFEST) == []
    assert await _smoke(Api(COMPLETE, pods=1000), []).run(MANIFEST) == ["pods outlive the job: left-1"]


@pytest.mark.parametrize(
    ("metrics", "said"),
    [("# connection refused", "no rljob_step"), ('rljob_step{rljob="rljob-smoke"} 1.0\n', "rljob_step is 1.0, not 2")],
)
async def test_metrics_that_do_not_say_what_happened_are_a_problem(metrics: str, said: str) -> None:
    (wrong,) = await _smoke(Api(COMPLETE), [], metrics=metrics).run(MANIFEST)
    assert said in wrong


def test_a_complete_job_is_neither_stalled_nor_running_nor_short_of_steps() -> None:
    conditions = [{"type": kind, "status": "True"} for kind in ("Complete", "Stalled", "Running")]
    job = {"spec": {"maxSteps": 2}, "status": {"step": 1, "conditions": conditions}}
    assert smoke.problems(job) == [
        "step is 1, but spec.maxSteps is 2",
        "Running is True on a complete job",
        "Stalled is True on a complete job",
    ]
    assert smoke.problems(None) == ["the job was deleted by another client"]
