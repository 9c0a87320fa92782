"""One job while what is around it fails: no operator, a quota, webhooks, a node and a namespace that are gone.

The tests follow each other on one job, whose pods a mutating webhook adds to all the time. Beside it is one that starts
no engine and that a quota refuses, in a namespace of its own. The same with played pods, and more of it:
`tests/cluster/operator/test_outages.py`.
"""

import json
import pathlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from rljob_api import enums
from rljob_operator import clock
from rljob_testing import certificates, operator_series
from rljob_testing.cluster import admission, lineage, recovery, webhook_server, webhooks, whole_job
from rljob_testing.cluster.full import FullCluster
from rljob_testing.cluster.manifests import Object
from rljob_testing.cluster.node import Node
from rljob_testing.cluster.whole_job import Watched, condition

NAME, REFUSED = "outages", "refused"
# The namespace of the job that a quota refuses, and one that is watched and deleted.
QUOTA, GONE = "quota", "gone"
OPERATOR = f"system:serviceaccount:{whole_job.SYSTEM}:rljob-operator"
# No engine is loaded within this time, so the first step comes after it. The operator is away by then.
DEADLINE_S = 45
STARTED_LATER_S = 1800
STARTED_S, SUSPENDED_S, STEP_S, NAMED_S, AGAIN_S, READY_S = 600.0, 300.0, 240.0, 120.0, 240.0, 60.0
# Steps that it may still make, at least half of them at any time: it is to end soon after the last break.
MORE_STEPS = 48
EVERY_STEPS = 10
# So many steps past a checkpoint the run is broken off. Once it stands still its status is true after KNOWN_S: the
# coordinator is asked every few seconds, and numbers are written together.
BEHIND, KNOWN_S, MOST_TRIES = 6, 12.0, 6
HOME, ELSEWHERE = whole_job.on_node("node-a"), whole_job.rather_on("node-b")
# Small batches of short answers: what breaks here is around the run, not in it.
JOB: dict[str, object] = {
    "maxSteps": MORE_STEPS,
    "startupDeadlineSeconds": DEADLINE_S,
    "algorithm.promptsPerStep": 4,
    "algorithm.groupSize": 4,
    "checkpoint.everySteps": EVERY_STEPS,
    "evaluation": {},
    "failurePolicy.stall.timeoutSeconds": 30,
    "rollout.drainSeconds": 1,
    # One node of two cores has to hold all of it.
    "verifier.pod.resources": {"limits": {"cpu": "500m"}},
    "coordinator.pod.nodeSelector": HOME,
    "rollout.pod.nodeSelector": HOME,
    "verifier.pod.nodeSelector": HOME,
    "trainer.pod.affinity": ELSEWHERE,
}
# What the operator makes and keeps as it should be; statuses are written as the run goes on.
CHILDREN = ("deployments", "statefulsets", "jobs", "services", "configmaps", "networkpolicies", "poddisruptionbudgets")


@pytest.fixture(scope="module")
def prepared(all_asked: None, operator: FullCluster) -> Iterator[FullCluster]:
    """The operator watches three namespaces and no others; it is on the node that stays."""
    for name in (QUOTA, GONE):
        made = operator.kubectl("create", "namespace", name)
        assert made.returncode == 0, made.stderr
    watched = f"watch.namespaces={{default,{QUOTA},{GONE}}}"
    done = whole_job.install(operator, watched, "nodeSelector.kubernetes\\.io/hostname=node-a")
    assert done.returncode == 0, done.stderr
    yield operator
    for name in (QUOTA, GONE):
        operator.kubectl("delete", "namespace", name, "--wait=false", "--ignore-not-found")
    done = whole_job.install(operator)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def hooks(prepared: FullCluster) -> Iterator[webhooks.Webhooks]:
    with webhooks.serving(prepared.plane) as found, found.injecting("default"):
        yield found


@pytest.fixture(scope="module")
def refused(hooks: webhooks.Webhooks, prepared: FullCluster) -> Iterator[Watched]:
    """A job in a namespace that may have no pod."""
    admission.apply_quota(prepared.plane, QUOTA, "tight", {"pods": "0"}, "exceeded quota: tight")
    objects = [whole_job.data(), whole_job.addition(REFUSED, whole_job.QUIET)]
    whole_job.apply(prepared, objects, namespace=QUOTA)
    yield Watched(prepared, REFUSED, namespace=QUOTA)
    prepared.kubectl("delete", "rljob", REFUSED, "-n", QUOTA, "--wait=false")


@pytest.fixture(scope="module")
def job(refused: Watched, prepared: FullCluster, volume_folder: pathlib.Path) -> Iterator[Watched]:
    """The job, with an operator that went away as soon as all its pods were made."""
    whole_job.apply(prepared, [*whole_job.surroundings(NAME, volume_folder), whole_job.addition(NAME, JOB)])
    watched = Watched(prepared, NAME)
    watched.until(lambda _: all(watched.pods(role) for role in enums.STANDARD_ROLES), NAMED_S)
    _scale_operator(prepared, 0)
    yield watched
    prepared.kubectl("delete", "rljob", NAME, "--wait=false")


def _scale_operator(cluster: FullCluster, replicas: int) -> None:
    """Let so many operators run; returns when it is so."""
    _system(cluster, "scale", "deployment/rljob-operator", f"--replicas={replicas}")
    if replicas:
        _system(cluster, "rollout", "status", "deployment/rljob-operator", "--timeout=50s")
    else:
        _system(cluster, "wait", "pods", "--all", "--for=delete", "--timeout=50s")


def _system(cluster: FullCluster, *arguments: str) -> None:
    done = cluster.kubectl("-n", whole_job.SYSTEM, *arguments)
    assert done.returncode == 0, done.stderr


Broken = Callable[[str, Callable[[], object], Callable[[], bool]], None]


@pytest.fixture
def broken(job: Watched, recoveries: list[recovery.Recovery]) -> Broken:
    """Break something, wait for the job's recovery, and note the seconds."""

    def measure(broke: str, do: Callable[[], object], whole: Callable[[], bool]) -> None:
        assert not whole_job.is_over(job.status()), job.describe()
        _more_steps(job)
        recoveries.append(recovery.measure(job, broke, do, whole))

    return measure


def _more_steps(job: Watched) -> None:
    """Put the end of a run off that is near."""
    spec: Any = job.get()["spec"]
    step = job.step()
    if spec["maxSteps"] - step < MORE_STEPS // 2:
        job.patch({"maxSteps": step + MORE_STEPS})


def _until(true: Callable[[], bool], job: Watched, deadline_s: float = STARTED_S) -> None:
    """Wait while the job goes on."""
    end = time.monotonic() + deadline_s
    while not true():
        assert time.monotonic() < end, job.describe()
        _more_steps(job)
        time.sleep(whole_job.POLL_S)


def _is_running(job: Watched) -> bool:
    return whole_job.holds("Running")(job.status())


def _finished_steps(job: Watched) -> int:
    """Return what the coordinator itself says, which nobody but a scraper asks while there is no operator."""
    pod: Any = job.pods("coordinator")[0]
    ports = pod["spec"]["containers"][0]["ports"]
    (port,) = (one["containerPort"] for one in ports if one["name"] == "health")
    path = f"/api/v1/namespaces/default/pods/{pod['metadata']['name']}:{port}/proxy/metrics"
    answer = job.cluster.kubectl("get", "--raw", path)
    # It may not serve yet.
    return int(operator_series.total(operator_series.series(answer.stdout), "rljob_step")) if answer.stdout else 0


def test_job_starts_without_an_operator_and_is_left_alone_by_the_next(job: Watched, broken: Broken) -> None:
    began = min(_created(pod) for pod in job.pods())
    _until(lambda: _finished_steps(job) >= 1, job)
    _until(lambda: time.time() > began + DEADLINE_S, job)
    before = job.uids()
    broken("the operator away past every deadline", lambda: _scale_operator(job.cluster, 1), lambda: _is_running(job))
    assert job.uids() == before
    assert job.status()["attempt"] == 1
    # It is the limit of a resumed segment's start too, and an engine is loaded then.
    job.patch({"startupDeadlineSeconds": STARTED_LATER_S})


def _created(pod: Any) -> float:
    found = clock.to_seconds(pod["metadata"]["creationTimestamp"])
    assert found is not None
    return found


def test_pods_that_a_quota_refuses_are_told_of_and_made_when_it_is_lifted(
    refused: Watched, job: Watched, recoveries: list[recovery.Recovery]
) -> None:
    def is_told(status: Object) -> bool:
        return condition(status, "PodsScheduled")["reason"] == "CreateFailed"

    said = condition(refused.until(is_told, NAMED_S), "PodsScheduled")
    assert said["status"] == "False"
    assert "exceeded quota: tight" in str(said["message"])
    began = time.monotonic()
    refused.kubectl("delete", "resourcequota", "tight")
    _until(lambda: all(refused.pods(role) for role in enums.STANDARD_ROLES), job, AGAIN_S)

    def is_whole() -> bool:
        status = refused.status()
        return condition(status, "PodsScheduled")["status"] == "True" and whole_job.holds("VerifierReady")(status)

    _until(is_whole, job, AGAIN_S)
    recoveries.append(recovery.Recovery("a quota without room lifted", time.monotonic() - began))


def test_what_a_webhook_adds_to_pods_is_not_fought(job: Watched) -> None:
    def applied() -> float:
        text = job.cluster.kubectl("get", "--raw", "/metrics").stdout
        found = operator_series.series(text)
        return sum(
            operator_series.total(found, "apiserver_request_total", verb="APPLY", resource=resource)
            for resource in CHILDREN
        )

    _until(lambda: _is_running(job), job)
    before, step = applied(), job.step()
    _until(lambda: job.step() >= step + recovery.MORE_STEPS, job, recovery.STEPS_S)
    assert applied() - before <= len(CHILDREN)
    for pod in job.pods():
        spec: Any = pod["spec"]
        assert webhook_server.INJECTED in [one["name"] for one in spec["volumes"]]


def test_trainer_of_a_dead_node_goes_on_elsewhere_once(job: Watched, broken: Broken) -> None:
    lost, old, attempt = _node(job, "trainer"), job.uids("trainer"), _attempt(job)
    assert lost.name == "node-b", "not the coordinator's"
    others = job.uids("coordinator", "rollout", "verifier")
    container = job.one("trainer").container
    with job.cluster.cut_off(lost):
        broken("the trainer's node dead", lambda: None, lambda: job.has_fresh("trainer", old))
        assert job.cluster.kubectl("get", "node", lost.name).returncode == 0, "its object stays"
        assert lost.runtime.pids(container), "and its containers know nothing"
    waited = job.cluster.kubectl("wait", "--for=condition=Ready", "--timeout=50s", f"node/{lost.name}")
    assert waited.returncode == 0, waited.stderr
    _until(lambda: container not in lost.runtime.ctr("tasks", "ls", "-q").stdout.split(), job, READY_S)
    step = job.step()
    _until(lambda: job.step() >= step + 1, job, recovery.STEPS_S)
    assert _attempt(job) == attempt + 1
    assert len(job.pods("trainer")) == 1
    assert job.uids("coordinator", "rollout", "verifier") == others


def test_refused_deployments_do_not_stop_the_recovery_of_the_trainer(
    job: Watched, broken: Broken, hooks: webhooks.Webhooks, recoveries: list[recovery.Recovery]
) -> None:
    old, attempt, applied = job.uids("trainer"), _attempt(job), whole_job.holds("ChildrenApplied")

    def lifted() -> bool:
        found: Any = json.loads(job.kubectl("get", "deployment", f"{NAME}-rollout", "-o", "json"))
        return bool(found["spec"]["replicas"] == 2)

    with hooks.refusing("deployments", "default", user=OPERATOR, existing=f"{NAME}-rollout"):
        job.kubectl("scale", f"rljob/{NAME}", "--replicas=2")
        said = condition(job.until(lambda status: not applied(status), NAMED_S), "ChildrenApplied")
        assert f"Deployment {NAME}-rollout: " in str(said["message"])
        assert webhook_server.MESSAGE in str(said["message"])
        broken(
            "the trainer killed while a webhook refuses Deployments",
            lambda: _node(job, "trainer").runtime.kill(job.one("trainer").container),
            lambda: job.has_fresh("trainer", old),
        )
        assert _attempt(job) == attempt + 1
        assert not applied(job.status())
    began = time.monotonic()
    _until(lifted, job, AGAIN_S)
    _until(lambda: applied(job.status()), job, AGAIN_S)
    recoveries.append(recovery.Recovery("the webhook lifted", time.monotonic() - began))
    job.kubectl("scale", f"rljob/{NAME}", "--replicas=1")
    _until(lambda: _is_running(job), job, AGAIN_S)


def _node(job: Watched, role: str) -> Node:
    name = job.one(role).node
    return next(node for node in job.cluster.nodes if node.name == name)


def _attempt(job: Watched) -> int:
    attempt = job.status()["attempt"]
    assert isinstance(attempt, int)
    return attempt


def _checkpoint(job: Watched) -> int:
    """Return the step of the last checkpoint."""
    found: Any = job.status().get("lastCheckpoint") or {}
    return int(found.get("step", 0))


def _kill_behind_its_checkpoint(job: Watched) -> None:
    """Kill the trainer where it is some steps past its checkpoint: stopped first, until what it had done is known."""
    for _ in range(MOST_TRIES):
        _until(lambda: job.step() - _checkpoint(job) >= BEHIND, job, recovery.STEPS_S)
        runtime, container = _node(job, "trainer").runtime, job.one("trainer").container
        with runtime.stopped(container):
            time.sleep(KNOWN_S)
            if job.step() > _checkpoint(job):
                runtime.kill(container)
                return
    pytest.fail(f"it wrote a checkpoint whenever it was about to be killed: {job.describe()}")


def test_run_that_was_broken_off_behind_its_checkpoint_runs_again_below_its_last_step(
    job: Watched, broken: Broken
) -> None:
    last, first = 0, list[int]()

    def suspend_and_resume() -> None:
        nonlocal last
        _kill_behind_its_checkpoint(job)
        job.patch({"suspend": True})
        job.until(whole_job.holds("Suspended"), SUSPENDED_S)
        status: Any = job.status()
        last = max(one.get("step", 0) for one in status["trainer"]["attempts"])
        assert last > _checkpoint(job)
        job.patch({"suspend": False})

    def runs() -> bool:
        status: Any = job.status()
        if status.get("firstStepTime") and not first:
            first.append(status["step"])
        return bool(first) and whole_job.holds("Running")(status)

    broken("killed behind its checkpoint, suspended and resumed", suspend_and_resume, runs)
    assert first[0] <= last, "it counts as started before it is as far as it once was"


@pytest.fixture(scope="module")
def due_soon(refused: Watched) -> str:
    """Leave the quiet job a certificate that is soon to be renewed; return it as its Secret holds it."""
    authority: Any = json.loads(refused.kubectl("get", "secret", f"{REFUSED}-ca", "-o", "json"))
    data = certificates.leaf_that_is_due(
        refused.get(), authority["data"], enums.Role.VERIFIER, now=time.time(), within_s=READY_S
    )
    refused.kubectl("patch", "secret", f"{REFUSED}-tls-verifier", "-p", json.dumps({"data": data}))
    return data["tls.crt"]


def test_operator_becomes_ready_without_one_of_its_namespaces(job: Watched, broken: Broken, due_soon: str) -> None:
    before = job.uids()

    def restart() -> None:
        gone = job.cluster.kubectl("delete", "namespace", GONE, "--timeout=50s")
        assert gone.returncode == 0, gone.stderr
        _system(job.cluster, "rollout", "restart", "deployment/rljob-operator")
        _system(job.cluster, "rollout", "status", "deployment/rljob-operator", "--timeout=50s")

    broken("a watched namespace deleted, the operator restarted", restart, lambda: _is_running(job))
    assert job.uids() == before


def test_certificates_are_renewed_without_one_of_the_namespaces(refused: Watched, job: Watched, due_soon: str) -> None:
    def is_renewed() -> bool:
        found: Any = json.loads(refused.kubectl("get", "secret", f"{REFUSED}-tls-verifier", "-o", "json"))
        return bool(found["data"]["tls.crt"] != due_soon)

    _until(is_renewed, job, AGAIN_S)
    done = job.cluster.kubectl("get", "pods", "-n", whole_job.SYSTEM, "-o", "json")
    (operator,) = json.loads(done.stdout)["items"]
    assert operator["status"]["containerStatuses"][0]["restartCount"] == 0, "it waits for a namespace that is gone"


def test_job_finishes_and_its_ledger_keeps_every_promise(job: Watched, volume_folder: pathlib.Path) -> None:
    status = job.until_over(STEP_S)
    assert status["summary"] == "Succeeded", job.describe()
    metadata = job.get()["metadata"]
    assert isinstance(metadata, dict)
    (ledger,) = (volume_folder / str(metadata["uid"])).rglob("ledger.sqlite")
    assert lineage.audit(ledger.parent) == ""
