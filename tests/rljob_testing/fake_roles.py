"""FAKES of the four programs, for tests of the runner: they speak just enough of status, POST /stop and exit codes.

Run as `python -m rljob_testing.fake_roles ROLE --config FILE [--check ...]`. What a role does wrong on purpose comes
from files in $RLJOB_FAKE_DIR, where all of them also write what happened (`events`) and the state that the real
coordinator's ledger and the real trainer's checkpoints would hold.
"""

import importlib
import os
import pathlib
import signal
import sys
import tempfile
import threading

from rljob_api import enums

FOLDER = pathlib.Path(os.environ.get("RLJOB_FAKE_DIR", "."))
# Those that read their configuration. The others, and all checks, start in a tenth of the time without what that needs.
_PLAYED_BY = {"coordinator": "rljob_testing.fake_role_coordinator", "trainer": "rljob_testing.fake_role_trainer"}


def tell(event: str) -> None:
    """Append one event; appends of one line are atomic."""
    with (FOLDER / "events").open("a") as file:
        file.write(f"{event}\n")


def number(name: str) -> int:
    """Return the number in a state file, 0 if there is none."""
    path = FOLDER / name
    return int(path.read_text()) if path.exists() else 0


def put(name: str, value: int) -> None:
    """Write a number atomically."""
    (FOLDER / f"{name}.tmp").write_text(str(value))
    (FOLDER / f"{name}.tmp").replace(FOLDER / name)


def misbehave(role: str) -> None:
    """End at once with the code in `<role>.exit`, if there is such a file; only once if `<role>.once` exists."""
    path = FOLDER / f"{role}.exit"
    if path.exists():
        code = int(path.read_text())
        if (FOLDER / f"{role}.once").exists():
            path.unlink()
        print(f"{role} cannot go on", flush=True)
        raise SystemExit(code)


def wait_for_sigterm(role: str) -> None:
    """What a fake rollout or verifier does."""
    stopped = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    stopped.wait()


def check(role: str) -> int:
    """Print the problems in `<role>.problems`."""
    path = FOLDER / f"{role}.problems"
    if not path.exists():
        return 0
    print(path.read_text())
    return int(enums.ExitCode.BAD_INPUT)


def main() -> int:
    """Play one role."""
    role, config_file = sys.argv[1], pathlib.Path(sys.argv[3])
    # As libraries do, and no one removes it.
    tempfile.mkdtemp(prefix=f"fake_{role}_")
    if "--check" in sys.argv:
        return check(role)
    tell(f"{role} started")
    misbehave(role)
    code = 0
    if role in _PLAYED_BY:
        code = importlib.import_module(_PLAYED_BY[role]).run(config_file.read_text())
    else:
        wait_for_sigterm(role)
    tell(f"{role} ended")
    return code


if __name__ == "__main__":
    sys.exit(main())
