"""An agent's shell as an agent has it: what works, what its limits do, and what is left for a command or an episode."""

import contextlib
import dataclasses
import pathlib
import shutil
import stat
from collections.abc import Iterator

import pytest

from rljob_api import errors
from rljob_workers.verifier.sandbox import shell
from rljob_workers.verifier.sandbox.confinement import landlock, profile
from rljob_workers.verifier.sandbox.processes import procfs, spawn, warm

BUDGET = shell.Budget(scratch_bytes=8 << 20, scratch_entries=500, memory_bytes=512 << 20)
PATIENT_S = 120.0
pytestmark = pytest.mark.usefixtures("adopting")


@pytest.fixture(scope="module")
def interpreter() -> Iterator[warm.Interpreter]:
    with contextlib.closing(warm.Interpreter()) as started:
        yield started


@pytest.fixture
def place(tmp_path: pathlib.Path, confined: profile.Confinement, interpreter: warm.Interpreter) -> shell.Place:
    return shell.Place(tmp_path, confined=confined, budget=BUDGET, start=interpreter.start)


def ran(session: shell.Session, command: str) -> str:
    outcome = session.exec(command, timeout_s=PATIENT_S, max_output=64 << 10)
    assert (outcome.exit_code, outcome.stopped) == (0, ""), outcome
    return outcome.stdout.decode()


def test_everyday_commands_work_without_a_complaint(place: shell.Place) -> None:
    session = place.open("e")
    script = """
    set -e
    mkdir -p a/b; echo one > a/f; cp a/f a/b/; mv a/f a/g; touch a/g a/new; chmod +x a/new
    sed -i s/one/two/ a/g; ln -s a/g link; cat link; readlink link; grep -r two . | sort; find a -name f
    printf '#!/bin/sh\\necho ran' > run; chmod 755 run; ./run; yes | head -1; ls -l a > list; wc -l < list
    echo 'print(6 * 7)' > program.py; python3 program.py 2> /dev/null; rm -r a; test ! -e a; pwd > "$TMPDIR/where"
    """
    outcome = session.exec(script, timeout_s=PATIENT_S, max_output=10_000)
    assert (outcome.exit_code, outcome.stderr) == (0, b"")
    lines = ["two", "a/g", "./a/g:two", "./link:two", "a/b/f", "ran", "y", "4", "42"]
    # A link is not followed by grep -r.
    assert outcome.stdout.decode().splitlines() == [line for line in lines if line != "./link:two"]


TOOLCHAIN = [name for name in ("gcc", "make", "git") if shutil.which(name) is None]


@pytest.mark.skipif(bool(TOOLCHAIN), reason=f"needs {' and '.join(TOOLCHAIN)}")
def test_a_repository_with_a_program_in_c_is_built_tested_and_committed(place: shell.Place) -> None:
    script = r"""
    set -e
    export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b
    printf '#include <stdio.h>\nint main(void) { printf("%%d\\n", 6 * 7); return 0; }\n' > answer.c
    printf 'test: answer\n\ttest $$(./answer) = 42\nanswer: answer.c\n\tgcc -O1 -o answer answer.c\n' > Makefile
    make test > built; git init --quiet .; git add answer.c Makefile; git commit --quiet -m first
    echo '// changed' >> answer.c; git diff --stat; git stash --quiet; git log --format=%s
    """
    outcome = place.open("e").exec(script, timeout_s=PATIENT_S, max_output=10_000)
    assert (outcome.exit_code, outcome.stopped) == (0, ""), outcome
    assert outcome.stdout.decode().splitlines()[-1] == "first"


def test_files_are_there_for_the_next_command_and_variables_folder_and_processes_are_not(place: shell.Place) -> None:
    session = place.open("e")
    pid = int(ran(session, "echo text > file; export LEFT=1; mkdir sub; cd sub; sleep 600 & echo $!"))
    assert procfs.tree(pid) == frozenset()
    assert ran(session, "cat file; echo [$LEFT]; basename $PWD") == "text\n[]\nwork\n"
    assert session.read("file", 100) == b"text\n"
    session.write("sub/data", b"\x00\xff")
    assert ran(session, "wc -c < sub/data").strip() == "2"


def test_link_to_what_is_not_there_for_it_can_be_listed_moved_and_removed(place: shell.Place) -> None:
    script = "ln -s /etc/passwd l; readlink l; mv l m; ls; cat m 2> /dev/null || echo denied; rm m; ls"
    assert ran(place.open("e"), script) == "/etc/passwd\nm\ndenied\n"


def test_exit_code_and_both_streams_come_back_apart(place: shell.Place) -> None:
    outcome = place.open("e").exec("echo out; echo err >&2; exit 3", timeout_s=PATIENT_S, max_output=100)
    assert outcome == shell.Outcome(exit_code=3, stdout=b"out\n", stderr=b"err\n", truncated=False)


def test_output_beyond_the_limit_is_dropped_and_the_command_continues(place: shell.Place) -> None:
    session = place.open("e")
    outcome = session.exec("yes | head -c 1000000; echo done > marker", timeout_s=PATIENT_S, max_output=1000)
    assert (outcome.stdout, outcome.truncated, outcome.exit_code) == (b"y\n" * 500, True, 0)
    assert session.read("marker", 10) == b"done\n"


@pytest.mark.covers("sandbox P8")
def test_command_that_takes_too_long_is_ended_with_all_that_it_started(place: shell.Place) -> None:
    session = place.open("e")
    for attempt in range(8):
        # A machine that gives it no time says so, and then more of it helps.
        with contextlib.suppress(spawn.CannotRunError):
            outcome = session.exec("sleep 600 & echo $!; sleep 600", timeout_s=0.5 * 2**attempt, max_output=100)
            break
    assert outcome.stopped == "wall"
    assert procfs.tree(int(outcome.stdout)) == frozenset()


@pytest.mark.covers("sandbox 4")
def test_episode_has_a_budget_of_time_and_of_output(
    tmp_path: pathlib.Path, confined: profile.Confinement, interpreter: warm.Interpreter
) -> None:
    times_s = iter([0.0, 7.0, 10.0, 13.0])
    budget = dataclasses.replace(BUDGET, wall_s=10.0, output_bytes=6)
    place = shell.Place(
        tmp_path, confined=confined, budget=budget, start=interpreter.start, now_s=lambda: next(times_s)
    )
    of_output = place.open("e")
    outcome = of_output.exec("echo 123; echo 456 >&2", timeout_s=9.0, max_output=100)
    assert (outcome.stdout, outcome.stderr, outcome.truncated) == (b"123\n", b"45", True)
    with pytest.raises(shell.SpentError, match="output"):
        of_output.exec("true", timeout_s=1.0, max_output=100)
    with pytest.raises(shell.SpentError, match="output"):
        of_output.read("file", 1)
    of_time = place.open("f")
    of_time.exec("true", timeout_s=9.0, max_output=100)
    with pytest.raises(StopIteration):
        # 3 of its 10 s are used up: it may begin, and this clock has no further time to tell.
        of_time.exec("true", timeout_s=9.0, max_output=100)


@pytest.mark.covers("sandbox 4")
def test_reset_leaves_nothing_that_an_episode_planted(place: shell.Place) -> None:
    session = place.open("e")
    planted = """
    echo 'raise SystemExit("planted")' > sitecustomize.py; cp sitecustomize.py json.py; mkdir -p .local/lib bin
    echo planted > .profile; echo planted > "$TMPDIR/file"; cp /bin/echo ls; export PLANTED=1; chmod 0 .local
    sleep 600 &
    """
    ran(session, planted)
    place.reset()
    after = place.open("f")
    assert ran(after, 'ls -A "$HOME"; ls -A "$TMPDIR"; env | grep -c PLANTED; python3 -c "import json"; true') == "0\n"


def test_a_place_in_a_volume_whose_folders_inherit_its_group_is_as_it_was_made_after_a_reset(
    tmp_path: pathlib.Path, confined: profile.Confinement, interpreter: warm.Interpreter
) -> None:
    # As an emptyDir of a pod with fsGroup is.
    volume = tmp_path / "volume"
    volume.mkdir()
    volume.chmod(0o2770)
    assert (tmp_path / "volume").stat().st_mode & stat.S_ISGID
    place = shell.Place(volume, confined=confined, budget=BUDGET, start=interpreter.start)
    place.verify()
    place.reset()


def test_place_with_something_in_it_is_opened_for_no_one(place: shell.Place) -> None:
    ran(place.open("e"), "echo left > behind")
    with pytest.raises(shell.NotCleanError, match="not as it was made"):
        place.open("f")


def test_reset_fails_where_a_process_has_not_ended(
    tmp_path: pathlib.Path, confined: profile.Confinement, interpreter: warm.Interpreter
) -> None:
    place = shell.Place(
        tmp_path, confined=confined, budget=BUDGET, start=interpreter.start, survivors=lambda: frozenset([1])
    )
    with pytest.raises(shell.NotCleanError, match="1 processes"):
        place.reset()


def test_reset_fails_where_a_canary_cannot_be_planted(
    tmp_path: pathlib.Path, confined: profile.Confinement, interpreter: warm.Interpreter
) -> None:
    budget = dataclasses.replace(BUDGET, scratch_entries=0)
    place = shell.Place(tmp_path, confined=confined, budget=budget, start=interpreter.start)
    with pytest.raises(shell.NotCleanError):
        place.reset()


def test_machine_that_cannot_say_where_to_write_has_no_shell(
    tmp_path: pathlib.Path, confined: profile.Confinement
) -> None:
    for lacking in ({"abi": 0}, {"request_bytes": 0}):
        with pytest.raises(errors.SandboxError, match="a shell needs Landlock"):
            shell.Place(tmp_path, confined=dataclasses.replace(confined, **lacking), budget=BUDGET)


def test_confinement_of_a_shell_is_tried_before_it_is_used(
    place: shell.Place, tmp_path: pathlib.Path, confined: profile.Confinement, interpreter: warm.Interpreter
) -> None:
    place.verify()
    other = tmp_path / "other"
    other.mkdir()
    # More may be read than should be.
    open_to_all = dataclasses.replace(confined, readable={**confined.readable, "/etc": int(landlock.Fs.READ_FILE)})
    leaky = shell.Place(other, confined=open_to_all, budget=BUDGET, start=interpreter.start)
    with pytest.raises(errors.SandboxError, match="for a shell: reading a file outside succeeded"):
        leaky.verify()
