"""Files from an object store, whole and as they were written. The store is a folder (obstore's LocalStore)."""

import pathlib

import pytest

from rljob_api import errors
from rljob_testing import stored_checkpoints as made
from rljob_workers.objects import files, preflight, stores


@pytest.fixture
def folder(tmp_path: pathlib.Path) -> stores.Folder:
    return made.open_folder(f"file://{tmp_path}/store")


@pytest.fixture
def source(tmp_path: pathlib.Path) -> pathlib.Path:
    path = tmp_path / "source"
    path.write_bytes(b"0123456789" * 1000)
    return path


def test_a_file_comes_back_as_it_was_sent(folder: stores.Folder, source: pathlib.Path, tmp_path: pathlib.Path) -> None:
    folder.send("a/b", source)
    assert files.fetch(folder, "a/b", tmp_path / "new" / "b", files.content_of(source)) == 10_000
    assert (tmp_path / "new" / "b").read_bytes() == source.read_bytes()
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["b"]


def test_a_file_that_is_there_is_not_fetched_again(
    folder: stores.Folder, source: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    folder.send("b", source)
    files.fetch(folder, "b", tmp_path / "b", files.content_of(source))
    assert files.fetch(folder, "b", tmp_path / "b", files.content_of(source)) == 0


def test_a_file_that_is_there_with_other_bytes_is_fetched(
    folder: stores.Folder, source: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    folder.send("b", source)
    (tmp_path / "b").write_bytes(b"x" * 10_000)
    assert files.fetch(folder, "b", tmp_path / "b", files.content_of(source)) == 10_000
    assert (tmp_path / "b").read_bytes() == source.read_bytes()


@pytest.mark.parametrize(
    ("content", "problem"),
    [(b"x" * 10_000, "holds other bytes"), (b"short", "has 5 bytes instead of 10000"), (None, "is missing")],
    ids=["other bytes", "another size", "nothing"],
)
def test_an_object_that_is_not_what_was_sent_is_refused_by_name_and_leaves_no_file(
    folder: stores.Folder, source: pathlib.Path, tmp_path: pathlib.Path, content: bytes | None, problem: str
) -> None:
    if content is not None:
        folder.write("b", content)
    with pytest.raises(errors.DigestError, match=f"{folder.uri}/b {problem}"):
        files.fetch(folder, "b", tmp_path / "b", files.content_of(source))
    assert not (tmp_path / "b").exists()
    assert not list(tmp_path.glob(".b*"))


def test_an_object_that_is_not_there_is_none_and_deleting_it_is_no_error(folder: stores.Folder) -> None:
    assert folder.read("a") is None
    assert folder.find("a") is None
    folder.delete(["a"])


def test_a_store_that_can_be_written_and_read_is_left_as_it_was(folder: stores.Folder) -> None:
    preflight.check(folder)
    assert folder.entries() == []


def test_a_folder_lists_what_is_in_it_by_its_own_names(folder: stores.Folder) -> None:
    for key in ("b/2", "a/1", "b/1"):
        folder.write(key, key.encode())
    assert [entry.key for entry in folder.entries()] == ["a/1", "b/1", "b/2"]
    assert [entry.key for entry in folder.below("b").entries()] == ["1", "2"]
