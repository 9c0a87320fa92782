"""Ends the processes of a run in order: trainer (which saves a checkpoint), rollouts, agents, environments, judge,
verifiers, coordinator.

Later roles serve the earlier ones: the trainer's last checkpoint is committed at the coordinator, a draining rollout
hands its leases back to it and still needs its agents and its verifier. `tick` is called until `finished`.
"""

import dataclasses
from collections.abc import Callable, Mapping

from rljob_api import enums
from rljob_workers.local.run import supervise
from rljob_workers.runtime import clock as clocks

# Asks a trainer to stop at the next step boundary (POST /stop); False if it does not listen (yet).
AskToStop = Callable[[], bool]

ORDER = (
    enums.Role.TRAINER,
    enums.Role.ROLLOUT,
    enums.Role.AGENTS,
    enums.Role.ENVIRONMENT,
    enums.Role.JUDGE,
    enums.Role.VERIFIER,
    enums.Role.COORDINATOR,
)
_ASK_AGAIN_S = 1.0
# A trainer that no one can ask for this long is still starting and has nothing to save.
_UNASKED_S = 3.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Seconds that a role gets to end by itself, and that it gets after SIGTERM where it was asked otherwise first."""

    checkpoint_s: float = 120.0
    drain_s: float = 10.0
    short_s: float = 10.0


class Shutdown:
    """One orderly end of a run. Without `ask_trainer` the trainer is expected to be gone or is ended by SIGTERM."""

    def __init__(
        self,
        *,
        supervisor: supervise.Supervisor,
        clock: clocks.Clock,
        bounds: Bounds,
        ask_trainer: AskToStop | None = None,
    ) -> None:
        """Begin with the first role; nothing is asked before the first tick."""
        self._supervisor, self._clock, self._ask_trainer = supervisor, clock, ask_trainer
        self._bound_s: Mapping[enums.Role, float] = {
            enums.Role.TRAINER: bounds.short_s,
            enums.Role.ROLLOUT: bounds.drain_s,
            enums.Role.AGENTS: bounds.short_s,
            enums.Role.ENVIRONMENT: bounds.short_s,
            enums.Role.JUDGE: bounds.short_s,
            enums.Role.VERIFIER: bounds.short_s,
            enums.Role.COORDINATOR: bounds.short_s,
        }
        self._checkpoint_s = bounds.checkpoint_s
        self._stage, self._since, self._termed, self._asked_at = 0, clock.monotonic(), False, -_ASK_AGAIN_S
        self._heard = False

    @property
    def finished(self) -> bool:
        return self._stage == len(ORDER)

    @property
    def waiting_for(self) -> str:
        """Return what is awaited now, in words."""
        if self.finished:
            return "nothing"
        role = ORDER[self._stage]
        return "the trainer's checkpoint" if role is enums.Role.TRAINER and not self._termed else f"the {role} to end"

    def tick(self) -> None:
        """Do what is due. Endings are noticed by the supervisor's own tick, which the caller runs alongside this
        one.
        """
        while not self.finished and not self._supervisor.running(ORDER[self._stage]):
            self._enter(self._stage + 1)
        if self.finished:
            return
        role = ORDER[self._stage]
        if role is enums.Role.TRAINER and self._ask_trainer is not None and not self._termed and self._let_it_save():
            return
        self._end(role)

    def _enter(self, stage: int) -> None:
        self._stage, self._since, self._termed = stage, self._clock.monotonic(), False

    def _let_it_save(self) -> bool:
        """Ask the trainer to stop, again and again: the request is idempotent. False once waiting has no use."""
        assert self._ask_trainer is not None
        waited_s = self._clock.monotonic() - self._since
        if self._clock.monotonic() - self._asked_at >= _ASK_AGAIN_S:
            self._asked_at = self._clock.monotonic()
            self._heard = self._ask_trainer() or self._heard
        if waited_s < (self._checkpoint_s if self._heard else _UNASKED_S):
            return True
        self._since = self._clock.monotonic()
        return False

    def _end(self, role: enums.Role) -> None:
        processes = self._supervisor.running(role).values()
        if not self._termed:
            self._termed, self._since = True, self._clock.monotonic()
            for process in processes:
                process.terminate()
        elif self._clock.monotonic() - self._since > self._bound_s[role]:
            for process in processes:
                process.kill()
