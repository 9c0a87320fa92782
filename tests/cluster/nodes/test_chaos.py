"""One job, broken again and again while it runs: it continues, finishes, and every acknowledged trajectory counts once.

The tests follow each other on one job, as the breaks would in a bad week. A table of seconds is printed at the end. A
Prometheus scrapes it: what the dashboards show of breaks is written to build/observed, and docs/ has one such page.
"""

import contextlib
import pathlib
from collections.abc import Callable, Iterator

import pytest

from rljob_testing import observed
from rljob_testing.cluster import lineage, recovery, scraping, whole_job
from rljob_testing.cluster.full import FullCluster
from rljob_testing.cluster.node import Node
from rljob_testing.cluster.scraping import Scraping
from rljob_testing.cluster.whole_job import Watched

NAME = "chaos"
RUNNING_S, SUSPENDED_S, FINISHED_S, NAMED_S = 900.0, 300.0, 600.0, 120.0
# Steps that it may still make when a break begins: enough that it does not end before all is whole again.
MAX_STEPS = 60
STALL_S = 30
HOME, AWAY = whole_job.on_node("node-a"), whole_job.rather_on("node-b")
LONG: dict[str, object] = {
    "maxSteps": MAX_STEPS,
    "algorithm.promptsPerStep": 4,
    "algorithm.groupSize": 4,
    "checkpoint.everySteps": 5,
    "evaluation": {},
    "model.reference": {"name": "builtin:smollm2-135m-instruct"},
    "algorithm.loss.klCoef": "0.001",
    "failurePolicy.stall.timeoutSeconds": STALL_S,
    "rollout.drainSeconds": 20,
    "coordinator.pod.nodeSelector": HOME,
    "trainer.pod.nodeSelector": HOME,
    "rollout.pod.affinity": AWAY,
    "verifier.pod.affinity": AWAY,
}
# Fails alongside it, of a claim that no one made.
UNLUCKY = "unlucky"
NEVER_STARTS: dict[str, object] = {
    **whole_job.QUIET,
    "schedulingDeadlineSeconds": 30,
    "storage": whole_job.UNCLAIMED,
}
NOT_BROKEN = {"an accelerator", "an accelerator whose peak is known", "an error of the operator"}
# Not that of the run that is observed undisturbed.
PORT = scraping.PORT + 1
OUT = pathlib.Path(__file__).parents[3] / "build" / "observed"


@pytest.fixture(scope="module")
def scraped(all_asked: None, operator: FullCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scraping]:
    with scraping.scraping(operator, tmp_path_factory.mktemp("chaos"), port=PORT) as found:
        yield found


@pytest.fixture(scope="module")
def job(scraped: Scraping, operator: FullCluster, volume_folder: pathlib.Path) -> Iterator[Watched]:
    jobs = [whole_job.addition(NAME, LONG), whole_job.addition(UNLUCKY, NEVER_STARTS)]
    whole_job.apply(operator, [*whole_job.surroundings(NAME, volume_folder), *jobs])
    watched = Watched(operator, NAME, also=scraped.refresh)
    watched.until(lambda status: watched.step() >= 1, RUNNING_S)
    yield watched
    operator.kubectl("delete", "rljob", NAME, UNLUCKY, "--wait=false")


Broken = Callable[[str, Callable[[], object], Callable[[], bool]], None]


@pytest.fixture
def broken(job: Watched, recoveries: list[recovery.Recovery]) -> Broken:
    """Break the job, wait for its recovery, and note the seconds."""

    def measure(broke: str, do: Callable[[], object], whole: Callable[[], bool]) -> None:
        assert not whole_job.is_over(job.status()), job.describe()
        # A running coordinator takes over a later end.
        job.patch({"maxSteps": job.step() + MAX_STEPS})
        recoveries.append(recovery.measure(job, broke, do, whole))

    return measure


def _node(job: Watched, role: str) -> Node:
    name = job.one(role).node
    return next(node for node in job.cluster.nodes if node.name == name)


def test_rollout_pod_that_is_deleted_is_replaced_and_no_other(job: Watched, broken: Broken) -> None:
    others, old = job.uids("coordinator", "verifier", "trainer"), job.uids("rollout")
    broken(
        "a rollout's pod deleted",
        lambda: job.delete_pod(job.one("rollout").name),
        lambda: job.has_fresh("rollout", old),
    )
    assert job.uids("coordinator", "verifier", "trainer") == others


def test_coordinator_that_is_killed_comes_back_and_all_others_keep_their_pods(job: Watched, broken: Broken) -> None:
    others, old = job.uids("rollout", "verifier", "trainer"), job.uids("coordinator")
    broken(
        "the coordinator's pod killed",
        lambda: job.delete_pod(job.one("coordinator").name, "--grace-period=1"),
        lambda: job.has_fresh("coordinator", old),
    )
    assert job.uids("rollout", "verifier", "trainer") == others


def test_trainer_whose_container_is_killed_begins_its_next_attempt(job: Watched, broken: Broken) -> None:
    others, old = job.uids("coordinator", "rollout", "verifier"), job.uids("trainer")
    attempt = job.status()["attempt"]
    assert isinstance(attempt, int)
    broken(
        "the trainer's container killed",
        lambda: _node(job, "trainer").runtime.kill(job.one("trainer").container),
        lambda: job.has_fresh("trainer", old),
    )
    assert job.status()["attempt"] == attempt + 1
    assert job.uids("coordinator", "rollout", "verifier") == others


def test_verifier_that_is_killed_is_started_again_in_its_pod(job: Watched, broken: Broken) -> None:
    before = job.one("verifier")

    def again() -> bool:
        now = job.one("verifier")
        return now.ready and now.restarts > before.restarts

    broken("the verifier's container killed", lambda: _node(job, "verifier").runtime.kill(before.container), again)
    assert job.one("verifier").uid == before.uid


def _stopped(job: Watched, role: str) -> contextlib.AbstractContextManager[None]:
    return _node(job, role).runtime.stopped(job.one(role).container)


def test_trainer_that_hangs_is_named_within_its_deadline_and_goes_on(job: Watched, broken: Broken) -> None:
    trainer = job.one("trainer").name

    def hang() -> None:
        with _stopped(job, "trainer"):
            status = job.until(whole_job.holds("Stalled"), STALL_S + NAMED_S)
        stalled = status["stalled"]
        assert isinstance(stalled, dict)
        assert (stalled["role"], stalled["pod"]) == ("trainer", trainer), job.describe()

    broken("the trainer stopped until it is named", hang, lambda: not whole_job.holds("Stalled")(job.status()))


def test_verifier_that_never_answers_is_told_of_and_started_again(job: Watched, broken: Broken) -> None:
    before = job.one("verifier")

    def again() -> bool:
        now = job.one("verifier")
        return now.ready and now.restarts > before.restarts

    with _stopped(job, "verifier"):

        def unready() -> None:
            status = job.until(lambda status: not whole_job.holds("VerifierReady")(status), NAMED_S)
            assert not whole_job.holds("Running")(status)

        broken("the verifier stopped for good", unready, again)


def test_suspended_job_frees_every_pod_and_goes_on_with_more_steps(job: Watched, broken: Broken) -> None:
    def suspend_and_resume() -> None:
        job.patch({"suspend": True})
        job.until(whole_job.holds("Suspended"), SUSPENDED_S)
        assert job.pods() == []
        job.patch({"suspend": False, "maxSteps": job.step() + MAX_STEPS})

    broken("the job suspended and resumed", suspend_and_resume, lambda: whole_job.holds("Running")(job.status()))


def test_lost_node_costs_its_pods_and_the_job_goes_on_elsewhere(job: Watched, broken: Broken) -> None:
    lost, old = _node(job, "rollout"), job.uids("rollout")
    assert lost.name != "node-a", "the coordinator's"
    others = job.uids("coordinator", "trainer")
    broken("a node's kubelet stopped", lost.stop_kubelet, lambda: job.has_fresh("rollout", old))
    assert job.uids("coordinator", "trainer") == others
    lost.start_kubelet(job.cluster.home.address)
    waited = job.cluster.kubectl("wait", "--for=condition=Ready", "--timeout=50s", f"node/{lost.name}")
    assert waited.returncode == 0, waited.stderr


def test_rollouts_follow_the_scale_subresource_out_and_in(job: Watched, broken: Broken) -> None:
    def scaled(count: int) -> Callable[[], bool]:
        return lambda: sum(pod.ready for pod in job.staying("rollout")) == count == len(job.staying("rollout"))

    def scale(count: int) -> None:
        done = job.cluster.kubectl("scale", f"rljob/{NAME}", f"--replicas={count}")
        assert done.returncode == 0, done.stderr

    broken("scaled from 1 to 3 rollouts", lambda: scale(3), scaled(3))
    broken("scaled from 3 to 1 rollouts", lambda: scale(1), scaled(1))


def test_operator_that_is_deleted_and_upgraded_changes_no_pod(job: Watched, broken: Broken) -> None:
    before = job.uids()

    def replace() -> None:
        gone = job.cluster.kubectl("delete", "pods", "--all", "-n", whole_job.SYSTEM, "--wait=false")
        assert gone.returncode == 0, gone.stderr
        done = whole_job.install(job.cluster, "concurrency=4")
        assert done.returncode == 0, done.stderr

    broken("the operator's pod deleted, the chart upgraded", replace, lambda: True)
    assert job.uids() == before


def test_job_finishes_and_its_ledger_keeps_every_promise(job: Watched, volume_folder: pathlib.Path) -> None:
    status = job.until(whole_job.is_over, FINISHED_S)
    assert status["summary"] == "Succeeded", job.describe()
    metadata = job.get()["metadata"]
    assert isinstance(metadata, dict)
    (ledger,) = (volume_folder / str(metadata["uid"])).rglob("ledger.sqlite")
    assert lineage.audit(ledger.parent) == ""


def test_the_dashboards_show_what_broke(job: Watched, scraped: Scraping) -> None:
    assert observed.wrong_types(observed.metrics(scraped.server, scraped.span, scraped.kinds)) == []
    asked = [one for one in observed.questions(NAME, "default") if observed.needed(one)]
    seen = {one: observed.largest(scraped.server, one, scraped.span) for one in asked}
    OUT.mkdir(parents=True, exist_ok=True)
    (OUT / "observed_breaks.md").write_text(observed.page_of_breaks(seen))
    silent = [one for one, value in seen.items() if value is None and observed.needed(one) not in NOT_BROKEN]
    assert [f"{one.board}: {one.panel}: {one.query}" for one in silent] == []
