"""Which paths there are for a program: over folders that the tests make, with calls that this process answers."""

import ctypes
import errno
import os
import pathlib
import platform
import threading
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_workers.verifier.sandbox.confinement import path_calls, syscalls
from rljob_workers.verifier.sandbox.confinement.notifications import Request
from rljob_workers.verifier.sandbox.requests.foreign_memory import ForeignMemory
from rljob_workers.verifier.sandbox.requests.path_view import (
    MAX_PATH_BYTES,
    Outcome,
    PathView,
    is_shown,
    named_descriptor,
)

ARCHITECTURE = syscalls.ARCHITECTURES[platform.machine()]
TASK = threading.get_native_id()
# Where struct stat has st_size, on both.
SIZE_AT = 48
NOT_OPEN = 1 << 20
GOES_ON, ABSENT = Outcome(), Outcome(error=errno.ENOENT)


def planted(root: pathlib.Path, links: Sequence[tuple[str, str]]) -> pathlib.Path:
    """Make a folder with one that is shown, one that is not, and links; return its real path."""
    root = root.resolve()
    for name in ("shown", "hidden"):
        (root / name / "inner").mkdir(parents=True)
        (root / name / "file").write_text(name)
    for name, target in links:
        (root / name).symlink_to(target)
    return root


@pytest.fixture
def folder(tmp_path: pathlib.Path) -> pathlib.Path:
    links = (
        ("shown/out", "../hidden/file"), ("shown/in", "file"), ("shown/back", "through/shown"), ("shown/loop", "loop"),
        ("shown/through", ".."), ("alias", "shown"), ("outward", "hidden"), ("hidden/in", "../shown/file"),
    )  # fmt: skip
    return planted(tmp_path, links)


@pytest.fixture(scope="module")
def maze(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Return one folder for all examples of a property: nothing changes it."""
    links = (
        ("shown/out", "../hidden"), ("shown/in", "inner"), ("alias", "shown"), ("hidden/x", "../shown"),
        ("shown/inner/x", "../.."),
    )  # fmt: skip
    return planted(tmp_path_factory.mktemp("maze"), links)


@pytest.fixture
def view(folder: pathlib.Path) -> PathView:
    return PathView([str(folder / "shown")], ARCHITECTURE)


@pytest.mark.parametrize(
    ("path", "follow", "real"),
    [
        ("shown", True, "shown"),
        ("shown/file", True, "shown/file"),
        ("shown/none", True, "shown/none"),
        ("shown/./inner//../file", True, "shown/file"),
        ("shown/inner/", True, "shown/inner/"),
        ("", True, ""),
        ("..", True, ".."),
        # A link in a folder of the view is there if what it leads to is.
        ("shown/in", True, "shown/file"),
        ("shown/in", False, "shown/in"),
        ("shown/in/", False, "shown/file/"),
        ("alias/file", True, "shown/file"),
        ("alias", False, "alias"),
        ("shown/out", True, None),
        ("shown/out", False, None),
        ("shown/through/hidden/file", True, None),
        ("outward", False, None),
        ("outward/file", True, None),
        # Nor is there a way back from where there is nothing.
        ("hidden", True, None),
        ("hidden/../shown/file", True, None),
        ("hidden/in", True, None),
        ("none/../shown/file", True, None),
        ("shown2", True, None),
    ],
)
def test_path_leads_where_the_kernel_would_go_or_out_of_the_view(
    path: str, follow: bool, real: str | None, view: PathView, folder: pathlib.Path
) -> None:
    wanted = None if real is None else str(folder / real).rstrip("/") + ("/" if real.endswith("/") else "")
    if real == "..":
        wanted = str(folder.parent)
    assert view.resolved(f"{folder}/{path}".rstrip("/") if path == "" else f"{folder}/{path}", follow=follow) == wanted


def test_link_to_itself_leads_nowhere_but_stays_in_the_view(view: PathView, folder: pathlib.Path) -> None:
    assert view.resolved(f"{folder}/shown/loop", follow=True) == f"{folder}/shown/loop"


def test_proc_is_not_in_the_view_whatever_it_would_lead_to(view: PathView, folder: pathlib.Path) -> None:
    opened = os.open(folder / "shown", os.O_RDONLY)
    try:
        assert os.path.realpath(f"/proc/self/fd/{opened}") == f"{folder}/shown"
        for path in (f"/proc/self/fd/{opened}", f"/proc/{os.getpid()}/fd/{opened}/file", "/proc", "/proc/self/root"):
            assert view.resolved(path, follow=True) is None
            assert view.resolved(path, follow=False) is None
    finally:
        os.close(opened)


PARTS = st.lists(st.sampled_from(["..", ".", "", "shown", "hidden", "file", "inner", "alias", "out", "in", "x"]))


@pytest.mark.covers("sandbox P2")
@given(parts=PARTS, follow=st.booleans())
def test_no_path_at_all_leads_to_what_is_hidden(parts: list[str], follow: bool, maze: pathlib.Path) -> None:
    path = "/".join([str(maze), *parts])
    real = PathView([str(maze / "shown")], ARCHITECTURE).resolved(path, follow=follow)
    if real is not None:
        assert is_shown(os.path.realpath(real), [str(maze / "shown")])
        if follow and os.path.exists(path):
            assert os.path.realpath(real) == os.path.realpath(path)


class Asked:
    """Calls of this very process, as its own supervisor sees them."""

    def __init__(self, view: PathView) -> None:
        self._view, self.result = view, ctypes.create_string_buffer(512)

    def __call__(self, name: str, path: bytes, **others: int) -> Outcome:
        """others: folder and flags, if the call has them, and size."""
        call = path_calls.path_calls(ARCHITECTURE)[name]
        text = ctypes.create_string_buffer(path)
        arguments = [0] * 6
        arguments[call.path] = ctypes.addressof(text)
        for position, value in (
            (call.folder, others.get("folder", path_calls.AT_FDCWD) & (1 << 64) - 1),
            (call.flags, others.get("flags", 0)),
            (call.result, others.get("result", ctypes.addressof(self.result))),
            (call.size, others.get("size", 512)),
        ):
            if position is not None:
                arguments[position] = value
        number = syscalls.number(name, ARCHITECTURE)
        assert number is not None
        request = Request(1, TASK, number, tuple(arguments))
        assert self._view.has(number)
        with ForeignMemory(TASK) as memory:
            return self._view.outcome(request, memory)

    @property
    def size(self) -> int:
        """Return st_size of the last struct stat."""
        return int.from_bytes(self.result.raw[SIZE_AT : SIZE_AT + 8], "little")


@pytest.fixture
def asked(view: PathView) -> Asked:
    return Asked(view)


def test_what_returns_something_of_a_file_is_made_on_the_path_that_was_looked_at(
    asked: Asked, folder: pathlib.Path
) -> None:
    (folder / "shown/file").write_bytes(b"x" * 1234)
    assert asked("newfstatat", os.fsencode(folder / "shown/in")) == Outcome(value=0)
    assert asked.size == 1234
    assert asked("newfstatat", os.fsencode(folder / "shown/in"), flags=path_calls.AT_SYMLINK_NOFOLLOW).value == 0
    assert asked.size == len("file")
    assert asked("readlinkat", os.fsencode(folder / "shown/in")) == Outcome(value=4)
    assert asked.result.raw[:4] == b"file"
    assert asked("readlinkat", os.fsencode(folder / "shown/in"), size=2) == Outcome(value=2)
    assert asked("faccessat", os.fsencode(folder / "shown/file")) == Outcome(value=0)
    assert asked("statx", os.fsencode(folder / "shown/file")).value == 0
    assert asked("statfs", os.fsencode(folder / "shown")).value == 0


@pytest.mark.covers("sandbox A-27", "sandbox P2")
@pytest.mark.parametrize("call", path_calls.NAMES)
def test_nothing_is_learnt_of_what_is_hidden(call: str, asked: Asked, folder: pathlib.Path) -> None:
    if syscalls.number(call, ARCHITECTURE) is None:
        pytest.skip(f"{ARCHITECTURE.name} has no {call}")
    for name in ("hidden/file", "hidden/none", "hidden", "shown/out", "shown/../hidden/file"):
        assert asked(call, os.fsencode(folder / name)) == ABSENT
    assert asked.result.raw == bytes(512)


@pytest.mark.parametrize("call", ["openat", "execve", "chdir"])
def test_what_opens_or_runs_a_file_is_the_kernels_to_decide(call: str, asked: Asked, folder: pathlib.Path) -> None:
    assert asked(call, os.fsencode(folder / "shown/file")) == GOES_ON


def test_relative_path_begins_at_its_folder(
    asked: Asked, folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder / "shown/inner")
    assert asked("newfstatat", b"../file").value == 0
    assert asked("newfstatat", b"../../hidden/file") == ABSENT
    opened = os.open(folder / "shown", os.O_RDONLY)
    try:
        assert asked("newfstatat", b"file", folder=opened).value == 0
        assert asked("newfstatat", b"out", folder=opened) == ABSENT
    finally:
        os.close(opened)
    assert asked("newfstatat", b"file", folder=NOT_OPEN) == Outcome(error=errno.EBADF)


def test_open_file_is_known_whatever_it_is(asked: Asked) -> None:
    reader, writer = os.pipe()
    with open(reader, "rb"), open(writer, "wb"):
        assert asked("newfstatat", b"", folder=reader, flags=path_calls.AT_EMPTY_PATH).value == 0
        assert asked("newfstatat", b"", folder=reader) == ABSENT
        assert asked("execveat", b"", folder=reader, flags=path_calls.AT_EMPTY_PATH) == GOES_ON
    assert asked("newfstatat", b"", folder=NOT_OPEN, flags=path_calls.AT_EMPTY_PATH) == Outcome(error=errno.EBADF)


@pytest.mark.parametrize("name", ["/dev/fd/{}", "/proc/self/fd/{}", "/proc/thread-self/fd/{}"])
def test_name_of_an_open_file_is_there_while_it_is_open(name: str, asked: Asked) -> None:
    reader, writer = os.pipe()
    with open(reader, "rb"), open(writer, "wb"):
        path = name.format(reader).encode()
        assert asked("openat", path) == GOES_ON
        assert asked("newfstatat", path).value == 0
        assert asked("readlinkat", path).value == len(os.readlink(f"/proc/self/fd/{reader}"))
    assert asked("newfstatat", name.format(NOT_OPEN).encode()) == ABSENT


@pytest.mark.parametrize(
    ("path", "descriptor"),
    [
        ("/dev/stdin", 0), ("/dev/stdout", 1), ("/dev/stderr", 2), ("/dev/fd/17", 17), ("/proc/self/fd/0", 0),
        ("/proc/self/fd", None), ("/proc/self/fd/", None), ("/proc/self/fd/0/x", None), ("/proc/1/fd/0", None),
        ("/proc/self/fd/0\n", None), ("/proc/self/fd/../maps", None), ("/dev/null", None), ("/dev/fd/99999999", None),
    ],
)  # fmt: skip
def test_path_that_names_a_descriptor(path: str, descriptor: int | None) -> None:
    assert named_descriptor(path) == descriptor


def test_memory_that_is_not_there_fails_as_the_kernel_would(asked: Asked, folder: pathlib.Path, view: PathView) -> None:
    path = os.fsencode(folder / "shown/file")
    for address in (0, 1, (1 << 64) - 1, 1 << 63):
        assert asked("newfstatat", path, result=address) == Outcome(error=errno.EFAULT)
        request = Request(1, TASK, syscalls.number("chdir", ARCHITECTURE) or 0, (address, 0, 0, 0, 0, 0))
        with ForeignMemory(TASK) as memory:
            assert view.outcome(request, memory) == Outcome(error=errno.EFAULT)


def test_path_may_be_as_long_as_the_kernel_takes_and_end_where_a_page_does(asked: Asked, folder: pathlib.Path) -> None:
    path = os.fsencode(folder / "shown")
    longest = path + b"/." * ((MAX_PATH_BYTES - 1 - len(path)) // 2)
    assert asked("newfstatat", longest).value == 0
    assert asked("newfstatat", longest + b"/./") == Outcome(error=errno.ENAMETOOLONG)
