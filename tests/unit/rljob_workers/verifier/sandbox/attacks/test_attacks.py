"""Every attack of the table through the service, its workers and the launcher, at level `confined`: in forks of a warm
interpreter, in forks of one that has imported packages for its programs, and in interpreters of their own.
"""

import contextlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
import pytest_asyncio

from rljob_api import process_config
from rljob_testing import attack_rows, attack_runs, patient_code
from rljob_testing.attack_rows import Attack
from rljob_workers.verifier import grading, service
from rljob_workers.verifier.sandbox.confinement import profile

MakeConfig = Callable[..., process_config.VerifierConfig]
Running = Callable[..., contextlib.AbstractAsyncContextManager[service.Service]]
Served = Callable[[str], Awaitable[grading.Grading]]
INTERPRETERS = {"warm": (), "packages": ("numpy", "networkx"), "fresh": ()}
pytestmark = pytest.mark.asyncio(loop_scope="module")


def task_of(reward_type: str, cpu_s: float) -> str:
    """Return the task of records that a reward with this limit grades."""
    return f"{reward_type} in {cpu_s:g} s"


def rewards_in(interpreter: str) -> list[process_config.GraderConfig]:
    """Return what an interpreter's attacks need, each for records of a task of its own."""
    kinds = sorted({attack_runs.serving(attack, fresh=interpreter == "fresh") for attack in attack_rows.ATTACKS})
    return [
        process_config.GraderConfig(
            name=f"passes-{number}",
            type=reward_type,
            tasks=(task_of(reward_type, cpu_s),),
            memory_bytes=256 << 20,
            cpu_limit_s=cpu_s,
            wall_limit_s=250.0,
            packages=INTERPRETERS[interpreter],
        )
        for number, (reward_type, cpu_s) in enumerate(kinds)
    ]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served(make_config: MakeConfig, running: Running, confined: profile.Confinement) -> AsyncIterator[Served]:
    """Return the service of an interpreter, started when it is first asked for."""
    started: dict[str, grading.Grading] = {}
    async with contextlib.AsyncExitStack() as stack:

        async def serve(interpreter: str) -> grading.Grading:
            if interpreter not in started:
                config = make_config(rewards=rewards_in(interpreter), num_slots=1)
                verifier = await stack.enter_async_context(running(config, *patient_code.TYPES))
                started[interpreter] = verifier.grading
            return started[interpreter]

        yield serve


@pytest.mark.covers(
    "sandbox P1",
    "sandbox P3",
    "sandbox P4",
    "sandbox P5",
    "sandbox P6",
    "sandbox P7",
    "sandbox P9",
    "sandbox S-4",
    "sandbox 4",
)
@pytest.mark.parametrize("interpreter", INTERPRETERS)
@pytest.mark.parametrize("attack", attack_rows.ATTACKS, ids=lambda attack: f"{attack.id} {attack.what}")
async def test_attack_has_its_outcome_and_no_reward_but_for_a_right_answer(
    attack: Attack, interpreter: str, served: Served
) -> None:
    before = [os.sched_getaffinity(0), os.getpriority(os.PRIO_PROCESS, 0)]
    task = task_of(*attack_runs.serving(attack, fresh=interpreter == "fresh"))
    graded, name = await served(interpreter), f"{attack.id} {attack.what}"
    verdict = await attack_runs.judged(graded, name, attack.program, attack.tests, task=task)
    assert verdict.outcome in attack.outcomes
    assert verdict.reward == attack.reward
    assert [os.sched_getaffinity(0), os.getpriority(os.PRIO_PROCESS, 0)] == before


@pytest.mark.parametrize(
    ("reward_type", "interpreter"), [("code", "warm"), ("areal-code", "warm"), ("fresh-code", "fresh")]
)
async def test_honest_programs_after_all_attacks_are_graded_as_ever(
    reward_type: str, interpreter: str, served: Served
) -> None:
    graded, task = await served(interpreter), task_of(reward_type, attack_runs.LONG_S)
    for number in range(5):
        right = await attack_runs.judged(
            graded, f"right {number}", "print(sum(map(int, input().split())))", attack_rows.SUM, task=task
        )
        wrong = await attack_runs.judged(graded, f"wrong {number}", f"print({number} - 4)", attack_rows.SUM, task=task)
        assert (right.reward, wrong.reward) == (1.0, 0.0)
