"""Which of a suite's rewards grade a record: all of them, or where they are told apart by task, its own. Pure."""

from collections.abc import Mapping, Sequence

from rljob_api import errors, roles
from rljob_workers.data import record_task


def graded_by(
    rewards: Sequence[roles.GraderConfig], indexes: Sequence[int], columns: Mapping[str, object]
) -> tuple[int, ...]:
    """Return those of `indexes` into `rewards` that grade a record. Raises DataError for a task that none is for."""
    if not by_task(rewards, indexes):
        return tuple(indexes)
    known = [task for index in indexes for task in rewards[index].tasks]
    task = record_task.of(columns)
    if task not in known:
        # Not the value: this sentence is logged, and a record may hold anything.
        raise errors.DataError(f"{record_task.TASK!r} is none of {', '.join(known)}")
    return tuple(index for index in indexes if not rewards[index].tasks or task in rewards[index].tasks)


def by_task(rewards: Sequence[roles.GraderConfig], indexes: Sequence[int]) -> bool:
    """Return whether these rewards are told apart by the record's task."""
    return any(rewards[index].tasks for index in indexes)
