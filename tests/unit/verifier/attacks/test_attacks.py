"""Every attack of the table through the service, its workers and the launcher, at level `confined`."""

import contextlib
import json
import os
from collections.abc import AsyncIterator, Callable, Mapping

import pytest
import pytest_asyncio

from rljob_api import names, roles, types
from rljob_testing import attack_rows
from rljob_testing.attack_rows import Attack
from rljob_workers.verifier import grading, service
from rljob_workers.verifier.sandbox import confinement

MakeConfig = Callable[..., roles.VerifierConfig]
Running = Callable[..., contextlib.AbstractAsyncContextManager[service.Service]]
pytestmark = pytest.mark.asyncio(loop_scope="module")
# A machine too busy to give a program its time says so with infra_error, and the answer is asked for again.
MOST_ATTEMPTS = 60


async def serving(reward_type: str, make_config: MakeConfig, running: Running) -> AsyncIterator[grading.Grading]:
    reward = roles.GraderConfig(name="passes", type=reward_type, memory_bytes=256 << 20)
    config = make_config(reward, cpu_limit_s=1.0, wall_limit_s=100.0, max_concurrent=1)
    async with running(config) as verifier:
        yield verifier.grading


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def alone(
    make_config: MakeConfig, running: Running, confined: confinement.Confinement
) -> AsyncIterator[grading.Grading]:
    async for graded in serving("code", make_config, running):
        yield graded


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def with_processes(
    make_config: MakeConfig, running: Running, confined: confinement.Confinement
) -> AsyncIterator[grading.Grading]:
    async for graded in serving("areal-code", make_config, running):
        yield graded


async def judged(graded: grading.Grading, name: str, program: str, tests: Mapping[str, object]) -> types.Verdict:
    for attempt in range(MOST_ATTEMPTS):
        columns = {"query_id": "q", "input_output": json.dumps(tests)}
        (verdict,) = await graded.verify(
            [
                types.VerifyItem(
                    sample_id=name, attempt=attempt, prompt="", completion=f"```python\n{program}\n```", columns=columns
                )
            ]
        )
        if verdict.outcome is not names.VerifyOutcome.INFRA_ERROR:
            return verdict
    raise AssertionError(f"{name} was not judged in {MOST_ATTEMPTS} attempts")


@pytest.mark.parametrize("attack", attack_rows.ATTACKS, ids=lambda attack: f"{attack.id} {attack.what}")
async def test_attack_has_its_outcome_and_no_reward_but_for_a_right_answer(
    attack: Attack, alone: grading.Grading, with_processes: grading.Grading
) -> None:
    graded = with_processes if attack.may_fork else alone
    runner_limits = [os.sched_getaffinity(0), os.getpriority(os.PRIO_PROCESS, 0)]
    verdict = await judged(graded, f"{attack.id} {attack.what}", attack.program, attack.tests)
    assert verdict.outcome in attack.outcomes
    assert verdict.reward == attack.reward
    assert [os.sched_getaffinity(0), os.getpriority(os.PRIO_PROCESS, 0)] == runner_limits


async def test_honest_programs_after_all_attacks_are_graded_as_ever(
    alone: grading.Grading, with_processes: grading.Grading
) -> None:
    for graded in (alone, with_processes):
        for number in range(5):
            right = await judged(graded, f"right {number}", "print(sum(map(int, input().split())))", attack_rows.SUM)
            wrong = await judged(graded, f"wrong {number}", f"print({number} - 4)", attack_rows.SUM)
            assert (right.reward, wrong.reward) == (1.0, 0.0)
