"""The files of the repository that people read: which there are, and Markdown as code hosts show it."""

import pathlib
import re
import subprocess

from rljob_testing import examples

# Patterns of the code that is shipped, or that writes what is shipped.
SOURCES = (
    "operator/*.py",
    "proto/*.py",
    "workers/*.py",
    "sdk/*.py",
    "generators/*.py",
    "release/*.py",
    "integrations/*.py",
)
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


def heading_anchors(page: str) -> set[str]:
    """Return the anchors that code hosts give the headings of a page."""
    return {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in _HEADING.findall(page)}


def tracked(*patterns: str) -> list[pathlib.Path]:
    """Return the files of the repository that git tracks and that are there, by patterns of `git ls-files`."""
    listed = subprocess.run(
        ["git", "ls-files", *patterns], cwd=examples.ROOT, capture_output=True, text=True, check=True
    )
    return [path for line in listed.stdout.splitlines() if (path := examples.ROOT / line).is_file()]
