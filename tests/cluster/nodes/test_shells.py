"""500 episodes with a shell in the environments of a job on two nodes, one of whose kubelets stops in the middle.

Rollouts and trainer of the job hang from the start: the episodes are this process's, by the code of a rollout, on ports
of the pods. Each plants a file, a process, a variable and a module where it works, once it has looked for others'.
"""

import asyncio
import contextlib
import statistics
import time
from collections.abc import AsyncIterator, Iterator, Sequence

import pytest

from rljob_api import cluster_placement, types
from rljob_testing import rollout as fakes
from rljob_testing import shells
from rljob_testing.cluster import forwarding, images, whole_job
from rljob_testing.cluster.full import FullCluster
from rljob_testing.cluster.whole_job import Watched
from rljob_workers.rollout import generation, wait_accounting
from rljob_workers.rpc import environment
from rljob_workers.runtime import clock as clocks

NAME = "shells"
# The places of either node are enough for all that are at work at once, and for as many that are made ready again:
# claims are of warm places, before the kubelet stops and after.
NUM_EPISODES, AT_ONCE, NUM_PLACES, STOPPED_AT = 500, 4, 8, 150
READY_S, BACK_S = 600.0, 300.0
CLAIM_P50_S = 0.060
APART = {
    "podAntiAffinity": {
        "preferredDuringSchedulingIgnoredDuringExecution": [
            {
                "weight": 100,
                "podAffinityTerm": {
                    "labelSelector": {"matchLabels": {"rljob.dev/role": "environment"}},
                    "topologyKey": "kubernetes.io/hostname",
                },
            }
        ]
    }
}
JOB: dict[str, object] = {
    **whole_job.QUIET,
    "security.tls": "Disabled",
    "workflow": {"type": "tool_use", "config": {"tools": ["shell"], "notation": "terminal"}},
    "environment": {
        # Another one than the verifiers': it has torch, which no grader needs.
        "image": images.WORKER.name,
        "replicas": 2,
        "places": NUM_PLACES,
        "memory": "128Mi",
        "scratch": "8Mi",
        "resources": {"limits": {"cpu": "500m"}},
    },
    "verifier.pod.affinity": APART,
    "evaluation": {},
}
# Says what is there of another episode, and nothing where nothing is.
LOOK = (
    "ls -A; ls -A $TMPDIR; echo -n $PLANTED; python3 -c 'import planted' 2> /dev/null && echo module;"
    " ls -A ~/.local 2> /dev/null; true"
)
PLANT = (
    "export PLANTED=variable; echo file > left; echo file > $TMPDIR/left; echo 'x = 1' > planted.py;"
    " mkdir -p ~/.local/lib; (while :; do echo process > alive; sleep 0.1; done) > /dev/null 2>&1 &"
)


class Script:
    """A generator: it looks, then plants. With its 150th look a kubelet is stopped."""

    def __init__(self, stop: asyncio.Event) -> None:
        self.stop, self.num_looks = stop, 0

    async def generate(self, request: generation.GenerationRequest) -> generation.GenerationResult:
        is_first = "\n$" not in "".join(map(chr, request.input_ids))
        self.num_looks += is_first
        if self.num_looks == STOPPED_AT:
            self.stop.set()
        return shells.line(LOOK if is_first else PLANT)


class Timed:
    """Places, and how long each claim took."""

    def __init__(self, inner: environment.Environments) -> None:
        self.inner, self.claims_s = inner, list[float]()

    @contextlib.asynccontextmanager
    async def open(self, episode: str, *, wait_s: float) -> AsyncIterator[environment.Shell]:
        began = time.monotonic()
        async with self.inner.open(episode, wait_s=wait_s) as shell:
            self.claims_s.append(time.monotonic() - began)
            yield shell


@pytest.fixture(scope="module")
def job(all_asked: None, operator: FullCluster) -> Iterator[Watched]:
    """The job, from when all of its environments are ready."""
    whole_job.apply(operator, [whole_job.data(), whole_job.addition(NAME, JOB)])
    watched = Watched(operator, NAME)
    try:
        watched.until(lambda _: [pod.ready for pod in watched.staying("environment")] == [True, True], READY_S)
        yield watched
    finally:
        operator.kubectl("delete", "rljob", NAME, "--wait=false")


def lease(number: int) -> types.GroupLease:
    record = types.PromptRecord(
        prompt_id=f"task-{number}",
        source="train",
        columns={"prompt": "$ ", "tests": ["test -f left", "test -f planted.py", 'test -z "$PLANTED"']},
    )
    return fakes.make_lease(f"lease-{number}", prompt=record, group_size=1, sampling=types.Sampling(max_tokens=512))


def test_environments_run_the_image_of_their_own(job: Watched, operator: FullCluster) -> None:
    def images_of(role: str) -> list[str]:
        path = "jsonpath={.items[*].spec.containers[*].image}"
        return operator.kubectl("get", "pods", f"--selector=rljob.dev/role={role}", "--output", path).stdout.split()

    assert images_of("environment") == [images.WORKER.name] * 2
    assert images_of("verifier") == [images.SLIM.name]


async def test_a_stopped_kubelet_costs_no_episode_and_no_place_has_anything_of_another(
    job: Watched, operator: FullCluster
) -> None:
    pods = job.staying("environment")
    assert len({pod.node for pod in pods}) == 2, job.describe()
    lost = next(pod for pod in pods if pod.node != "node-a")
    node = next(node for node in operator.nodes if node.name == lost.node)
    with contextlib.ExitStack() as ways:
        by_pod = {
            pod.name: ways.enter_context(forwarding.forwarded(operator, pod.name, cluster_placement.PLACES_PORT))
            for pod in pods
        }

        async def look_up(_: str) -> Sequence[str]:
            return list(by_pod.values())

        stop, clock = asyncio.Event(), clocks.SystemClock()
        places = environment.Environments(names=[f"{NAME}:1"], tls=None, clock=clock, look_up=look_up)
        timed, script = Timed(places), Script(stop)
        groups = shells.group_runner(script, timed, clock, num_turns=2)
        slots, at_once = wait_accounting.SlotWaits(num_slots=AT_ONCE, clock=clock), asyncio.Semaphore(AT_ONCE)

        async def episode(number: int) -> types.PromptGroup:
            async with at_once:
                return (await groups.run(lease(number), slots.open_slot())).group

        async def break_node() -> None:
            await stop.wait()
            # The way to its pod is gone with it.
            await asyncio.to_thread(node.stop_kubelet)

        try:
            breaking = asyncio.ensure_future(break_node())
            ended = await asyncio.gather(*(episode(number) for number in range(NUM_EPISODES)))
            await breaking
        finally:
            await places.close()
            node.start_kubelet(operator.home.address)
    assert [group.failures for group in ended] == [[]] * NUM_EPISODES
    rows = [row for group in ended for row in group.trajectories]
    assert [row.reward for row in rows] == [1.0] * NUM_EPISODES
    # What the first command said is between it and the second one.
    texts = ["".join(map(chr, row.tokens)) for row in rows]
    assert [text for text in texts if text != f"$ {LOOK}\x02\n${PLANT}\x02"] == []
    print(f"claims: p50 {statistics.median(timed.claims_s):.3f} s, most {max(timed.claims_s):.3f} s")
    assert statistics.median(timed.claims_s) <= CLAIM_P50_S
    assert script.num_looks > NUM_EPISODES, "no attempt was made again: the kubelet stopped between episodes"
    job.until(lambda _: [pod.ready for pod in job.staying("environment")] == [True, True], BACK_S)
