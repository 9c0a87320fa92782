"""The place of an agent's commands: counted, emptied however it was left, and read and written without leaving it."""

import errno
import os
import pathlib

import pytest

from rljob_workers.verifier.sandbox.requests import open_place
from rljob_workers.verifier.sandbox.scratch import QuotaError, Scratch

MOST_BYTES, MOST_ENTRIES = 64 << 10, 50


@pytest.fixture
def scratch(tmp_path: pathlib.Path) -> Scratch:
    folder = tmp_path / "place"
    folder.mkdir()
    return Scratch(folder, most_bytes=MOST_BYTES, most_entries=MOST_ENTRIES, now_s=lambda: 0.0)


@pytest.mark.covers("sandbox P3")
def test_place_is_counted_by_bytes_and_by_entries(scratch: Scratch) -> None:
    assert scratch.exceeded() == ""
    (scratch.work / "much").write_bytes(b"x" * (MOST_BYTES + 1))
    assert scratch.exceeded() == "disk"
    (scratch.work / "much").unlink()
    for number in range(MOST_ENTRIES + 1):
        (scratch.tmp / str(number)).touch()
    assert scratch.exceeded() == "disk"


def test_removed_file_that_is_still_open_counts(scratch: Scratch) -> None:
    with open(scratch.work / "gone", "wb", buffering=0) as file:
        file.write(b"x" * (MOST_BYTES + 1))
        (scratch.work / "gone").unlink()
        assert scratch.exceeded() == ""
        assert scratch.exceeded([os.getpid()]) == "disk"


def test_next_look_waits_for_a_share_of_what_the_last_one_took(tmp_path: pathlib.Path) -> None:
    times_s = iter([0.0, 1.0, 10.9, 11.1, 11.2])
    scratch = Scratch(tmp_path, most_bytes=0, most_entries=1, now_s=lambda: next(times_s))
    (scratch.work / "file").write_bytes(b"x")
    # It took 1 s, so that the next one comes 10 s after it.
    assert [scratch.look([]) for _ in range(3)] == ["disk", "", "disk"]


def test_folders_nested_deeper_than_a_path_is_long_count_as_too_much_and_are_removed(scratch: Scratch) -> None:
    before = scratch.fingerprint()
    name = "d" * 200
    descriptor = os.open(scratch.work, os.O_RDONLY)
    for _ in range(1200):
        os.mkdir(name, dir_fd=descriptor)
        inner = os.open(name, os.O_RDONLY, dir_fd=descriptor)
        os.close(descriptor)
        descriptor = inner
    os.close(descriptor)
    assert scratch.exceeded() == "disk"
    scratch.clear()
    assert scratch.fingerprint() == before


def test_folders_without_rights_and_links_out_of_it_are_removed_and_nothing_else(
    scratch: Scratch, tmp_path: pathlib.Path
) -> None:
    before = scratch.fingerprint()
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_text("stays")
    (scratch.work / "link").symlink_to(outside)
    (scratch.work / "closed/inner").mkdir(parents=True)
    (scratch.work / "closed/inner").chmod(0)
    (scratch.work / "closed").chmod(0)
    scratch.work.chmod(0o500)
    scratch.clear()
    assert scratch.fingerprint() == before
    assert (outside / "file").read_text() == "stays"


def test_file_is_written_and_read_and_no_path_leads_out(scratch: Scratch, tmp_path: pathlib.Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("answers")
    scratch.write("a/b", b"text")
    assert scratch.read("a/b", 3) == b"tex"
    (scratch.work / "link").symlink_to(secret)
    (scratch.work / "folder").symlink_to(tmp_path)
    for path in ("link", "folder/secret", str(secret), "../../secret", "folder/new"):
        with pytest.raises(QuotaError):
            scratch.read(path, 100)
        with pytest.raises(QuotaError):
            scratch.write(path, b"forged")
    assert secret.read_text() == "answers"
    assert not (tmp_path / "new").exists()


def test_what_does_not_fit_is_refused_before_anything_is_written(scratch: Scratch) -> None:
    with pytest.raises(QuotaError, match="does not fit"):
        scratch.write("large", b"x" * (MOST_BYTES + 1))
    assert not (scratch.work / "large").exists()


def test_pipe_is_neither_read_nor_waited_for(scratch: Scratch) -> None:
    os.mkfifo(scratch.work / "pipe")
    with pytest.raises(QuotaError, match="is not a file"):
        scratch.read("pipe", 1)


def test_place_that_was_swapped_for_a_link_is_not_opened(tmp_path: pathlib.Path) -> None:
    root = (tmp_path / "root").resolve()
    (root / "folder").mkdir(parents=True)
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/file").write_text("x")
    (root / "swapped").symlink_to(tmp_path / "outside")
    with (
        pytest.raises(OSError, match=os.strerror(errno.ENOENT)),
        open_place.opened(f"{root}/swapped/file", [str(root)]),
    ):
        pytest.fail("it was opened")
    # A link itself lies in the folder, and its mode is not that of what it leads to.
    with open_place.opened(f"{root}/swapped", [str(root)]) as descriptor:
        assert open_place.target_of(descriptor) == os.fsencode(tmp_path / "outside")
