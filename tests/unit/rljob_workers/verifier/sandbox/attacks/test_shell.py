"""Attacks of the table from an agent's shell, where more is allowed: the machine's programs and a place to write to."""

import contextlib
import os
import pathlib
import resource
from collections.abc import Iterator

import pytest

from rljob_workers.verifier.sandbox import shell
from rljob_workers.verifier.sandbox.confinement import profile
from rljob_workers.verifier.sandbox.processes import warm
from rljob_workers.verifier.sandbox.scratch import QuotaError

BUDGET = shell.Budget(scratch_bytes=4 << 20, scratch_entries=300, memory_bytes=256 << 20)
PATIENT_S = 120.0
pytestmark = pytest.mark.usefixtures("adopting")


@pytest.fixture(scope="module")
def place(
    adopting: None, confined: profile.Confinement, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[shell.Place]:
    folder = tmp_path_factory.mktemp("place")
    with contextlib.closing(warm.Interpreter()) as started:
        yield shell.Place(folder, confined=confined, budget=BUDGET, start=started.start)


@pytest.fixture
def session(place: shell.Place) -> Iterator[shell.Session]:
    """Return a session of a place that is proven empty afterwards, whatever was done to it."""
    yield place.open("attack")
    place.reset()


@pytest.fixture
def secret(tmp_path: pathlib.Path) -> pathlib.Path:
    path = tmp_path / "secret"
    path.write_text("the answers")
    path.chmod(0o640)
    return path


def by(session: shell.Session, command: str, timeout_s: float = PATIENT_S) -> shell.Outcome:
    return session.exec(command, timeout_s=timeout_s, max_output=10_000)


def python(source: str) -> str:
    return f"python3 - <<'END'\nimport ctypes, os, socket, resource\n{source}\nEND"


@pytest.mark.covers("sandbox P2", "sandbox P7")
@pytest.mark.parametrize(
    "attempt",
    [
        "cat /etc/passwd", "cat /proc/self/environ", "cat /proc/$PPID/environ", "cat /proc/1/cmdline", "ls /",
        "ls /proc", "ls $HOME/..", "echo x > /tmp/rljob-attack", "echo x > $HOME/../bin/python3",
        "echo x > /usr/bin/env", "rm -f /usr/bin/env", "mv $TMPDIR $HOME/moved", "rmdir $TMPDIR",
        "ln /usr/bin/env hard", "mkfifo pipe", "mknod device c 1 3", "kill -0 $PPID", "kill -STOP $PPID",
        "chown 1 .", "renice 5 $$", "chmod 777 /usr/bin/env", "touch /usr/bin/env", "unshare -r true",
        "mount -t tmpfs none .", "taskset -p 1 $PPID", "prlimit --pid $PPID -n1",
    ],
)  # fmt: skip
def test_command_is_denied(attempt: str, session: shell.Session) -> None:
    before = [os.sched_getaffinity(0), os.getpriority(os.PRIO_PROCESS, 0), resource.getrlimit(resource.RLIMIT_NOFILE)]
    outcome = by(session, f"{attempt} && echo reached")
    assert outcome.exit_code != 0
    assert b"reached" not in outcome.stdout
    now = [os.sched_getaffinity(0), os.getpriority(os.PRIO_PROCESS, 0), resource.getrlimit(resource.RLIMIT_NOFILE)]
    assert now == before


@pytest.mark.covers("sandbox P1", "sandbox P4")
def test_system_call_is_denied(session: shell.Session, secret: pathlib.Path) -> None:
    attempts = [
        "socket.socket()", "socket.socket(socket.AF_INET, socket.SOCK_DGRAM)", "socket.socket(socket.AF_UNIX)",
        "socket.create_connection(('127.0.0.1', 80))", "os.memfd_create('x')", "os.setsid()", "os.nice(1)",
        "os.kill(-1, 0) or os.kill(os.getppid() - 1, 0)", "resource.prlimit(1, resource.RLIMIT_NOFILE)",
        f"os.stat({str(secret)!r})", f"os.open({str(secret)!r}, os.O_PATH)", f"os.chmod({str(secret)!r}, 0o777)",
        f"os.utime({str(secret)!r})", "os.fchmod(os.open('/usr/bin/env', os.O_RDONLY), 0o777)",
        "os.utime(os.open('/usr/bin/env', os.O_RDONLY))", "os.link('/usr/bin/env', 'hard')",
    ]  # fmt: skip
    source = f"""
for attempt in {attempts!r}:
    try:
        exec(attempt)
    except OSError:
        continue
    print(attempt)
"""
    before = secret.stat()
    outcome = by(session, python(source))
    assert (outcome.stdout, outcome.exit_code) == (b"", 0), outcome
    assert secret.stat() == before


def test_links_lead_to_nothing_outside(session: shell.Session, secret: pathlib.Path) -> None:
    outcome = by(
        session, f"ln -s {secret} l; ln -s {secret.parent} d; cat l; cat d/secret; echo forged > l; ls d/; true"
    )
    assert outcome.stdout == b""
    for path in ("l", "d/secret"):
        with pytest.raises(QuotaError):
            session.read(path, 100)
        with pytest.raises(QuotaError):
            session.write(path, b"forged")
    assert secret.read_text() == "the answers"


def test_swapping_a_folder_for_a_link_meanwhile_shows_nothing(session: shell.Session, secret: pathlib.Path) -> None:
    source = f"""
import threading
os.mkdir('real'); open('real/secret', 'w').close()
os.symlink({str(secret.parent)!r}, 'link')
os.rename('real', 'now')
done = False
def swap():
    while not done:
        for names in (('now', 'real'), ('link', 'now'), ('now', 'link'), ('real', 'now')):
            os.rename(*names)
thread = threading.Thread(target=swap)
thread.start()
sizes = set()
for _ in range(400):
    try:
        sizes.add(os.stat('now/secret').st_size)
        os.chmod('now/secret', 0o777)
    except OSError:
        continue
done = True
thread.join()
print(sorted(sizes))
"""
    before = secret.stat()
    outcome = by(session, python(source))
    # Never its size, and the folders were swapped to the end.
    assert outcome.stdout in (b"[0]\n", b"[]\n"), outcome
    assert (outcome.exit_code, outcome.stderr) == (0, b"")
    assert secret.stat() == before


@pytest.mark.covers("sandbox P3", "sandbox P5", "sandbox P6")
@pytest.mark.parametrize(
    ("bomb", "stopped"),
    [
        # The start of `sleep` may be what fails; then the command ends by itself, and the bomb with it.
        ("f() { f | f & }; f; sleep 100", {"", "memory"}),
        (python("while True:\n    os.fork()"), {"memory"}),
        (python("x = []\nwhile True:\n    x.append(bytearray(1 << 20))"), {"", "memory"}),
        ("i=0; while :; do i=$((i+1)); : > $i; done", {"disk"}),
        ("while :; do mkdir d; cd d; done", {"disk"}),
        ("for i in 1 2 3; do head -c 3000000 /dev/zero > $i; done; sleep 100", {"disk"}),
        ("for i in 1 2 3; do head -c 3000000 /dev/zero > $i; exec 9< $i; done; sleep 100", {"disk"}),
    ],
)
def test_bomb_is_stopped_by_its_limit(bomb: str, stopped: set[str], session: shell.Session) -> None:
    outcome = by(session, bomb)
    assert outcome.stopped in stopped
    assert outcome.exit_code != 0
    # The next command of the same episode runs as if nothing had been.
    assert by(session, "rm -rf ./* && echo fine > f && cat f").stdout == b"fine\n"


def test_removed_files_that_stay_open_fill_no_disk(session: shell.Session) -> None:
    # On a fast disk all that may be open is written before anyone looks; then it stays.
    source = """
files = []
while True:
    try:
        files.append(open('f', 'wb', buffering=0)); os.remove('f'); files[-1].write(b'x' * 1000000)
    except OSError:
        continue
"""
    assert by(session, python(source)).stopped == "disk"


def test_one_file_is_no_larger_than_all_may_be(session: shell.Session) -> None:
    outcome = by(session, "head -c 5000000 /dev/zero > f; wc -c < f")
    assert int(outcome.stdout) <= BUDGET.scratch_bytes


def test_flood_is_cut_and_costs_its_runner_nothing(session: shell.Session) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    outcome = by(session, "yes | head -c 100000000")
    assert (len(outcome.stdout), outcome.truncated) == (10_000, True)
    # KiB.
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 20_000


def test_descriptors_of_its_runner_are_not_there(session: shell.Session) -> None:
    source = """
for descriptor in range(3, 64):
    try:
        os.fstat(descriptor)
    except OSError:
        continue
    print(descriptor)
"""
    session.write("program.py", f"import os{source}".encode())
    assert by(session, "python3 program.py") == shell.Outcome(exit_code=0, stdout=b"", stderr=b"", truncated=False)
