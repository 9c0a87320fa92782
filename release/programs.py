"""The programs that a release is made with, each run to its end."""

import os
import pathlib
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence

from generators import ROOT

LAST_CHARACTERS = 4000


class ReleaseError(RuntimeError):
    """A release cannot be made; the message is for who makes it."""


def path_of(name: str, *, remedy: str) -> str:
    """Return the path of a program on the PATH, or of one that is named by its path. Raises ReleaseError."""
    path = shutil.which(name)
    if path is None:
        raise ReleaseError(f"{name} is missing: {remedy}")
    return path


def uv() -> str:
    """Return the uv of this environment. Raises ReleaseError."""
    return path_of(str(pathlib.Path(sys.executable).with_name("uv")), remedy="`make setup` installs it")


def run(*words: str | pathlib.Path, environment: Mapping[str, str] | None = None) -> str:
    """Run a program in the repository's root and return what it printed.

    environment: added to this process's own. Raises ReleaseError with what the program complained of.
    """
    command: Sequence[str] = [str(word) for word in words]
    ended = subprocess.run(
        command, cwd=ROOT, env={**os.environ, **(environment or {})}, capture_output=True, text=True, check=False
    )
    if ended.returncode:
        complaint = (ended.stderr or ended.stdout)[-LAST_CHARACTERS:]
        raise ReleaseError(f"`{' '.join(command[:4])} ...` failed with {ended.returncode}: {complaint}")
    return ended.stdout
