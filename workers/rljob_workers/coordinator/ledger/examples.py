"""Examples of the supervised steps: drawn in the order of their sources, a little ahead, and taken in that order.

An example is a group of one row whose answer its record has: a rollout makes tokens of it, and no weights sampled it,
so that it never grows too old. A batch holds the next examples in the order, whoever handed them in first: what a step
learns depends on seed and step alone, and so it does after any process was lost.
"""

from rljob_api import enums
from rljob_workers.coordinator.ledger import groups, steps
from rljob_workers.coordinator.ledger.database import Ledger, Row
from rljob_workers.coordinator.policy import submission

EXAMPLE = enums.GroupKind.EXAMPLE
# Steps whose examples may be under way: the one that is trained next, and the one after it.
_STEPS_AHEAD = 2


def are_due(ledger: Ledger) -> bool:
    """Return whether the next batch is a supervised one."""
    return groups.recorded(ledger) < ledger.sft_steps


def depth(ledger: Ledger) -> dict[enums.GroupState, int]:
    """Return how many examples wait for a rollout, are with one, wait for their batch, and are in one."""
    states = (groups.QUEUED, groups.LEASED, groups.SUBMITTED, steps.PACKED)
    # One by one: the index is by state.
    return {state: _count(ledger, state) for state in states}


def _count(ledger: Ledger, state: enums.GroupState) -> int:
    return ledger.number(f"SELECT COUNT(*) AS n FROM groups WHERE kind = 'example' AND state = '{state}'")


def room(ledger: Ledger) -> int:
    """Return how many more examples may be leased."""
    sft, left = ledger.spec.sft, ledger.sft_steps - groups.recorded(ledger)
    if sft is None or left <= 0:
        return 0
    under_way = _count(ledger, groups.LEASED) + _count(ledger, groups.SUBMITTED)
    return min(_STEPS_AHEAD, left) * sft.examples_per_step - under_way


def next_queued(ledger: Ledger, take: groups.Take, *, now: float) -> Row:
    """Return the next example that no rollout has; if there is none, as many are drawn as there is room for."""
    sql = "SELECT * FROM groups WHERE kind = 'example' AND state = 'queued' ORDER BY queue_key LIMIT 1"
    row = ledger.db.one(sql)
    if row is not None:
        return row
    refs, following = take(groups.cursor(ledger, EXAMPLE), room(ledger))
    for ref in refs:
        groups.open_group(ledger, ref, kind=EXAMPLE, now=now, group_size=1)
    groups.set_cursor(ledger, following, EXAMPLE)
    return ledger.require(sql, problem="the order of the examples has ended")


def choose(ledger: Ledger) -> steps.Choice:
    """Choose the examples of the next step, which is a supervised one."""
    sft, step = ledger.spec.sft, groups.recorded(ledger) + 1
    assert sft is not None, "a run without spec.sft has no supervised steps"
    committed = groups.committed(ledger)
    if step > committed + _STEPS_AHEAD or step > groups.last_step(ledger):
        return steps.Choice(step=step, candidates=None, wait_reason=f"step {committed + 1} to be committed")
    chosen = ledger.db.all(
        "SELECT *, leased_at - created_at AS queued_s FROM groups WHERE kind = 'example' AND state = 'submitted'"
        " ORDER BY epoch, position LIMIT ?",
        sft.examples_per_step,
    )
    if len(chosen) < sft.examples_per_step or _is_overtaken(ledger, chosen[-1]):
        reason = f"{len(chosen)} of {sft.examples_per_step} examples of step {step}"
        return steps.Choice(step=step, candidates=None, wait_reason=reason)
    return steps.Choice(step=step, candidates=tuple(map(steps.candidate, chosen)), supervised=True)


def _is_overtaken(ledger: Ledger, last: Row) -> bool:
    """Return whether an example that is drawn before `last` is still under way."""
    sql = "SELECT 1 FROM groups WHERE kind = 'example' AND state = '{}' AND (epoch, position) < (?, ?) LIMIT 1"
    return any(
        ledger.db.one(sql.format(state), last["epoch"], last["position"]) is not None
        for state in (groups.QUEUED, groups.LEASED)
    )


def withdraw(ledger: Ledger, *, now: float) -> None:
    """Drop what is under way, the last in the order first, and open it again: earlier examples are to come before."""
    for row in ledger.db.all(
        "SELECT * FROM groups WHERE kind = 'example' AND (state = 'leased' OR state = 'submitted')"
        " ORDER BY epoch DESC, position DESC"
    ):
        ledger.db.change("UPDATE leases SET state = 'cancelled' WHERE group_id = ? AND state = 'open'", row["group_id"])
        ledger.db.change("DELETE FROM payloads WHERE group_id = ?", row["group_id"])
        groups.drop(ledger, row, enums.DropReason.REWOUND, requeue=submission.Requeue.HEAD, now=now)
