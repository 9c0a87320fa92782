"""Archives that are the same bytes whenever they are made of the same files, and their checksums."""

import gzip
import hashlib
import pathlib
import tarfile

CHECKSUMS = "SHA256SUMS"


def pack(path: pathlib.Path, folder: pathlib.Path, *, epoch: int) -> None:
    """Write the files of a folder into a .tar.gz, in the order of their names, as of one time and of no user.

    Raises ValueError for a link: an archive of ours has none.
    """
    with (
        path.open("wb") as raw,
        gzip.GzipFile(filename="", fileobj=raw, mode="wb", compresslevel=6, mtime=epoch) as packed,
        tarfile.open(fileobj=packed, mode="w") as tar,
    ):
        for file in sorted(folder.rglob("*")):
            if file.is_symlink():
                raise ValueError(f"{file.relative_to(folder)} is a link, and an archive holds plain files")
            if file.is_file():
                member = tarfile.TarInfo(file.relative_to(folder).as_posix())
                member.size, member.mtime = file.stat().st_size, epoch
                member.mode = 0o755 if file.stat().st_mode & 0o100 else 0o644
                with file.open("rb") as content:
                    tar.addfile(member, content)


def repack(path: pathlib.Path, source: pathlib.Path, *, scratch: pathlib.Path, epoch: int) -> None:
    """Write another program's .tar.gz again, without the time at which it was made. scratch: an empty folder."""
    with tarfile.open(source) as tar:
        tar.extractall(scratch, filter="data")
    pack(path, scratch, epoch=epoch)


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
