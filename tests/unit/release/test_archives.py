"""Archives of the same files are the same bytes, and checksums are those that sha256sum checks."""

import hashlib
import os
import pathlib
import subprocess
import tarfile
import tempfile

import pytest
from hypothesis import given
from hypothesis import strategies as st
from release import archives

EPOCH = 1_700_000_000
NAMES = st.from_regex(r"[a-z]{1,8}(/[a-z]{1,8}){0,2}\.txt", fullmatch=True)
FILES = st.dictionaries(NAMES, st.tuples(st.binary(max_size=64), st.booleans()), max_size=6)


def _written(folder: pathlib.Path, files: dict[str, tuple[bytes, bool]], *, mtime: int) -> pathlib.Path:
    for name, (content, executable) in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        path.chmod(0o700 if executable else 0o600)
        os.utime(path, (mtime, mtime))
    return folder


@given(FILES)
def test_an_archive_depends_on_names_contents_and_the_right_to_run_alone(files: dict[str, tuple[bytes, bool]]) -> None:
    with tempfile.TemporaryDirectory() as name:
        root = pathlib.Path(name)
        # Made in another order, at another time, in another folder.
        folders = [_written(root / "a", files, mtime=1_500_000_000)]
        folders.append(_written(root / "b" / "c", dict(reversed(files.items())), mtime=1_600_000_000))
        packed = []
        for folder in folders:
            folder.mkdir(parents=True, exist_ok=True)
            archives.pack(root / "archive.tar.gz", folder, epoch=EPOCH)
            packed.append((root / "archive.tar.gz").read_bytes())
        assert packed[0] == packed[1]
        with tarfile.open(root / "archive.tar.gz") as tar:
            members = {member.name: member for member in tar.getmembers()}
            assert list(members) == sorted(files, key=pathlib.PurePath)
            for path, (content, executable) in files.items():
                (opened,) = (tar.extractfile(members[path]),)
                assert opened is not None
                assert opened.read() == content
                assert members[path].mode == (0o755 if executable else 0o644)
                assert (members[path].mtime, members[path].uid, members[path].uname) == (EPOCH, 0, "")


def test_a_link_is_refused_by_name(tmp_path: pathlib.Path) -> None:
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "passwords").symlink_to("/etc/passwd")
    with pytest.raises(ValueError, match="passwords is a link"):
        archives.pack(tmp_path / "archive.tar.gz", tmp_path / "files", epoch=EPOCH)


def test_an_archive_of_another_program_is_written_without_its_time(tmp_path: pathlib.Path) -> None:
    packed = []
    for number, mtime in enumerate((1_500_000_000, 1_600_000_000)):
        files = _written(tmp_path / f"files{number}", {"chart/Chart.yaml": (b"name: chart", False)}, mtime=mtime)
        source = tmp_path / f"source{number}.tgz"
        with tarfile.open(source, "w:gz") as tar:
            tar.add(files / "chart", "chart")
        archives.repack(tmp_path / f"{number}.tgz", source, epoch=EPOCH)
        packed.append((tmp_path / f"{number}.tgz").read_bytes())
    assert packed[0] == packed[1]
    with tarfile.open(tmp_path / "0.tgz") as tar:
        assert [(member.name, member.mtime) for member in tar.getmembers()] == [("chart/Chart.yaml", EPOCH)]


def test_a_link_in_an_archive_of_another_program_is_refused_by_name(tmp_path: pathlib.Path) -> None:
    with tarfile.open(tmp_path / "source.tgz", "w:gz") as tar:
        link = tarfile.TarInfo("chart/passwords")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
    with pytest.raises(ValueError, match=r"chart/passwords of source\.tgz is a link"):
        archives.repack(tmp_path / "archive.tgz", tmp_path / "source.tgz", epoch=EPOCH)


def test_checksums_are_of_every_file_but_their_own_and_are_what_sha256sum_checks(tmp_path: pathlib.Path) -> None:
    _written(tmp_path, {"b.txt": (b"b", False), "folder/a.txt": (b"a", False)}, mtime=EPOCH)
    path = archives.write_checksums(tmp_path)
    assert path.read_text() == "".join(
        f"{hashlib.sha256(content).hexdigest()}  {name}\n"
        for name, content in (("b.txt", b"b"), ("folder/a.txt", b"a"))
    )
    assert archives.write_checksums(tmp_path).read_text() == path.read_text()
    subprocess.run(["sha256sum", "--check", "--strict", path.name], cwd=tmp_path, check=True, capture_output=True)
