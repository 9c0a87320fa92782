"""Every attack of the table on a real verifier pod of a job, as the chart's operator makes it:
docs/design/sandbox.md#s-8.

Rollouts and trainers of these jobs hang from the start: nothing of an engine is attacked. After each attack the pod
grades a hundred ordinary programs, right ones and wrong ones, about as fast as before.
"""

import asyncio
import contextlib
import dataclasses
import itertools
import json
import statistics
import time
from collections.abc import AsyncIterator, Iterator, Mapping

import pytest

from rljob_api import cluster_placement, types
from rljob_testing import attack_rows, attack_runs
from rljob_testing.attack_rows import Attack
from rljob_testing.cluster import carried, forwarding, whole_job
from rljob_testing.cluster.full import FullCluster
from rljob_testing.cluster.manifests import Object
from rljob_testing.cluster.whole_job import Watched
from rljob_workers.rpc import verify
from rljob_workers.runtime import clock

READY_S = 300.0
GRADED_S = 300.0
NUM_ORDINARY = 100
# A hundred programs take seconds; two cores have other pods to serve.
SLOWER = 3.0
MOST_LOOKS = 4
# Two pods and the operator on a node of two processors.
RESOURCES = {"cpu": "900m", "memory": "1Gi"}
# What the table of programs has not: attacks that need a listener, another run or a second request alongside them,
# hostile answers to maths, and what an execution may not do.
INSIDE = [
    f"tests/unit/rljob_workers/verifier/{name}.py"
    for name in (
        "sandbox/attacks/test_outside", "sandbox/attacks/test_neighbours", "sandbox/attacks/test_repository",
        "test_hostile_maths", "sandbox/test_fork_bound", "graders/test_spans", "sandbox/test_code_service",
        "sandbox/test_confinement", "graders/test_grading", "graders/test_pool", "graders/test_answers",
        "sandbox/test_program_isolation", "sandbox/test_execution_properties", "sandbox/test_whole_tree",
        "sandbox/test_path_view",
    )
]  # fmt: skip
INSIDE_S = 900.0
CARRIED_TO = "/tmp/carried"
HANGS = ["sh", "-c", "exec sleep 3600"]
CODE, AREAL = "code", "areal-code"
# One job for each reward type and CPU limit that attacks ask for.
JOBS = {
    f"attacked-{kind}-{name}": (kind, seconds)
    for kind in (CODE, AREAL)
    for name, seconds in (("short", attack_runs.SHORT_S), ("long", attack_runs.LONG_S))
}


@dataclasses.dataclass(frozen=True, slots=True)
class Pod:
    """A verifier's pod. address: on loopback. usual_s: seconds that ordinary programs take it, before any attack."""

    name: str
    address: str
    usual_s: float


Pods = Mapping[tuple[str, float], Pod]


def job(name: str, kind: str, seconds: float) -> Object:
    """Return a job whose verifier runs programs with a limit of CPU."""
    return whole_job.addition(
        name,
        {
            "storage": {"type": "Ephemeral"},
            "security.tls": "Disabled",
            "rollout.pod.commandPrefix": HANGS,
            "trainer.pod.commandPrefix": HANGS,
            "verifier.rewards": [{"name": "passes", "type": kind}],
            "verifier.timeoutSeconds": int(seconds),
            "verifier.pod.resources": dict.fromkeys(("requests", "limits"), RESOURCES),
            "evaluation": {},
        },
    )


@pytest.fixture(scope="module")
def pods(all_asked: None, operator: FullCluster) -> Iterator[Pods]:
    """The verifier pods of the jobs, by reward type and CPU limit."""
    with contextlib.ExitStack() as undo:
        for name, asked in JOBS.items():
            whole_job.apply(operator, [whole_job.data(), job(name, *asked)])
            undo.callback(operator.kubectl, "delete", "rljob", name, "--wait=false")
        found = dict[tuple[str, float], Pod]()
        for name, asked in JOBS.items():
            watched = Watched(operator, name)
            watched.until(whole_job.holds("VerifierReady"), READY_S)
            pod = watched.one("verifier").name
            address = undo.enter_context(forwarding.forwarded(operator, pod, cluster_placement.VERIFY_PORT))
            took = [asyncio.run(ordinary_s(address)) for _ in range(3)]
            found[asked] = Pod(name=pod, address=address, usual_s=statistics.median(took))
        yield found


@contextlib.asynccontextmanager
async def client(address: str) -> AsyncIterator[verify.GradingClient]:
    """Yield a client of one verifier, as a rollout has it."""
    made = verify.GradingClient(
        addresses=[address], tls=None, timeout_s=GRADED_S, max_attempts=3, clock=clock.SystemClock()
    )
    try:
        yield made
    finally:
        await made.close()


async def ordinary_s(address: str) -> float:
    """Let a hundred programs be graded, every second one wrong; return the seconds that it took."""
    columns = {"query_id": "q", "input_output": json.dumps(attack_rows.SUM)}
    programs = [f"print(sum(map(int, input().split())) + {number % 2})" for number in range(NUM_ORDINARY)]
    items = [
        types.VerifyItem(
            sample_id=f"ordinary {next(_NUMBERS)}", attempt=1, prompt="", completion=f"```python\n{program}\n```",
            columns=columns,
        )
        for program in programs
    ]  # fmt: skip
    began = time.monotonic()
    async with client(address) as graded:
        verdicts = await graded.verify(items)
    took = time.monotonic() - began
    assert [verdict.reward for verdict in verdicts] == [1.0, 0.0] * (NUM_ORDINARY // 2)
    return took


_NUMBERS = itertools.count()


@pytest.mark.parametrize("attack", attack_rows.ATTACKS, ids=lambda attack: f"{attack.id} {attack.what}")
async def test_attack_on_a_pod_has_its_outcome_and_ordinary_programs_are_graded_as_before(
    attack: Attack, pods: Pods, operator: FullCluster
) -> None:
    kind, seconds = attack_runs.serving(attack)
    pod = pods[kind.removeprefix("patient-"), seconds]
    async with client(pod.address) as graded:
        verdict = await attack_runs.judged(graded, f"{attack.id} {attack.what}", attack.program, attack.tests)
    assert verdict.outcome in attack.outcomes
    assert verdict.reward == attack.reward
    # Others' load passes; what an attack left in the pod stays.
    took = [await ordinary_s(pod.address)]
    while min(took) > SLOWER * pod.usual_s and len(took) < MOST_LOOKS:
        took.append(await ordinary_s(pod.address))
    assert min(took) <= SLOWER * pod.usual_s, took


def test_what_attacks_a_verifier_from_its_own_machine_fails_inside_a_pod_too(pods: Pods, operator: FullCluster) -> None:
    pod = pods[CODE, attack_runs.LONG_S].name
    carried.carry(operator, pod, CARRIED_TO)
    done = carried.run(operator, pod, CARRIED_TO, INSIDE, timeout_s=INSIDE_S)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "SKIPPED" not in done.stdout, done.stdout
    print(f"{pod}: {done.stdout.splitlines()[-1]}")


def test_pods_reached_the_level_that_was_asked_for_and_none_was_started_again(
    pods: Pods, operator: FullCluster
) -> None:
    for name, asked in JOBS.items():
        watched = Watched(operator, name)
        now = watched.one("verifier")
        assert (now.name, now.restarts) == (pods[asked].name, 0)
        status = watched.status()
        layers = {str(row["name"]): row["state"] for row in status["isolation"]}
        assert layers, watched.describe()
        assert whole_job.condition(status, "VerifierReady")["status"] == "True"
