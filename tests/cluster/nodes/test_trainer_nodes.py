"""A trainer of two nodes, ZeRO 3, while its nodes go: one is cut off, then both are drained, one after the other.

Once with checkpoints on a volume that both nodes mount, once with MinIO, which both nodes reach and which is on the one
that stays. The tests follow each other on each job. A rollout's node is lost in `test_chaos.py`.
"""

import dataclasses
import functools
import pathlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from rljob_api import enums
from rljob_api.manifest.storage import S3Spec
from rljob_testing import charts, minio
from rljob_testing.cluster import lineage, local_volumes, recovery, two_ranks, whole_job
from rljob_testing.cluster.full import FullCluster
from rljob_testing.cluster.manifests import Object
from rljob_testing.cluster.whole_job import Watched
from rljob_workers.objects import stores
from rljob_workers.trainer.state import checkpoint, marker, remote

CLAIM, STORE = "ranks-claim", "ranks-store"
STARTED_S, WHOLE_S, STEP_S, GONE_S = 900.0, 600.0, 300.0, 120.0
# Steps that it may still make, at least half of them at any time: it is to end soon after the last break.
MORE_STEPS = 240
# So many steps behind a checkpoint a node is cut off, so that something has to be computed again.
BEHIND = 3
BOTH_RANKS = {0: "node-a", 1: "node-b"}
MINIO_PORT = 9000
BUCKET_KEYS = "bucket-keys"


@dataclasses.dataclass(frozen=True, slots=True)
class Run:
    """The job. checkpoints: of each whole one by its step, whose files are in it, by rank; read where they are."""

    job: Watched
    state: pathlib.Path
    checkpoints: Callable[[], Mapping[int, set[int]]]


@pytest.fixture(scope="module")
def prepared(all_asked: None, operator: FullCluster, volume_folder: pathlib.Path) -> Iterator[FullCluster]:
    """The operator is on the node that stays, and free to leave it; the model is on the volume."""
    two_ranks.make_task(volume_folder)
    whole_job.apply(operator, whole_job.surroundings(two_ranks.TASK, volume_folder / two_ranks.TASK))
    home = "affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution[0]"
    expression = f"{home}.preference.matchExpressions[0]"
    options = (
        f"{home}.weight=100",
        f"{expression}.key={two_ranks.HOSTNAME}",
        f"{expression}.operator=In",
        f"{expression}.values={{node-a}}",
    )
    done = whole_job.install(operator, *options)
    assert done.returncode == 0, done.stderr
    yield operator
    done = whole_job.install(operator)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def server(prepared: FullCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[minio.Minio]:
    charts.program_or_skip("minio")
    reach = f"127.0.0.1:{prepared.relay('minio-relay', MINIO_PORT)}"
    home = prepared.home
    running = minio.Minio(
        tmp_path_factory.mktemp("minio"), enter=home.enter, listen=f"{home.address}:{MINIO_PORT}", reach=reach
    )
    running.start()
    yield running
    running.stop()


@pytest.fixture(scope="module", params=[CLAIM, STORE])
def run(request: pytest.FixtureRequest, prepared: FullCluster, volume_folder: pathlib.Path) -> Iterator[Run]:
    name = request.param
    storage = _on_a_claim() if name == CLAIM else _in_a_store(prepared, request.getfixturevalue("server"))
    document = two_ranks.job(name, {"maxSteps": MORE_STEPS, "checkpoint.keepLast": 50, **storage})
    whole_job.apply(prepared, [*whole_job.surroundings(name, volume_folder), document])
    job = Watched(prepared, name)
    try:
        job.until(lambda _: job.step() >= 1, STARTED_S)
        metadata: Any = job.get()["metadata"]
        uid = metadata["uid"]
        if name == CLAIM:
            yield Run(job, volume_folder / uid, lambda: _on_the_volume(volume_folder / uid / "checkpoints"))
        else:
            server: minio.Minio = request.getfixturevalue("server")
            state = local_volumes.folder(prepared, STORE, "node-a", "state") / uid
            yield Run(job, state, lambda: _of_the_store(server, uid))
    finally:
        prepared.kubectl("delete", "rljob", name, "--wait=false")


def _on_a_claim() -> dict[str, object]:
    claim = {"claimName": CLAIM}
    return {"storage": {"type": "Persistent", "state": claim, "checkpoints": claim}}


def _in_a_store(cluster: FullCluster, server: minio.Minio) -> dict[str, object]:
    """Return the storage of a job whose only volume is a local one, for its ledger; the rest is made."""
    whole_job.apply(cluster, local_volumes.of_each_node(cluster, STORE, {"state": "1Gi"}))
    secret: Object = {
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": BUCKET_KEYS}, "stringData": dict(server.keys)
    }  # fmt: skip
    whole_job.apply(cluster, [secret])
    return {
        "storage": {
            "type": "Persistent",
            "state": {"size": "1Gi", "storageClassName": STORE, "accessMode": local_volumes.ACCESS_MODE},
            "checkpoints": {"uri": f"{server.make_bucket('runs')}/rl"},
            "s3": {"endpoint": f"http://{cluster.home.address}:{MINIO_PORT}"},
        },
        "trainer.pod.envFrom": [{"secretRef": {"name": BUCKET_KEYS}}],
    }


def _on_the_volume(folder: pathlib.Path) -> dict[int, set[int]]:
    whole = {each.progress.step: each.path for each in checkpoint.CheckpointStore(folder).all()}
    return {step: _ranks(path.name for path in folder.rglob("*")) for step, folder in whole.items()}


def _of_the_store(server: minio.Minio, uid: str) -> dict[int, set[int]]:
    with pytest.MonkeyPatch.context() as patched:
        for key, value in server.keys.items():
            patched.setenv(key, value)
        folder = stores.open_folder(f"s3://runs/rl/{uid}", S3Spec(endpoint=server.endpoint)).below("checkpoints")
        whole = remote.RemoteCheckpoints(folder, run=uid, attempt=0).whole()
    return {each.progress.step: _ranks(each.content.files) for each in whole}


def _ranks(files: Any) -> set[int]:
    """Return the ranks that wrote a part of the optimizer's state."""
    return {rank for file in files if "optim_states" in file and (rank := marker.rank_of(file)) is not None}


Broken = Callable[[str, Callable[[], object], Callable[[], bool]], None]


@pytest.fixture
def broken(run: Run, recoveries: list[recovery.Recovery]) -> Broken:
    """Break something, wait for the job's recovery, and note the seconds; the run does not end meanwhile."""

    def measure(broke: str, do: Callable[[], object], whole: Callable[[], bool]) -> None:
        def recovered() -> bool:
            _more_steps(run.job)
            return whole()

        assert not whole_job.is_over(run.job.status()), run.job.describe()
        _more_steps(run.job)
        name = f"{run.job.name}: {broke}"
        recoveries.append(recovery.measure(run.job, name, do, recovered, whole_s=WHOLE_S))

    return measure


def _more_steps(job: Watched) -> None:
    """Put the end of a run off that is near."""
    spec: Any = job.get()["spec"]
    step = job.step()
    if spec["maxSteps"] - step < MORE_STEPS // 2:
        job.patch({"maxSteps": step + MORE_STEPS})


def _endings(job: Watched) -> list[tuple[str, int | None]]:
    """Return class and exit code of the attempts that have ended, in their order."""
    status: Any = job.status()
    attempts = status["trainer"]["attempts"]
    return [(each["class"], each.get("exitCode")) for each in attempts if each.get("end")]


def test_each_node_has_a_rank_and_each_checkpoint_the_part_of_both(run: Run) -> None:
    run.job.until(lambda _: bool(run.checkpoints()), STEP_S)
    assert two_ranks.nodes_of_ranks(run.job) == BOTH_RANKS, run.job.describe()
    assert set(map(frozenset, run.checkpoints().values())) == {frozenset(BOTH_RANKS)}


def test_a_lost_node_costs_one_attempt_and_no_step_before_the_last_whole_checkpoint(run: Run, broken: Broken) -> None:
    job = run.job
    (lost,) = (node for node in job.cluster.nodes if node.name == BOTH_RANKS[1])
    others, old = job.uids("coordinator", "rollout", "verifier"), job.uids("trainer")
    ended, before = _endings(job), lineage.read(run.state)

    def is_behind(_status: Object) -> bool:
        _more_steps(job)
        return job.step() % two_ranks.EVERY_STEPS >= BEHIND

    job.until(is_behind, STEP_S)
    whole = max(run.checkpoints())

    def elsewhere() -> bool:
        ranks = two_ranks.nodes_of_ranks(job)
        return two_ranks.is_whole(job) and ranks == dict.fromkeys(BOTH_RANKS, BOTH_RANKS[0])

    with two_ranks.cut_off(job.cluster, lost):
        broken("a trainer's node dead", lambda: None, lambda: elsewhere() and job.has_fresh("trainer", old))
        assert job.cluster.kubectl("get", "node", lost.name).returncode == 0, "its object stays"
    *earlier, last = lineage.read(run.state)
    assert len(earlier) == len(before)
    assert last.resumed_from >= whole
    assert run.checkpoints()[last.resumed_from] == set(BOTH_RANKS)
    assert _endings(job) == [*ended, ("infrastructure", None)]
    assert job.uids("coordinator", "rollout", "verifier") == others
    job.until(lambda _: len(job.pods("trainer")) == len(BOTH_RANKS), GONE_S)


def test_drains_of_both_nodes_move_the_job_and_cost_no_step(run: Run, broken: Broken) -> None:
    job = run.job
    if job.name == STORE:
        pytest.skip("its ledger is on a disk of one node, and leaves it with no pod")
    ended = _endings(job)
    for node in ("node-a", "node-b"):
        drain = functools.partial(two_ranks.drain, job.cluster, node)
        broken(f"{node} drained", drain, functools.partial(two_ranks.is_whole, job, without=node))
        two_ranks.uncordon(job.cluster, node)
    assert lineage.recomputed(lineage.read(run.state))[-2:] == [0, 0]
    assert _endings(job) == [*ended, *[("requested", int(enums.ExitCode.STOPPED_ON_REQUEST))] * 2]


def test_coordinator_comes_back_on_the_volume_of_its_node(run: Run, broken: Broken) -> None:
    job = run.job
    if job.name == CLAIM:
        pytest.skip("its ledger is on a volume that both nodes mount")
    others, old = job.uids("rollout", "verifier", "trainer"), job.uids("coordinator")
    (claim,) = job.kubectl("get", "pvc", "-l", f"rljob.dev/job={job.name}", "-o", "name").split()
    assert two_ranks.volume_node(job.cluster, claim.partition("/")[2]) == job.one("coordinator").node == "node-a"
    broken(
        "the coordinator's pod killed",
        lambda: job.delete_pod(job.one("coordinator").name, "--grace-period=1"),
        lambda: job.has_fresh("coordinator", old),
    )
    assert job.one("coordinator").node == "node-a"
    assert job.uids("rollout", "verifier", "trainer") == others


def test_run_ends_with_every_step_made_and_every_promise_kept(run: Run) -> None:
    status = run.job.until_over(STEP_S)
    assert status["summary"] == "Succeeded", run.job.describe()
    spec: Any = run.job.get()["spec"]
    history = lineage.read(run.state)
    assert lineage.violations(history, last_step=spec["maxSteps"]) == []
    # A checkpoint that goes to a store counts once it is there, some steps later.
    assert max(lineage.recomputed(history)) <= two_ranks.EVERY_STEPS * (1 if run.job.name == CLAIM else 2)
    assert lineage.audit(run.state) == ""
