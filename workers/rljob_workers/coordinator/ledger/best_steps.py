"""The best steps of a run, kept: the steps themselves are pruned, and a run that falls is compared with them."""

import dataclasses
import json

from rljob_api import learning
from rljob_workers.coordinator.ledger import groups
from rljob_workers.coordinator.ledger.database import Ledger

_KEY = "best_steps"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Best:
    """The best steps in the mean. lowest: the smallest reward of a step that was seen; checkpoint: the step of the
    newest one that is not after them, None if there is none.
    """

    mean: learning.Point
    lowest: float
    checkpoint: int | None = None


def read(ledger: Ledger) -> Best | None:
    """Return what is kept; None where there is nothing yet, or those steps were undone."""
    record = json.loads(ledger.meta(_KEY) or "null")
    if record is None or record["mean"]["step"] > groups.committed(ledger):
        return None
    row = ledger.db.one("SELECT MAX(step) AS step FROM checkpoints WHERE step <= ?", record["mean"]["step"])
    return Best(
        mean=learning.Point(**record["mean"]),
        lowest=record["lowest"],
        checkpoint=None if row is None else row["step"],
    )


def keep(ledger: Ledger, best: Best) -> None:
    with ledger.db.transaction():
        ledger.set_meta(_KEY, json.dumps({"mean": dataclasses.asdict(best.mean), "lowest": best.lowest}))
