"""Differences of pairs of runs that are alike but for one thing: mean, and standard error of the mean. Pure."""

import dataclasses
import math
import statistics
from collections.abc import Sequence


@dataclasses.dataclass(frozen=True, slots=True)
class Difference:
    """Of pairs: mean, and standard error of the mean; None of a single pair."""

    mean: float
    error: float | None
    num_pairs: int

    def __str__(self) -> str:
        """Return it with its sign; in brackets where it is less than two standard errors, or these are not known."""
        if self.error is None:
            return f"({self.mean:+.3f})"
        text = f"{self.mean:+.3f} ± {self.error:.3f}"
        return text if self.mean and abs(self.mean) >= 2 * self.error else f"({text})"

    @property
    def in_errors(self) -> str:
        """Return how far from its base it is in standard errors, as in "is within one standard error of"."""
        if self.error is None:
            return "has too few pairs of runs to tell how far it is from"
        if abs(self.mean) <= self.error:
            return "is within one standard error of"
        away = abs(self.mean) / self.error if self.error else math.inf
        return f"is {away:.1f} standard errors {'below' if self.mean < 0 else 'above'}"

    @property
    def in_words(self) -> str:
        """Return what it is where it stands for a cost of accuracy: a gain, a cost, or nothing that can be reported."""
        if self.error is None:
            return "has one pair of runs, which does not tell"
        if abs(self.mean) < 2 * self.error:
            return "costs nothing that these runs show"
        return f"{'costs' if self.mean < 0 else 'gains'} {abs(self.mean):.2f}"


def difference(each: Sequence[float]) -> Difference:
    """Return mean and standard error of differences. Raises ValueError without any."""
    if not each:
        raise ValueError("there is no pair of runs to compare")
    error = statistics.stdev(each) / math.sqrt(len(each)) if len(each) > 1 else None
    return Difference(statistics.fmean(each), error, len(each))


def pooled(parts: Sequence[Difference]) -> Difference:
    """Return the mean over parts that count alike, such as tasks, whatever their numbers of pairs.

    Its error is that of independent parts, sqrt(sum of squared errors) / parts: a spread between parts, as of tasks of
    which one suffers and another gains, is no noise and not in it. None where a part has none.
    """
    if not parts:
        raise ValueError("there is nothing to pool")
    errors = [part.error for part in parts]
    squares = [error**2 for error in errors if error is not None]
    return Difference(
        statistics.fmean(part.mean for part in parts),
        math.sqrt(math.fsum(squares)) / len(parts) if len(squares) == len(parts) else None,
        sum(part.num_pairs for part in parts),
    )
