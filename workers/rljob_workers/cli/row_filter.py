"""Which trajectories a person asked for. Pure: options in, a predicate out."""

import dataclasses
import math
import re
from collections.abc import Callable, Collection, Sequence

from rljob_api import errors, names
from rljob_workers.local import dumps, group_facts

_COMPARED = re.compile(r"(<=|>=|<|>|=)?\s*(\S+)")
_SAME = 1e-6
_VERDICTS = frozenset(map(str, names.VerdictReason))
_DROPS = frozenset(map(str, names.DropReason))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Empty means all. reasons: of the verdict, or why the ledger dropped the group."""

    reward: Callable[[float], bool] | None = None
    reasons: Collection[str] = ()
    prompt_ids: Collection[str] = ()
    truncated: bool = False

    def matches(self, row: dumps.Row, facts: Callable[[str], group_facts.Facts]) -> bool:
        """Return whether a row is wanted. `facts` is asked only where the row alone does not decide."""
        if self.prompt_ids and row.query_id not in self.prompt_ids:
            return False
        if self.truncated and not row.truncated:
            return False
        if self.reward is not None and not self.reward(row.reward):
            return False
        if not self.reasons or row.reason in self.reasons:
            return True
        return bool(_DROPS.intersection(self.reasons)) and facts(row.group_id).drop_reason in self.reasons


def reward_test(text: str) -> Callable[[float], bool]:
    """Return the test that `--reward` asks for: "1", ">0.5", "<=0", or "0.2..0.8" with both ends.

    Raises ManifestError for anything else.
    """
    low, dots, high = text.partition("..")
    if dots:
        least, most = _number(low, text), _number(high, text)
        return lambda reward: least <= reward <= most
    match = _COMPARED.fullmatch(text.strip())
    if match is None:
        raise _unclear(text)
    sign, value = match[1] or "=", _number(match[2], text)
    tests: dict[str, Callable[[float], bool]] = {
        "=": lambda reward: math.isclose(reward, value, rel_tol=_SAME, abs_tol=_SAME),
        "<": lambda reward: reward < value,
        "<=": lambda reward: reward <= value,
        ">": lambda reward: reward > value,
        ">=": lambda reward: reward >= value,
    }
    return tests[sign]


def checked_reasons(reasons: Sequence[str]) -> frozenset[str]:
    """Return the reasons. Raises ManifestError for one that no verdict and no drop has."""
    for reason in reasons:
        if reason not in _VERDICTS | _DROPS:
            raise errors.ManifestError(
                f"--reason is {reason!r}, but must be of a verdict ({', '.join(sorted(_VERDICTS))}) "
                f"or of a drop ({', '.join(sorted(_DROPS))})"
            )
    return frozenset(reasons)


def _number(text: str, whole: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise _unclear(whole) from None
    if math.isnan(value):
        raise _unclear(whole)
    return value


def _unclear(text: str) -> errors.ManifestError:
    return errors.ManifestError(
        f"--reward is {text!r}, but must be a number such as 1, a bound such as '>0.5' or '<=0', or a range 0.2..0.8"
    )
