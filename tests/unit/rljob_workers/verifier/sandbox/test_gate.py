"""What becomes of a program's requests, by a listener that is played: in which order, and who is held back."""

import errno
from collections.abc import Sequence

import pytest

from rljob_workers.verifier.sandbox.confinement import syscalls
from rljob_workers.verifier.sandbox.confinement.notifications import Request
from rljob_workers.verifier.sandbox.processes.spawn import CannotRunError
from rljob_workers.verifier.sandbox.requests.fork_gate import ForkGate, Room
from rljob_workers.verifier.sandbox.requests.gate import Gate
from rljob_workers.verifier.sandbox.requests.path_view import PathView

CLONE, STAT, OPEN = 56, 4, 2
AT_PATH, AT_RESULT = 0x1000, 0x2000


class FakeListener:
    """Requests in order; None is one that gave up before it was received."""

    def __init__(self, asking: Sequence[Request | None]) -> None:
        self.asking = list(asking)
        self.gone: set[int] = set()
        self.events: list[str] = []

    def fileno(self) -> int:
        return 7

    def is_waiting(self) -> bool:
        return bool(self.asking)

    def receive(self) -> Request | None:
        return self.asking.pop(0)

    def is_valid(self, request: Request) -> bool:
        return request.id not in self.gone

    def go_on(self, request: Request) -> bool:
        self.events.append(f"{request.id} goes on")
        return self.is_valid(request)

    def returned(self, request: Request, value: int) -> bool:
        self.events.append(f"{request.id} returns {value}")
        return self.is_valid(request)

    def failed(self, request: Request, error: int) -> bool:
        self.events.append(f"{request.id} fails with {errno.errorcode[error]}")
        return self.is_valid(request)

    def close(self) -> None:
        self.events.append("close")


class FakeMemory:
    """One path at one address."""

    def __init__(self, path: bytes) -> None:
        self.path, self.written = path, b""

    def __enter__(self) -> "FakeMemory":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def text(self, address: int) -> bytes:
        assert address == AT_PATH
        return self.path

    def read(self, address: int, size: int) -> bytes:
        raise AssertionError(f"no call here has {size} bytes at {address} to read")

    def write(self, address: int, data: bytes) -> None:
        assert address == AT_RESULT
        self.written = data


class Played:
    """A gate with what it asks played: the listener, the tables of processes and the memory of the program."""

    def __init__(
        self, *asking: Request | None, most: int = 2, path: bytes = b"/usr/lib/x", writable: tuple[str, ...] = ()
    ) -> None:
        self.listener, self.memory = FakeListener(asking), FakeMemory(path)
        self.num_tasks, self.active, self.unreadable = 1, False, False
        forks = ForkGate(
            session=1, most=most, num_tasks=lambda _: self.num_tasks, is_active=lambda _: self.active
        )  # fmt: skip
        paths = PathView(["/usr/lib"], syscalls.X86_64, writable)
        self.gate = Gate(self.listener, forks=forks, paths=paths, memory=self._memory)

    def _memory(self, _: int) -> FakeMemory:
        if self.unreadable:
            raise PermissionError(errno.EACCES, "Permission denied")
        return self.memory


def fork(number: int, task: int = 1) -> Request:
    return Request(number, task, CLONE, (0,) * 6)


def path(number: int, call: int = OPEN) -> Request:
    return Request(number, 1, call, (AT_PATH, AT_RESULT, 0, 0, 0, 0))


def test_processes_go_on_while_there_is_room_and_the_last_one_waits() -> None:
    played = Played(fork(1), fork(2), most=2)
    assert played.gate.answer() is Room.FREE
    played.num_tasks = 2
    assert played.gate.answer() is Room.NONE
    assert played.listener.events == ["1 goes on"]
    assert played.gate.is_waiting()


def test_request_that_is_held_back_is_the_next_to_be_answered() -> None:
    played = Played(fork(1), fork(2), path(3), most=2)
    played.gate.answer()
    played.active = True
    assert played.gate.answer() is Room.UNCLEAR
    played.active = False
    assert [played.gate.answer(), played.gate.answer()] == [Room.FREE, Room.FREE]
    assert played.listener.events == ["1 goes on", "2 goes on", "3 goes on"]
    assert not played.gate.is_waiting()


def test_request_that_is_given_up_while_it_is_held_back_takes_no_place() -> None:
    played = Played(fork(1), fork(2), most=2)
    played.gate.answer()
    played.active = True
    played.gate.answer()
    played.listener.gone.add(2)
    assert played.gate.answer() is Room.FREE
    assert not played.gate.is_waiting()


def test_request_that_was_interrupted_takes_no_place() -> None:
    played = Played(None, fork(1), fork(2), most=3)
    played.listener.gone.add(1)
    assert [played.gate.answer() for _ in range(3)] == [Room.FREE] * 3
    played.num_tasks = 9
    played.listener.asking.append(fork(3))
    assert played.gate.answer() is Room.FREE, "one of three places is taken, and nobody needs to look"


@pytest.mark.covers("sandbox P2")
@pytest.mark.parametrize(
    ("call", "text", "event"),
    [
        (OPEN, b"/usr/lib/x", "1 goes on"),
        (OPEN, b"/root/x", "1 fails with ENOENT"),
        (STAT, b"/usr/lib", "1 returns 0"),
        (STAT, b"/usr/lib/no-such-file", "1 fails with ENOENT"),
    ],
)
def test_path_has_its_outcome_and_needs_no_room(call: int, text: bytes, event: str) -> None:
    played = Played(path(1, call), path=text, most=1)
    assert played.gate.answer() is Room.FREE
    assert played.listener.events == [event]
    assert bool(played.memory.written) == (event == "1 returns 0")


def test_path_of_a_thread_that_has_gone_is_not_looked_at() -> None:
    played = Played(path(1))
    played.listener.gone.add(1)
    assert played.gate.answer() is Room.FREE
    played.listener.asking.append(path(2))
    played.listener.gone.add(2)
    played.unreadable = True
    assert played.gate.answer() is Room.FREE
    assert played.listener.events == []


def test_machine_that_does_not_let_memory_be_read_cannot_run_programs() -> None:
    played = Played(path(1))
    played.unreadable = True
    with pytest.raises(CannotRunError, match="memory cannot be read: Permission denied"):
        played.gate.answer()


def test_closed_gate_lets_nobody_go_on_any_more() -> None:
    played = Played()
    played.gate.close()
    assert played.listener.events == ["close"]


def test_program_that_became_a_file_which_no_one_may_read_has_chosen_that_itself() -> None:
    played = Played(path(1), writable=("/scratch",))
    played.unreadable = True
    assert played.gate.answer() is Room.FREE
    assert played.listener.events == ["1 fails with EACCES"]
