"""How an attack of the table is run: the reward type and limits that fit it; asked again where no one judged it."""

import json
from collections.abc import Mapping

from rljob_api import enums, types
from rljob_testing.attack_rows import Attack
from rljob_workers.rpc import verify

# A machine too busy to give a program its time says so with infra_error, and the answer is asked for again.
MOST_ATTEMPTS = 20
# Limits of CPU: one that is to be met, and one that is not, because another limit comes first.
SHORT_S, LONG_S = 1.0, 10.0


def serving(attack: Attack, *, fresh: bool = False) -> tuple[str, float]:
    """Return the reward type and the CPU limit under which only the limit that the attack meets can end it."""
    reward_type = "areal-code" if attack.may_fork else "code"
    reward_type = f"fresh-{reward_type}" if fresh else reward_type
    if enums.VerifyOutcome.TIMEOUT_CPU in attack.outcomes:
        return f"patient-{reward_type}", SHORT_S
    return reward_type, SHORT_S if enums.VerifyOutcome.TIMEOUT_WALL in attack.outcomes else LONG_S


async def judged(
    graded: verify.Grading, name: str, program: str, tests: Mapping[str, object], **more: object
) -> types.Verdict:
    """Return the verdict on a program. more: columns of its record. Raises AssertionError if the machine never gave it
    its time.
    """
    columns = {"query_id": "q", "input_output": json.dumps(tests), **more}
    return await answered(graded, name, f"```python\n{program}\n```", columns)


async def answered(graded: verify.Grading, name: str, completion: str, columns: Mapping[str, object]) -> types.Verdict:
    """Return the verdict on a completion. Raises AssertionError if the machine never gave it its time."""
    for attempt in range(MOST_ATTEMPTS):
        item = types.VerifyItem(sample_id=name, attempt=attempt, prompt="", completion=completion, columns=columns)
        (verdict,) = await graded.verify([item])
        if verdict.outcome is not enums.VerifyOutcome.INFRA_ERROR:
            return verdict
    raise AssertionError(f"{name} was not judged in {MOST_ATTEMPTS} attempts")
