"""Is this rollout fit to be counted? Pure but for the time passed in. Source: operator reference 10.1-10.4.

Ready only once it serves a verified version within the staleness bound of the newest published step that it knows.
It turns unready when it lags longer than a grace period, refuses, or makes no token progress with requests inside.
"""

import dataclasses

from rljob_api.names import ReceiverState
from rljob_workers.rollout import receiver_states

LAG_GRACE_S = 30.0
LAG_GRACE_SYNCS = 3.0
STUCK_UNREADY_S = 60.0
STUCK_DEAD_S = 180.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """What is seen at one moment; `num_generated` counts tokens since the start."""

    now_s: float
    state: ReceiverState
    started: bool
    served_step: int
    newest_step: int
    median_sync_s: float
    num_running: int
    num_generated: int
    paused: bool


class Readiness:
    """Remembers since when it lags and since when nothing moved. Read by the probes' thread."""

    def __init__(self, *, max_lag_steps: int) -> None:
        """Not ready before the first observation."""
        self._max_lag_steps = max_lag_steps
        self._was_ready = False
        self._lagging_since: float | None = None
        self._moved_at: float | None = None
        self._last: Observation | None = None
        self.ready: tuple[bool, str] = (False, "starting")
        self.alive: tuple[bool, str] = (True, "ok")

    def observe(self, seen: Observation) -> None:
        """Draw the conclusions of one observation."""
        stuck_s = self._stuck_s(seen)
        self.alive = (stuck_s < STUCK_DEAD_S, "ok" if stuck_s < STUCK_DEAD_S else f"no token for {stuck_s:.0f} s")
        self.ready = self._judge(seen, stuck_s)
        self._was_ready = self._was_ready or self.ready[0]
        self._last = seen

    def _judge(self, seen: Observation, stuck_s: float) -> tuple[bool, str]:
        if not seen.started:
            return False, "loading the newest version"
        if not receiver_states.may_generate(seen.state):
            return False, f"weight receiver is {seen.state}"
        if stuck_s >= STUCK_UNREADY_S:
            return False, f"no token for {stuck_s:.0f} s"
        lag = seen.newest_step - seen.served_step
        if lag <= self._max_lag_steps:
            self._lagging_since = None
            return True, f"serves step {seen.served_step}"
        if self._lagging_since is None:
            self._lagging_since = seen.now_s
        grace_s = max(LAG_GRACE_S, LAG_GRACE_SYNCS * seen.median_sync_s)
        within = self._was_ready and seen.now_s - self._lagging_since <= grace_s
        return within, f"serves step {seen.served_step}, {lag} behind"

    def _stuck_s(self, seen: Observation) -> float:
        last = self._last
        moved = last is None or not seen.num_running or seen.paused or seen.num_generated != last.num_generated
        if moved or self._moved_at is None:
            self._moved_at = seen.now_s
        return seen.now_s - self._moved_at
