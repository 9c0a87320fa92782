"""Files and folders that appear whole or not at all, also after a power cut: written alongside, synced, renamed."""

import contextlib
import os
import pathlib
import shutil
from collections.abc import Iterator


@contextlib.contextmanager
def replaced_folder(target: pathlib.Path) -> Iterator[pathlib.Path]:
    """Yield an empty folder that becomes `target` when the block ends without an error. An old `target` goes last."""
    work, old = target.with_name(f".{target.name}.new"), target.with_name(f".{target.name}.old")
    for leftover in (work, old):
        shutil.rmtree(leftover, ignore_errors=True)
    work.mkdir(parents=True)
    try:
        yield work
    except BaseException:
        shutil.rmtree(work, ignore_errors=True)
        raise
    publish_folder(work, target, old)


def publish_folder(work: pathlib.Path, target: pathlib.Path, old: pathlib.Path) -> None:
    """Sync `work` and rename it to `target`. A crash leaves the old target, the new one, or none and `old`."""
    sync_tree(work)
    if target.exists():
        os.replace(target, old)
    os.replace(work, target)
    sync_folder(target.parent)
    shutil.rmtree(old, ignore_errors=True)


def write_text(target: pathlib.Path, text: str) -> None:
    """Write a small file: a reader sees the old content or the new, never half of it, and the new one stays."""
    work = target.with_name(f".{target.name}.{os.getpid()}.new")
    work.write_text(text, encoding="utf-8")
    _sync(work, os.O_RDONLY)
    os.replace(work, target)
    sync_folder(target.parent)


def sync_tree(folder: pathlib.Path) -> None:
    """Sync every file and folder under `folder` to the disk."""
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            _sync(path, os.O_RDONLY)
    for path in (*[path for path in folder.rglob("*") if path.is_dir()], folder):
        sync_folder(path)


def sync_folder(folder: pathlib.Path) -> None:
    """Sync the entries of one folder."""
    _sync(folder, os.O_RDONLY | os.O_DIRECTORY)


def _sync(path: pathlib.Path, flags: int) -> None:
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
