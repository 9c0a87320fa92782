"""Lives of a job as a user sees them, asked to any API server: the fake one of the wiring tests, and a real one.

Each is one behavior; the job is called "run" and its namespace is the test's own.
"""

import time
from collections.abc import Awaitable, Callable, Mapping

from rljob_api import enums
from rljob_api.conditions import ConditionType as Type
from rljob_operator.kube import kinds
from rljob_operator.pki.manager import SECRET
from rljob_operator.reconcile import status
from rljob_testing import runtime_makers
from rljob_testing.operator_stage import Stage, writes

Story = Callable[[Stage], Awaitable[None]]
T, C = enums.Role.TRAINER, enums.Role.COORDINATOR
# Long enough for a status that waits for its time.
_REST_S = status.BETWEEN_COUNTS_S + 1.0


async def job_runs_finishes_and_frees_its_pods(stage: Stage) -> None:
    await stage.create()
    await stage.runs()
    stage.said.says(enums.Phase.FINISHED, step=4)
    await stage.end_trainer(0)
    await stage.until("run", "Complete")
    assert await stage.condition("run", "Complete") == ("True", "MaxStepsReached")

    async def freed() -> bool:
        return not await stage.children("Deployment")

    await stage.sees(freed)
    assert [found["metadata"]["name"] for found in await stage.children("Job")] == ["run-trainer-1"], (
        "kept for its logs"
    )
    found = await stage.job("run")
    assert found is not None
    assert found["status"]["summary"] == "Succeeded"
    assert found["status"]["step"] == 4
    listed = [one["type"] for one in found["status"]["conditions"]]
    assert listed == [kind for kind in Type if kind in listed], "in the order of the reference"


async def stops_and_goes_on(stage: Stage) -> None:
    """Suspend a job that runs, see that nothing of it is left running, and resume it."""
    await stage.edit("run", {"suspend": True})
    await stage.until("run", "Suspended")
    assert await stage.pods() == []
    assert await stage.condition("run", "Suspending") == ("False", "NotSuspending")
    await stage.edit("run", {"suspend": False})
    await stage.runs(step=2)


async def suspended_job_has_no_pod_and_goes_on_as_the_next_attempt(stage: Stage) -> None:
    await stage.create()
    await stage.runs()
    await stops_and_goes_on(stage)
    found = await stage.job("run")
    assert found is not None
    assert found["status"]["attempt"] == 2
    assert found["status"]["trainer"]["attempts"][0]["class"] == "requested"
    assert "restarts" not in found["status"], "a stop that was asked for counts nowhere"


async def rollouts_follow_the_replicas_of_the_job(stage: Stage) -> None:
    await stage.create()
    await stage.runs()
    for wanted in (3, 1):
        await stage.edit("run", {"rollout": {"replicas": wanted}})

        async def followed(wanted: int = wanted) -> bool:
            return len(await stage.pods(enums.Role.ROLLOUT)) == wanted

        await stage.sees(followed)
    assert await stage.condition("run", "Running") == ("True", "Running")


async def child_that_another_hand_deletes_or_edits_is_mended(stage: Stage) -> None:
    await stage.create()
    await stage.runs()
    await stage.delete("Deployment", "run-verifier")

    async def is_back() -> bool:
        return await stage.get("Deployment", "run-verifier") is not None

    await stage.sees(is_back)
    await edited_child_is_mended(stage)


async def edited_child_is_mended(stage: Stage) -> None:
    """Let another hand edit a child of a job that runs, and see the edit undone."""
    kind = kinds.BY_NAME["Deployment"]
    await stage.client.merge(kind, stage.namespace, "run-rollout", {"spec": {"progressDeadlineSeconds": 7}})

    async def is_mended() -> bool:
        found = await stage.get("Deployment", "run-rollout")
        return found is not None and found["spec"]["progressDeadlineSeconds"] != 7

    await stage.sees(is_mended)


async def failed_trainer_comes_again_and_the_other_pods_stay(stage: Stage) -> None:
    await stage.create()
    await stage.runs()
    before = {pod["metadata"]["uid"] for pod in await stage.pods() if _role(pod) != T}
    await stage.end_trainer(75)

    async def is_second() -> bool:
        return [found["metadata"]["name"] for found in await stage.children("Job")] == ["run-trainer-2"]

    await stage.sees(is_second)
    await stage.until("run", "Running")
    assert before == {pod["metadata"]["uid"] for pod in await stage.pods() if _role(pod) != T}
    found = await stage.job("run")
    assert found is not None
    assert found["status"]["restarts"] == {"total": 1, "application": 0, "infrastructure": 1}
    assert found["status"]["trainer"]["attempts"][0]["exitCode"] == 75


async def a_failed_run_is_corrected_and_retried_in_place(stage: Stage) -> None:
    """What no running job takes over is corrected after the failure, and the history stays."""
    await stage.create(failurePolicy__maxTrainerRestarts=0)
    await stage.runs()
    await stage.end_trainer(1)
    await stage.until("run", "Failed")
    await stage.edit("run", {"rollout": {"drainSeconds": 7}, "retry": 1})
    await stage.runs(step=2)
    found = await stage.job("run")
    assert found is not None
    status = found["status"]
    assert (status["retry"], status["attempt"], status["firstAttempt"]) == (1, 2, 2)
    assert [attempt["outcome"] for attempt in status["trainer"]["attempts"] if "outcome" in attempt] == ["failed"]
    assert "completionTime" not in status
    assert await stage.condition("run", "Failed") == ("False", "NotFailed")
    assert [job["metadata"]["name"] for job in await stage.children("Job")] == ["run-trainer-2"]


async def bad_manifest_is_refused_in_a_condition_and_taken_once_it_is_mended(stage: Stage) -> None:
    # The server takes it: names across sections are no matter of the schema.
    await stage.create(data__filterGroups={"metric": "nobody"})
    await stage.until("run", "Accepted", is_="False")
    assert await stage.condition("run", "Accepted") == ("False", "InvalidSpec")
    refused = await stage.job("run")
    assert refused is not None
    (said,) = (one["message"] for one in refused["status"]["conditions"] if one["type"] == "Accepted")
    assert said.startswith("spec.data.filterGroups.metric is 'nobody'"), "it names the field and what is wrong"
    assert await stage.condition("run", "Stalled") == ("True", "NotAccepted")
    assert await stage.children("StatefulSet") == []
    await stage.edit("run", {"data": {"filterGroups": {"metric": "sum"}}})
    await stage.until("run", "Accepted")
    await stage.runs()


async def object_of_another_owner_is_never_adopted(stage: Stage) -> None:
    kind = kinds.BY_NAME["ConfigMap"]
    metadata = {"name": "run-config", "namespace": stage.namespace}
    foreign = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"mine": "1"}}
    await stage.client.apply(kind, stage.namespace, foreign)
    await stage.create()
    await stage.until("run", "Accepted", is_="False")
    assert await stage.condition("run", "Accepted") == ("False", "NameConflict")
    found = await stage.get("ConfigMap", "run-config")
    assert found is not None
    assert found["data"] == {"mine": "1"}
    assert await stage.pods() == []


async def job_that_is_deleted_takes_everything_with_it(stage: Stage) -> None:
    await stage.create()
    await stage.runs()
    await stage.delete("RLJob", "run")

    async def nothing_is_left() -> bool:
        return not [found for kind in (*kinds.CHILDREN, kinds.POD) for found in await stage.children(kind.kind)]

    await stage.sees(nothing_is_left)


async def job_at_rest_causes_no_write(stage: Stage) -> None:
    await stage.create()
    await stage.runs()
    await _quiet(stage, for_turns=40)
    await stage.edit("run", {"suspend": True})
    await stage.until("run", "Suspended")
    await _quiet(stage, for_turns=40)


async def _quiet(stage: Stage, *, for_turns: int) -> None:
    """Let what is under way end, then assert that nothing is written."""
    end = time.monotonic() + _REST_S
    while time.monotonic() < end:
        await stage.turn()
    before = len(writes(stage.requests))
    for _ in range(for_turns):
        await stage.turn()
    assert writes(stage.requests)[before:] == []


def _role(pod: Mapping[str, dict[str, dict[str, str]]]) -> str:
    return pod["metadata"]["labels"]["rljob.dev/role"]


async def certificates_are_there_before_the_pods_that_mount_them(stage: Stage) -> None:
    before = len(stage.requests)
    await stage.create(security__tls="Operator")

    async def started() -> bool:
        return await stage.get("Deployment", "run-rollout") is not None

    await stage.sees(started)
    job = await stage.job("run")
    assert job is not None
    for name in ("run-ca", *(f"run-tls-{role}" for role in enums.STANDARD_ROLES)):
        secret = await stage.client.get(SECRET, stage.namespace, name)
        assert secret is not None, name
        (owner,) = secret["metadata"]["ownerReferences"]
        assert owner["uid"] == job["metadata"]["uid"]
    mounted = [found["spec"]["template"]["spec"]["volumes"] for found in await stage.children("Deployment")]
    assert {volume["secret"]["secretName"] for volumes in mounted for volume in volumes if "secret" in volume} <= {
        "run-tls-rollout",
        "run-tls-verifier",
    }
    assert all(any("secret" in volume for volume in volumes) for volumes in mounted)
    written = [plural for verb, plural, _ in stage.requests[before:] if verb == "patch"]
    assert written.count("secrets") == 5
    pods = min(written.index(plural) for plural in ("statefulsets", "deployments", "jobs"))
    assert written[:pods].count("secrets") == 5, "nothing that makes pods is made before them"


async def a_job_waits_for_its_runtime_and_keeps_what_it_was_begun_with(stage: Stage) -> None:
    """A runtime that is edited or deleted disturbs no run; an edit holds once the job was suspended."""
    reference = {"kind": "RLJobRuntime", "name": "platform"}
    await stage.create(storage={}, runtimeRef=reference)
    await stage.until("run", "Accepted", is_="False")
    assert await stage.condition("run", "Accepted") == ("False", "ReferenceNotFound")

    await _apply_runtime(stage, scheduler="first")
    await stage.runs()
    assert await stage.condition("run", "Accepted") == ("True", "Accepted")
    assert await _runtime_in_use(stage) == (1, 1)
    assert await _scheduler(stage) == "first"

    await _apply_runtime(stage, scheduler="second")

    async def is_noticed() -> bool:
        return await _runtime_in_use(stage) == (1, 2)

    await stage.sees(is_noticed)
    assert await _scheduler(stage) == "first"
    await stops_and_goes_on(stage)
    assert await _runtime_in_use(stage) == (2, 2)
    assert await _scheduler(stage) == "second"

    await stage.delete("RLJobRuntime", "platform")

    async def is_gone() -> bool:
        return await _runtime_in_use(stage) == (2, None)

    await stage.sees(is_gone)
    assert await stage.condition("run", "Running") == ("True", "Running")


async def _apply_runtime(stage: Stage, *, scheduler: str) -> None:
    patch = {"spec": {"schedulerName": scheduler}}
    document = runtime_makers.document(
        kind="RLJobRuntime", defaults={"storage": {"type": "Ephemeral"}}, trainer=patch, rollout=patch
    )
    document["metadata"] = {"name": "platform", "namespace": stage.namespace}
    await stage.client.apply(kinds.RUNTIME, stage.namespace, document)


async def _runtime_in_use(stage: Stage) -> tuple[int | None, int | None]:
    job = await stage.job("run")
    used = (job or {}).get("status", {}).get("runtime") or {}
    return used.get("generation"), used.get("currentGeneration")


async def _scheduler(stage: Stage) -> str:
    """Return the scheduler of the rollouts' pods."""
    deployment = await stage.get("Deployment", "run-rollout")
    assert deployment is not None
    return str(deployment["spec"]["template"]["spec"]["schedulerName"])


STORIES: tuple[Story, ...] = (
    job_runs_finishes_and_frees_its_pods,
    suspended_job_has_no_pod_and_goes_on_as_the_next_attempt,
    a_failed_run_is_corrected_and_retried_in_place,
    rollouts_follow_the_replicas_of_the_job,
    child_that_another_hand_deletes_or_edits_is_mended,
    failed_trainer_comes_again_and_the_other_pods_stay,
    bad_manifest_is_refused_in_a_condition_and_taken_once_it_is_mended,
    object_of_another_owner_is_never_adopted,
    certificates_are_there_before_the_pods_that_mount_them,
    job_that_is_deleted_takes_everything_with_it,
    job_at_rest_causes_no_write,
    a_job_waits_for_its_runtime_and_keeps_what_it_was_begun_with,
)
