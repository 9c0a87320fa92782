"""How long a role of a job takes from a lost pod until it is whole and the run goes on. Time is handed in."""

import dataclasses
from collections.abc import Iterable, Mapping

from rljob_api import names


@dataclasses.dataclass(slots=True)
class _Loss:
    """An open failure: unix seconds, and the lowest step that was seen since."""

    since: float
    step: int


class Recoveries:
    """The open failures of one job."""

    def __init__(self) -> None:
        """Nothing has failed."""
        self._open: dict[names.Role, _Loss] = {}

    def observe(
        self, *, lost: Iterable[names.Role], whole: Mapping[names.Role, bool], step: int, now: float
    ) -> list[tuple[names.Role, float]]:
        """Return the roles that have recovered and after how many seconds.

        lost: roles that lost a pod since the last call. whole: whether a role has all its pods ready. step: finished
        steps of the run; they may fall when the trainer goes back to a checkpoint. A role has recovered when it is
        whole and a step was finished after the loss.
        """
        for role in lost:
            self._open.setdefault(role, _Loss(since=now, step=step))
        for loss in self._open.values():
            loss.step = min(loss.step, step)
        recovered = [role for role, loss in self._open.items() if whole.get(role, False) and step > loss.step]
        return [(role, max(0.0, now - self._open.pop(role).since)) for role in recovered]

    def clear(self) -> None:
        """Forget what is open: the run is not meant to go on."""
        self._open.clear()
