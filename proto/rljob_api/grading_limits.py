"""Time limits of one grading by reward type, where the manifest sets none. Pure. Source: graders reference 3.3.

CPU seconds are those of one clock: of an (answer, gold) pair for areal-math, of a test case where a program runs, of
the answer elsewhere. Wall time is capped so that a worker which gets no CPU is noticed; for programs it is a limit.
All are seconds of the reference machine, which a verifier multiplies by what it measures of its own (isolation
reference 9), but for the wall time of an answer with a program.
"""

from rljob_api.manifest.verifier import PROGRAM_REWARDS, REPOSITORY_TESTS, RewardSpec

WALL_FACTOR = 3
PROGRAM_WALL_S = 200.0
# Seconds of a verifier's machine per reference second, at least and at most.
LEAST_FACTOR, MOST_FACTOR = 0.5, 4.0

_OURS_S = 10.0
_PROGRAM_CASE_S = 6.0
_PAIR_COMPAT_S, _PAIR_STRICT_S = 15.0, 5.0
_PLAIN_S = 1.0
_OAT_LIBRARY_S = 2.0
_GSM8K_LIBRARY_S = 5.0


def cpu_s(reward: RewardSpec, timeout_seconds: int | None) -> float:
    """Return the CPU seconds of one clock: `timeout_seconds` where the manifest sets it, else by type."""
    return _by_type(reward) if timeout_seconds is None else float(timeout_seconds)


def wall_s(reward: RewardSpec, timeout_seconds: int | None) -> float:
    """Return the wall seconds of one clock; of the whole answer where a program runs."""
    return PROGRAM_WALL_S if reward.type in PROGRAM_REWARDS else WALL_FACTOR * cpu_s(reward, timeout_seconds)


def most_wall_s(reward: RewardSpec, timeout_seconds: int | None) -> float:
    """Return the wall seconds of one clock on the slowest machine."""
    slowest = 1.0 if reward.type in PROGRAM_REWARDS else MOST_FACTOR
    return slowest * wall_s(reward, timeout_seconds)


def _by_type(reward: RewardSpec) -> float:
    if reward.type == REPOSITORY_TESTS:
        return _OURS_S
    if reward.type in PROGRAM_REWARDS:
        return _PROGRAM_CASE_S
    if reward.type == "areal-math":
        return _PAIR_COMPAT_S if reward.mode == "compat" else _PAIR_STRICT_S
    if reward.type in ("boxed", "answer_tag"):
        return _PLAIN_S + (_OAT_LIBRARY_S if reward.config.get("verifierVersion") == "math_verify" else 0.0)
    if reward.type == "gsm8k":
        return _GSM8K_LIBRARY_S if reward.config.get("method") == "math_verify" else _PLAIN_S
    return _PLAIN_S if reward.type == "clevr_count_70k" else _OURS_S
