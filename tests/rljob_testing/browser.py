"""A real browser without a window, whose network is this machine, and what a page wrote to its console there."""

import os
import pathlib
import shutil
import subprocess

import pytest

PROGRAM = "chromium"
_ENDS_S = 120.0
# Of the page's own clock: what it starts later is not waited for.
_BUDGET_MS = 5000
_MARK = ":CONSOLE:"


def is_there() -> bool:
    """Return whether this machine has it (tests/cluster/packages.sh installs it)."""
    return shutil.which(PROGRAM) is not None


def require() -> None:
    """Skip the test where the browser is not there; in CI, where it is installed, fail."""
    if not is_there():
        (pytest.fail if os.environ.get("CI") == "true" and os.geteuid() == 0 else pytest.skip)(
            f"{PROGRAM} is not here: tests/cluster/packages.sh installs it"
        )


def console_of(page: pathlib.Path, profile: pathlib.Path) -> list[str]:
    """Return the lines that a page and its scripts wrote, errors among them. profile: a folder for the browser."""
    return opened(page.resolve().as_uri(), profile)[1]


def opened(address: str, profile: pathlib.Path) -> tuple[str, list[str]]:
    """Return what a page is after its scripts ran, as HTML, and the lines that they wrote to the console."""
    options = (
        "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", f"--user-data-dir={profile}",
        "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1", f"--virtual-time-budget={_BUDGET_MS}", "--dump-dom",
    )  # fmt: skip
    done = subprocess.run([PROGRAM, *options, address], capture_output=True, text=True, timeout=_ENDS_S)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "</body>" in done.stdout, "the page was not loaded"
    return done.stdout, [line for line in done.stderr.splitlines() if _MARK in line]
