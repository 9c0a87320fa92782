"""What is decided on a program's requests for processes, and in which order it looks."""

from rljob_workers.verifier.sandbox.requests.fork_gate import ForkGate, Room

SESSION = 4242


class FakeKernel:
    """What the kernel's tables say; records in which order it was asked."""

    def __init__(self, *, num_tasks: int = 1, active: frozenset[int] = frozenset()) -> None:
        self.count, self.active = num_tasks, active
        self.events: list[str] = []

    def num_tasks(self, session: int) -> int:
        assert session == SESSION
        self.events.append("count")
        return self.count

    def is_active(self, task: int) -> bool:
        self.events.append(f"is {task} active")
        return task in self.active

    def gate(self, *, most: int) -> ForkGate:
        return ForkGate(session=SESSION, most=most, num_tasks=self.num_tasks, is_active=self.is_active)


def test_there_is_room_without_a_look_below_the_bound() -> None:
    kernel = FakeKernel()
    gate = kernel.gate(most=4)
    for task in (1, 1, 2):
        assert gate.room() is Room.FREE
        gate.granted(task)
    assert kernel.events == []


def test_at_the_bound_it_is_asked_who_is_not_done_before_anybody_is_counted() -> None:
    kernel = FakeKernel(num_tasks=1)
    gate = kernel.gate(most=2)
    gate.granted(1)
    assert gate.room() is Room.FREE
    assert kernel.events == ["is 1 active", "count"]


def test_there_is_no_room_where_as_many_as_may_be_are_seen() -> None:
    gate = FakeKernel(num_tasks=2).gate(most=2)
    gate.granted(1)
    assert gate.room() is Room.NONE


def test_whether_there_is_room_is_unclear_while_one_that_was_granted_may_not_be_there_yet() -> None:
    kernel = FakeKernel(num_tasks=1, active=frozenset((1,)))
    gate = kernel.gate(most=2)
    gate.granted(1)
    assert gate.room() is Room.UNCLEAR
    kernel.active = frozenset()
    assert gate.room() is Room.FREE
