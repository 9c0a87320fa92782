"""Removes folders that a program could fill as it liked: no nesting is too deep, no path too long, no mode in the way.

Only while nothing runs that could change them.
"""

import os
import secrets
import stat


def empty(path: str) -> None:
    """Remove everything in a folder. Raises OSError."""
    os.chmod(path, 0o700)
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        while names := os.listdir(folder):
            for name in names:
                _remove(folder, name)
    finally:
        os.close(folder)


def remove_tree(path: str) -> None:
    """Remove a folder and everything in it. Raises OSError."""
    empty(path)
    os.rmdir(path)


def _remove(folder: int, name: str) -> None:
    """Remove an entry, after the folders in it were brought up to where it lies."""
    if not _is_folder(folder, name):
        os.unlink(name, dir_fd=folder)
        return
    os.chmod(name, 0o700, dir_fd=folder)
    inner = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=folder)
    try:
        for entry in os.listdir(inner):
            if not _is_folder(inner, entry):
                os.unlink(entry, dir_fd=inner)
                continue
            # A folder that may not be written cannot be moved.
            os.chmod(entry, 0o700, dir_fd=inner)
            os.rename(entry, secrets.token_hex(16), src_dir_fd=inner, dst_dir_fd=folder)
    finally:
        os.close(inner)
    os.rmdir(name, dir_fd=folder)


def _is_folder(folder: int, name: str) -> bool:
    return stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
