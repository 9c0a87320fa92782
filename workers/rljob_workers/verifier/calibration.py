"""How fast this machine is: limits on CPU time are in seconds of the reference machine, times the factor kept here.

At the start and every 10 minutes a fixed program is timed (`sandbox/processes/cpu_timing.py`), in CPU seconds, so that
a busy neighbour changes no limit. The factor is clipped: whatever disturbs a measurement, limits stay within these
bounds, and so does the time that callers wait (`grading.most_wall_s`).
"""

import logging
import statistics
from collections.abc import Awaitable, Callable, Sequence

from rljob_api import grading
from rljob_workers.runtime import clock as clocks
from rljob_workers.runtime import metrics as metrics_module
from rljob_workers.verifier.sandbox.processes import spawn

logger = logging.getLogger(__name__)

# One repetition of the fixed program by Python 3.11 on the reference machine, two cores of an AMD EPYC of the fourth
# generation: from 8.7 to 11.3 ms, the medians of 46 runs at different times of a day on which others were busy there.
REFERENCE_S = 0.010
EVERY_S = 600.0

Measure = Callable[[], Awaitable[Sequence[float]]]


def factor(measured_s: Sequence[float], *, reference_s: float = REFERENCE_S) -> float:
    """Return seconds of this machine per reference second: median over reference, at least 0.5 and at most 4.

    measured_s: CPU seconds of the repetitions. Raises ValueError without any.
    """
    if not measured_s:
        raise ValueError("measured_s is empty, but a machine is calibrated by at least one repetition")
    ratio = statistics.median(measured_s) / reference_s
    return min(max(ratio, grading.LEAST_FACTOR), grading.MOST_FACTOR)


def due_in_s(*, now_s: float, last_s: float) -> float:
    """Return the seconds until the next measurement, 0 if it is due; both monotonic, the last one's when it began."""
    return max(0.0, last_s + EVERY_S - now_s)


class Calibration:
    """Keeps the factor: 1 before the first measurement, and the last one's after a measurement that failed."""

    def __init__(self, *, measure: Measure, metrics: metrics_module.Metrics, clock: clocks.Clock) -> None:
        """`measure`: returns the CPU seconds of the repetitions, or raises CannotRunError. Nothing is measured yet."""
        self._measure, self._metrics, self._clock = measure, metrics, clock
        self._factor, self._last_s = 1.0, clock.monotonic()

    @property
    def factor(self) -> float:
        """Return seconds of this machine per reference second."""
        return self._factor

    async def measure(self) -> None:
        self._last_s = self._clock.monotonic()
        try:
            measured_s = await self._measure()
        except spawn.CannotRunError as error:
            logger.warning("limits on CPU time stayed those of the reference machine x %.2f: %s", self._factor, error)
        else:
            self._factor = factor(measured_s)
            logger.info(
                "limits on CPU time are those of the reference machine x %.2f: a program took %.1f ms, and %.1f there",
                self._factor, statistics.median(measured_s) * 1000, REFERENCE_S * 1000,
            )  # fmt: skip
        self._metrics.gauge("rljob_verifier_calibration_ratio").set(self._factor)

    async def keep(self) -> None:
        """Measure again every 10 minutes; returns never."""
        while True:
            await self._clock.sleep(due_in_s(now_s=self._clock.monotonic(), last_s=self._last_s))
            await self.measure()
