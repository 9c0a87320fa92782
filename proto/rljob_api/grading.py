"""Time limits of one grading. Pure. Source: docs/design/graders.md#s-3-3.

Where the manifest sets none, the type does (`reward_options.Options.cpu_s`). CPU seconds are those of one time limit:
of an (answer, gold) pair for areal-math, of a test case where a program runs, of the answer elsewhere. Wall time is
capped so that a worker which gets no CPU is noticed; for programs it is a limit. All are seconds of the reference
machine, which a verifier multiplies by what it measures of its own (docs/design/sandbox.md#s-9), but for the wall time
of an answer with a program.
"""

from collections.abc import Mapping, Sequence

from rljob_api.manifest import reward_options
from rljob_api.manifest.reward_options import OPTIONS
from rljob_api.manifest.verifier import PROGRAM_REWARDS, RewardSpec

WALL_FACTOR = 3
PROGRAM_WALL_S = 200.0
# Seconds of a verifier's machine per reference second, at least and at most.
LEAST_FACTOR, MOST_FACTOR = 0.5, 4.0


def cpu_s(reward: RewardSpec, timeout_seconds: int | None) -> float:
    """Return the CPU seconds of one time limit: `timeout_seconds` where the manifest sets it, else by type."""
    if timeout_seconds is not None:
        return float(timeout_seconds)
    options = reward_options.options_class(reward.type).model_validate(reward.config)
    return options.cpu_s(reward.mode)


def wall_s(reward: RewardSpec, timeout_seconds: int | None) -> float:
    """Return the wall seconds of one time limit; of the whole answer where a program runs."""
    return PROGRAM_WALL_S if reward.type in PROGRAM_REWARDS else WALL_FACTOR * cpu_s(reward, timeout_seconds)


def most_wall_s(reward: RewardSpec, timeout_seconds: int | None) -> float:
    """Return the wall seconds of one time limit on the slowest machine."""
    slowest = 1.0 if reward.type in PROGRAM_REWARDS else MOST_FACTOR
    return slowest * wall_s(reward, timeout_seconds)


WORKFLOW = "math_code_single_step"
OF_TYPE: Mapping[str, tuple[str, ...]] = {type_: kind.tasks for type_, kind in OPTIONS.items() if kind.tasks}


def tasks_of_reward(reward: RewardSpec, *, listed: Sequence[RewardSpec], workflow: str) -> tuple[str, ...]:
    """Return the tasks whose records `reward` grades, one of those `listed` together; empty: records of any task.

    Records are told apart only where both types stand in the list. One alone grades all there is, so that a record
    which it cannot grade is refused and not left out.
    """
    if workflow != WORKFLOW or not {other.type for other in listed}.issuperset(OF_TYPE):
        return ()
    return OF_TYPE.get(reward.type, ())
