"""Which paths a file of a repository may have, and which of them no answer may write. Pure.

What is refused here can be nothing on disk: nowhere outside the folder of its run, and no `.git` to read the solution
from.
"""

from collections.abc import Collection

MAX_PATH_BYTES = 240
MAX_DEPTH = 16
# What pytest and an interpreter read without being asked to (Python 3.11 site, pytest 9 configuration).
CONFIGURATION = frozenset(
    (
        "conftest.py",
        "pyproject.toml",
        "pytest.ini",
        "pytest.toml",
        "setup.cfg",
        "sitecustomize.py",
        "tox.ini",
        "usercustomize.py",
    )
)
_PATHS_FILE = ".pth"


def problem(path: str) -> str:
    """Return why a file cannot have this path below a repository's root, an empty text if it can."""
    if not path.isprintable() or "\\" in path:
        return "holds a character that is not allowed in a name"
    if not 0 < len(path.encode()) <= MAX_PATH_BYTES:
        return f"must have 1 to {MAX_PATH_BYTES} bytes"
    parts = path.split("/")
    if len(parts) > MAX_DEPTH:
        return f"is more than {MAX_DEPTH} names deep"
    if not all(parts):
        return "must be relative, with one '/' between names"
    if any(part.startswith(".") for part in parts):
        return "has a name that begins with '.'"
    return ""


def is_configuration(path: str) -> bool:
    """Return whether a tool would read the file unasked, wherever in the repository it lies."""
    name = path.rpartition("/")[2].lower()
    return name in CONFIGURATION or name.endswith(_PATHS_FILE)


def clash(paths: Collection[str]) -> str:
    """Return the first path that another one needs as its folder, an empty text if there is none."""
    folders = {path[:index] for path in paths for index, character in enumerate(path) if character == "/"}
    return min(folders.intersection(paths), default="")
