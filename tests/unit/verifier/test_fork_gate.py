"""The gate before a program's processes: whom it lets through, and in which order it looks."""

from collections.abc import Sequence

from rljob_workers.verifier.sandbox.fork_gate import ForkGate
from rljob_workers.verifier.sandbox.process_bound import Room

SESSION = 4242


class FakeKernel:
    """A listener with the threads that ask, and what the kernel's tables say; records in which order it was asked."""

    def __init__(self, *, asking: Sequence[int | None] = (), num_tasks: int = 1, active: frozenset[int] = frozenset()):
        self.asking, self.count, self.active = list(asking), num_tasks, active
        self.events: list[str] = []

    def fileno(self) -> int:
        return 7

    def is_waiting(self) -> bool:
        return bool(self.asking)

    def allow(self) -> int | None:
        task = self.asking.pop(0)
        self.events.append(f"allow {task}")
        return task

    def close(self) -> None:
        self.events.append("close")

    def num_tasks(self, session: int) -> int:
        assert session == SESSION
        self.events.append("count")
        return self.count

    def is_active(self, task: int) -> bool:
        self.events.append(f"is {task} active")
        return task in self.active

    def gate(self, *, most: int) -> ForkGate:
        return ForkGate(self, session=SESSION, most=most, num_tasks=self.num_tasks, is_active=self.is_active)


def test_requests_are_granted_without_a_look_while_there_is_room() -> None:
    kernel = FakeKernel(asking=(1, 1, 2))
    gate = kernel.gate(most=4)
    assert [gate.answer() for _ in range(3)] == [Room.FREE] * 3
    assert kernel.events == ["allow 1", "allow 1", "allow 2"]


def test_at_the_bound_it_is_asked_who_is_not_done_before_anybody_is_counted() -> None:
    kernel = FakeKernel(asking=(1, 1, 1), num_tasks=1)
    gate = kernel.gate(most=2)
    assert [gate.answer(), gate.answer()] == [Room.FREE, Room.FREE]
    assert kernel.events == ["allow 1", "is 1 active", "count", "allow 1"]


def test_request_beyond_the_bound_is_not_answered() -> None:
    kernel = FakeKernel(asking=(1, 1), num_tasks=2)
    gate = kernel.gate(most=2)
    gate.answer()
    assert gate.answer() is Room.NONE
    assert gate.is_waiting()
    assert kernel.asking == [1]


def test_request_waits_while_another_may_not_have_made_its_own_yet() -> None:
    kernel = FakeKernel(asking=(1, 2), num_tasks=1, active=frozenset((1,)))
    gate = kernel.gate(most=2)
    gate.answer()
    assert gate.answer() is Room.UNCLEAR
    kernel.active = frozenset()
    assert gate.answer() is Room.FREE
    assert kernel.events[-1] == "allow 2"


def test_request_that_was_interrupted_takes_no_place() -> None:
    kernel = FakeKernel(asking=(None, None, 1))
    gate = kernel.gate(most=2)
    assert [gate.answer() for _ in range(3)] == [Room.FREE] * 3
    assert "count" not in kernel.events


def test_closed_gate_lets_nobody_start_anything_any_more() -> None:
    kernel = FakeKernel()
    kernel.gate(most=2).close()
    assert kernel.events == ["close"]
