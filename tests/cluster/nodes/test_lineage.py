import json

import pytest

from rljob_testing.cluster import lineage
from rljob_testing.cluster.lineage import Attempt


def _lines(*entries: tuple[str, int] | tuple[str, int, int]) -> list[str]:
    """Return lines of a history from (kind, step), and (restart, attempt, resumed step)."""
    lines = []
    for kind, number, *resumed in entries:
        keys = {"attempt": number, "resume_step": resumed[0], "role": "trainer"} if resumed else {"step": number}
        lines.append(json.dumps({"kind": kind, **keys}))
    return lines


def test_attempts_are_read_with_the_checkpoint_that_each_continued_from() -> None:
    lines = _lines(("step", 1), ("checkpoint", 1), ("step", 2), ("restart", 2, 1), ("step", 2), ("step", 3))
    assert lineage.attempts(lines) == [
        Attempt(number=1, steps=(1, 2)),
        Attempt(number=2, durable=1, resumed_from=1, steps=(2, 3)),
    ]


def test_a_run_that_made_only_what_was_behind_its_checkpoint_again_is_in_order() -> None:
    history = [
        Attempt(number=1, steps=(1, 2, 3)),
        # On a disk a checkpoint is whole before it is on record.
        Attempt(number=2, durable=1, resumed_from=2, steps=(3, 4)),
        Attempt(number=3, durable=4, resumed_from=4, steps=(5,)),
    ]
    assert lineage.violations(history, last_step=5) == []
    assert lineage.recomputed(history) == [1, 0]


FIRST = Attempt(number=1, steps=(1, 2, 3))


@pytest.mark.parametrize(
    ("second", "last_step", "problem"),
    [
        (Attempt(number=2, durable=2, resumed_from=1, steps=(2, 3)), 3, "continued from step 1"),
        (Attempt(number=2, durable=2, resumed_from=4, steps=(5,)), 5, "continued from step 4"),
        (Attempt(number=2, durable=2, resumed_from=2, steps=(4,)), 4, "made steps (4,) behind 2"),
        (Attempt(number=2, durable=2, resumed_from=2, steps=(3, 3)), 3, "made steps (3, 3) behind 2"),
        (Attempt(number=1, durable=2, resumed_from=2, steps=(3,)), 3, "attempts began as [1, 1]"),
        (Attempt(number=2, durable=2, resumed_from=2, steps=(3,)), 4, "came to step 3, not 4"),
    ],
    ids=["shard-lost", "from-nowhere", "step-left-out", "step-made-twice", "attempt-begun-twice", "end-missing"],
)
def test_what_is_not_in_order_is_a_sentence(second: Attempt, last_step: int, problem: str) -> None:
    (found,) = lineage.violations([FIRST, second], last_step=last_step)
    assert problem in found
