"""Jobs whose children were compared and are what they should be: they are not compared again before something changes.

A running job is looked at for every step that it reports; rendering and comparing thirty objects each time would be
most of the operator's work. Memory only: a start compares everything once.
"""

from collections.abc import Callable

from rljob_operator.model import Observed, Plan, Ref, StatusWrite, Wanted

# Generation, statuses of the conditions, attempt, and the version of each child.
Signature = tuple[int, tuple[tuple[str, str], ...], int | None, tuple[tuple[Ref, str, int], ...]]


def signature(seen: Observed) -> Signature:
    """Return all that the children of a job depend on."""
    return (
        seen.job.metadata.generation,
        tuple((one.type, one.status) for one in seen.status.conditions),
        seen.status.attempt,
        tuple((ref, child.uid, child.version) for ref, child in sorted(seen.children.items())),
    )


def may_settle(seen: Observed) -> bool:
    """Return whether nothing of the children is still to come: the trainer's Job is there."""
    return seen.status.attempt in seen.trainer_jobs()


class Settled:
    """Gives what is wanted of a job, or says that its children need no look."""

    def __init__(self, wanted: Callable[[Observed], Wanted]) -> None:
        """Know nothing yet."""
        self._wanted = wanted
        self._known: dict[str, Signature] = {}

    def wanted(self, seen: Observed) -> Wanted:
        """Return the children that are wanted, or that they are settled."""
        if self._known.get(seen.job.metadata.uid) == signature(seen):
            return Wanted(settled=True)
        return self._wanted(seen)

    def planned(self, seen: Observed, planned: Plan, wanted: Wanted) -> None:
        """Remember a job of which nothing had to be changed."""
        uid = seen.job.metadata.uid
        left = planned.refused or planned.waits or not all(isinstance(each, StatusWrite) for each in planned.actions)
        if not left and not wanted.problems and may_settle(seen):
            self._known[uid] = signature(seen)
        else:
            self._known.pop(uid, None)

    def forget_all(self) -> None:
        """Let every job be compared anew: what its children depend on has changed."""
        self._known.clear()

    def forget(self, uid: str) -> None:
        """Let go of a job that is gone."""
        self._known.pop(uid, None)
