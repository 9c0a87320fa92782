"""Each CEL rule on a real API server: a neighbouring object passes, the broken one is refused with field and remedy."""

import hashlib

import pytest

from rljob_api.validation import crd
from rljob_testing.cluster import rule_cases
from rljob_testing.cluster.manifests import Api, Object, job
from rljob_testing.cluster.rule_cases import CASES, FROZEN, FROZEN_WITH_CHECKPOINT, Changes

TIME = "2026-01-01T00:00:00Z"
CHECKPOINT: Object = {"step": 1, "uri": "file:///c/1", "time": "2026-01-01T00:00:00Z"}


def begun(**conditions: str) -> Object:
    """Return the status of a job that has begun its first attempt, with these conditions True, by reason."""
    holding = [
        {"type": kind, "status": "True", "reason": reason, "message": "", "lastTransitionTime": TIME}
        for kind, reason in conditions.items()
    ]
    return {"attempt": 1, "conditions": holding}  # type: ignore[dict-item]


@pytest.mark.parametrize(("message", "field", "passing", "refused"), CASES, ids=[f"{c[0]} {c[1]}" for c in CASES])
def test_rule_refuses_its_case_and_takes_the_neighbour(
    api: Api, message: str, field: str, passing: Changes, refused: Changes
) -> None:
    taken = api.try_create(rule_cases.written_out(job("taken", passing)))
    assert taken.accepted, taken.error
    answer = api.try_create(rule_cases.written_out(job("refused", refused)))
    assert not answer.accepted
    (rule,) = {rule.message for rule in crd.RULES if rule_cases.covers(message, field, rule)}
    said = rule if "x groupSize must" not in message else "promptsPerStep x groupSize = 32 cannot be divided among 5"
    assert said in answer.error
    assert f"spec.{field}: " in answer.error


def test_name_that_is_too_long_for_child_objects_is_refused(api: Api) -> None:
    assert api.try_create(job("a" * 40, {})).accepted
    assert "at most 40 lower-case letters" in api.try_create(job("a" * 41, {})).error


def test_new_job_is_pending_and_has_replicas_for_the_scale_subresource(api: Api) -> None:
    created = api.create(job("scaled", {}))
    assert created.accepted, created.error
    conditions = created.body["status"]["conditions"]  # type: ignore[index,call-overload]
    assert [one["reason"] for one in conditions] == ["Pending", "Pending"]  # type: ignore[index,union-attr,call-overload]
    done = api.cluster.kubectl("scale", "rljob/scaled", "--replicas=3")
    assert done.returncode == 0, done.stderr
    assert api.get("rljob", "scaled")["spec"]["rollout"]["replicas"] == 3  # type: ignore[index,call-overload]


@pytest.mark.parametrize("path", FROZEN)
def test_field_is_frozen_while_the_job_has_pods_and_free_while_it_is_suspended(api: Api, path: str) -> None:
    stored, wanted = FROZEN[path]
    running, parked = f"running-{_key(stored)}", f"parked-{_key(stored)}"
    if api.ensure(job(running, stored)):
        api.set_status(running, begun())
    if api.ensure(job(parked, {**stored, "suspend": True})):
        api.set_status(parked, begun(Suspended="UserRequested"))
    refused = api.replace(job(running, wanted))
    assert f"{path} is frozen while the job has pods: suspend it and wait until it is Suspended" in refused.error
    taken = api.replace(job(parked, {**wanted, "suspend": True}))
    assert taken.accepted, taken.error


EDIT: Changes = {"algorithm.epochs": 2}


@pytest.mark.parametrize(
    ("name", "stored", "status", "edit", "is_taken"),
    [
        ("never-begun", {}, None, EDIT, True),
        ("draining", {"suspend": True}, {"Suspending": "SuspendRequested"}, {**EDIT, "suspend": True}, False),
        ("resumed-with-it", {"suspend": True}, {"Suspended": "UserRequested"}, EDIT, True),
        ("resumed-before-it", {}, {"Suspended": "UserRequested"}, EDIT, False),
        ("asked-at-once", {}, {"Running": "Running"}, {**EDIT, "suspend": True}, False),
        ("failed-run", {}, {"Failed": "ConfigurationError"}, {**EDIT, "retry": 1}, True),
        ("complete-run", {}, {"Complete": "MaxStepsReached"}, EDIT, False),
    ],
)
def test_the_conditions_and_not_what_was_asked_for_say_whether_a_field_may_change(
    api: Api, name: str, stored: Changes, status: dict[str, str] | None, edit: Changes, is_taken: bool
) -> None:
    if api.ensure(job(name, stored)) and status is not None:
        api.set_status(name, begun(**status))
    answer = api.replace(job(name, edit))
    assert answer.accepted == is_taken, answer.error
    if not is_taken:
        assert "spec.algorithm: " in answer.error
        assert "algorithm is frozen while the job has pods" in answer.error


def test_an_object_that_was_restored_without_its_status_has_nothing_frozen(api: Api) -> None:
    if api.ensure(job("backed-up", {})):
        api.set_status("backed-up", begun(Running="Running"))
    assert not api.replace(job("backed-up", EDIT)).accepted
    assert api.cluster.kubectl("delete", "rljob/backed-up").returncode == 0
    assert api.create(job("backed-up", {})).accepted
    taken = api.replace(job("backed-up", EDIT))
    assert taken.accepted, taken.error


def test_what_a_running_job_takes_over_changes_at_any_time(api: Api) -> None:
    if api.ensure(job("live", {})):
        api.set_status("live", begun(Running="Running"))
    changes = {
        "schedulingDeadlineSeconds": 60, "startupDeadlineSeconds": 7200, "verifier.replicas": 3, "retry": 1,
        "rollout.replicas": 2, "failurePolicy": {"maxTrainerRestarts": 3},
    }  # fmt: skip
    taken = api.replace(job("live", changes))
    assert taken.accepted, taken.error


def test_a_retry_is_never_taken_back(api: Api) -> None:
    api.ensure(job("retried", {"retry": 2}))
    for lower in ({"retry": 1}, {}):
        assert "retry may only be raised: each new value is one more retry" in api.replace(job("retried", lower)).error
    assert api.replace(job("retried", {"retry": 3})).accepted


@pytest.mark.parametrize("path", FROZEN_WITH_CHECKPOINT)
def test_what_a_checkpoint_speaks_of_is_frozen_once_there_is_one(api: Api, path: str) -> None:
    parked: Changes = {"suspend": True}
    api.ensure(job("without-checkpoint", parked))
    if api.ensure(job("with-checkpoint", parked)):
        api.set_status("with-checkpoint", {"lastCheckpoint": CHECKPOINT})
    wanted = {**parked, **FROZEN_WITH_CHECKPOINT[path]}
    taken = api.replace(job("without-checkpoint", wanted))
    assert taken.accepted, taken.error
    refused = api.replace(job("with-checkpoint", wanted))
    assert f"{path} is frozen once a checkpoint exists: make a new job with resumeFrom" in refused.error


def test_number_of_steps_is_raised_and_never_lowered(api: Api) -> None:
    api.ensure(job("steps", {}))
    assert api.replace(job("steps", {"maxSteps": 5})).accepted
    assert "maxSteps may only be raised" in api.replace(job("steps", {"maxSteps": 3})).error


def test_manager_of_a_job_never_changes(api: Api) -> None:
    api.ensure(job("managed", {"suspend": True}))
    assert api.replace(job("managed", {"suspend": True, "seed": 3})).accepted
    other = api.replace(job("managed", {"suspend": True, "managedBy": "example.com/other"}))
    assert "managedBy is immutable: make a new job" in other.error


def test_history_of_a_job_never_changes(api: Api) -> None:
    api.ensure(job("first", {"suspend": True}))
    assert api.replace(job("first", {"suspend": True})).accepted
    other = api.replace(job("first", {"suspend": True, "resumeFrom": {"job": "older"}}))
    assert "resumeFrom is history and immutable: make a new job" in other.error


def _key(changes: Changes) -> str:
    return hashlib.sha256(repr(changes).encode()).hexdigest()[:8]
