"""ST-6: the attack table through a verifier: how many attacks have the outcome that the reference admits, and the wall.

A peer would have no meaning: the first row's is the number of attacks, the second one's is the bound of 5 minutes.
"""

import asyncio
import contextlib
import pathlib
import sys
import time
from collections.abc import Sequence

from tests.bench import runner
from tests.bench.rows import c7_maths

from rljob_api import enums, process_config

MOST_S = 300.0


def measure(size: str, out: pathlib.Path) -> Sequence[runner.Measured]:
    """Return both rows: on the attacks that need no limit's time, or on all; it writes nothing to `out`."""
    del out
    # The workers import reward types of the tests, too.
    sys.path.append(str(pathlib.Path(__file__).parents[2]))
    started_s = time.perf_counter()
    judged, others = asyncio.run(_judge(size))
    wall_s = time.perf_counter() - started_s
    return [
        runner.Measured(
            row="ST6",
            title="attacks with the expected outcome, of all",
            unit="attacks",
            pairs=[runner.Pair(judged - len(others), judged)],
            notes=others,
        ),
        runner.Measured(
            row="ST6-wall",
            title="wall of the attack suite, of 5 minutes",
            unit="s",
            pairs=[runner.Pair(wall_s, MOST_S)],
            params={"attacks": judged},
        ),
    ]


async def _judge(size: str) -> tuple[int, list[str]]:
    from rljob_testing import attack_rows, attack_runs, patient_code

    attacks = attack_rows.ATTACKS if size == "full" else attack_rows.VERDICT
    others = []
    async with contextlib.AsyncExitStack() as stack:
        serving = {}
        for attack in attacks:
            reward_type, cpu_s = attack_runs.serving(attack)
            if (reward_type, cpu_s) not in serving:
                reward = process_config.GraderConfig(
                    name="r", type=reward_type, cpu_limit_s=cpu_s, wall_limit_s=250.0, memory_bytes=256 << 20
                )
                verifier = c7_maths.verifier_of(reward, num_slots=1, extra=patient_code.TYPES)
                serving[reward_type, cpu_s] = await stack.enter_async_context(verifier)
            graded = serving[reward_type, cpu_s].grading
            name = f"{attack.id} {attack.what}"
            verdict = await attack_runs.judged(graded, name, attack.program, attack.tests)
            if verdict.outcome not in attack.outcomes or verdict.reward != attack.reward:
                others.append(f"{name}: {enums.VerifyOutcome(verdict.outcome)}, reward {verdict.reward}")
    return len(attacks), others
