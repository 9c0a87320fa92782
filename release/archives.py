"""Archives that are the same bytes whenever they are made of the same files, and their checksums."""

import contextlib
import gzip
import hashlib
import pathlib
import tarfile
from collections.abc import Iterator

CHECKSUMS = "SHA256SUMS"


def pack(path: pathlib.Path, folder: pathlib.Path, *, epoch: int) -> None:
    """Write the files of a folder into a .tar.gz, in the order of their names, as of one time and of no user.

    Raises ValueError for a link: an archive of ours has none.
    """
    with _written(path, epoch=epoch) as tar:
        for file in sorted(folder.rglob("*")):
            name = file.relative_to(folder).as_posix()
            if file.is_symlink():
                raise ValueError(f"{name} is a link, and an archive holds plain files")
            if file.is_file():
                status = file.stat()
                with file.open("rb") as content:
                    tar.addfile(_member(name, status.st_size, status.st_mode, epoch=epoch), content)


def repack(path: pathlib.Path, source: pathlib.Path, *, epoch: int) -> None:
    """Write another program's .tar.gz again, without the time at which it was made.

    Raises ValueError for what is neither file nor folder.
    """
    with tarfile.open(source) as original, _written(path, epoch=epoch) as tar:
        for member in sorted(original.getmembers(), key=lambda member: pathlib.PurePosixPath(member.name)):
            content = original.extractfile(member) if member.isfile() else None
            if content is not None:
                tar.addfile(_member(member.name, member.size, member.mode, epoch=epoch), content)
            elif not member.isdir():
                raise ValueError(
                    f"{member.name} of {source.name} is a link or a device, and an archive holds plain files"
                )


@contextlib.contextmanager
def _written(path: pathlib.Path, *, epoch: int) -> Iterator[tarfile.TarFile]:
    with (
        path.open("wb") as raw,
        gzip.GzipFile(filename="", fileobj=raw, mode="wb", compresslevel=6, mtime=epoch) as packed,
        tarfile.open(fileobj=packed, mode="w") as tar,
    ):
        yield tar


def _member(name: str, size: int, mode: int, *, epoch: int) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.size, member.mtime = size, epoch
    member.mode = 0o755 if mode & 0o100 else 0o644
    return member


def sha256(path: pathlib.Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal digits."""
    with path.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def write_checksums(folder: pathlib.Path) -> pathlib.Path:
    """Write the checksums of all files of a folder, as `sha256sum --check` reads them; return the file."""
    names = sorted(file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file())
    path = folder / CHECKSUMS
    path.write_text("".join(f"{sha256(folder / name)}  {name}\n" for name in names if name != CHECKSUMS))
    return path
