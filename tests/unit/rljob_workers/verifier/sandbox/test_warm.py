"""Programs as forks of a warm interpreter: as if each had a fresh one, and nothing of one in the next."""

import contextlib
import os
import signal

import pytest

from rljob_workers.verifier.sandbox import programs
from rljob_workers.verifier.sandbox.confinement import profile
from rljob_workers.verifier.sandbox.processes import procfs, spawn, warm

LIMITS = programs.Limits(cpu_s=20.0, wall_s=120.0, memory_bytes=512 << 20, output_bytes=64 << 10)


def run(
    source: str, confined: profile.Confinement, start: spawn.Start, *, stdin: bytes = b"", fn_name: str = ""
) -> programs.Run:
    program = programs.Program(source=source, compat=False, fn_name=fn_name)
    return programs.run(program, stdin=stdin, limits=LIMITS, confined=confined, start=start)


@pytest.mark.covers("sandbox 4")
@pytest.mark.parametrize(
    ("num_forks", "now_bytes", "worn"),
    [(0, 100, False), (999, 120, False), (1_000, 100, True), (1, 121, True), (999, 50, False)],
)
def test_interpreter_is_worn_after_a_thousand_forks_or_a_fifth_more_memory(
    num_forks: int, now_bytes: int, worn: bool
) -> None:
    found = warm.is_worn(num_forks=num_forks, max_forks=warm.MAX_FORKS, first_bytes=100, now_bytes=now_bytes)
    assert found is worn


@pytest.mark.covers("sandbox 4")
def test_worn_interpreter_is_replaced_and_programs_go_on(confined: profile.Confinement) -> None:
    seen = []
    with contextlib.closing(warm.Interpreter(max_forks=2)) as interpreter:
        for number in range(3):
            assert run(f"print({number})", confined, interpreter.start).output == f"{number}\n".encode()
            seen.append(interpreter.pids)
        assert interpreter.pids <= procfs.children(os.getpid())
    assert seen[0] == seen[1] != seen[2]
    assert not (seen[0] | seen[2]) & procfs.children(os.getpid())


# What interpreters do at their end, and what a program can do to it.
ENDS = {
    "by itself": "print(1)",
    "reading": "print(input(), repr(input()))",
    "at the end of its input": "import sys\nprint(len(sys.stdin.read()))\ninput()",
    "exit code": "print(1)\nimport sys\nsys.exit(3)",
    "exit code over a byte": "import sys\nsys.exit(256)",
    "exit code that is negative": "import sys\nsys.exit(-1)",
    "exit with a text": "import sys\nsys.exit('text')",
    "exit without a code": "import sys\nprint(1)\nsys.exit()",
    "an exception": "print(1)\nraise ValueError('no')",
    "an interrupt": "print(1)\nraise KeyboardInterrupt",
    "a base exception": "class Stop(BaseException):\n    pass\nraise Stop",
    "at once": "import os\nprint(1, flush=True)\nos._exit(7)",
    "at once, unflushed": "import os\nprint(1)\nos._exit(0)",
    "a signal": "import os\nprint(1, flush=True)\nos.abort()",
    "an own callback": "import atexit\natexit.register(print, 'last')\nprint('first')",
    "an own callback after an error": "import atexit\natexit.register(print, 'last')\n1 // 0",
    "a callback that exits": "import atexit, os\natexit.register(os._exit, 9)",
    "no callbacks": "import atexit\natexit._clear()\nprint(1)",
    "a finaliser": "class Last:\n    def __del__(self):\n        print('gone')\nlast = Last()",
    "a finaliser of a cycle": "class A:\n    def __del__(self):\n        print('gone')\nlast = A()\nlast.me = last",
    "a finaliser after an error": "class Last:\n    def __del__(self):\n        print('gone')\nlast = Last()\n1 // 0",
    "a thread": "import threading, time\nthreading.Thread(target=lambda: print(len(threading.enumerate()))).start()",
    "a daemon thread": "import signal, threading\nthreading.Thread(target=signal.pause, daemon=True).start()\nprint(1)",
    "closed output": "import sys\nprint(1)\nsys.stdout.close()",
    "closed descriptor": "import os\nprint(1)\nos.close(1)",
    "no output": "import sys\nsys.stdout = None",
    "its own output": "import io, sys\nsys.stdout = io.StringIO()\nprint(1)",
    "much output": "for n in range(5000):\n    print(n)",
    "deep recursion": "def f(n):\n    return n and f(n - 1)\nprint(f(20000))",
    "deep nesting": "x = " + "(" * 500 + ")" * 500,
    "no syntax": "print(",
}  # fmt: skip


@pytest.mark.covers("sandbox 4")
@pytest.mark.parametrize("how", ENDS)
def test_program_ends_as_in_an_interpreter_of_its_own(
    how: str, confined: profile.Confinement, interpreter: warm.Interpreter
) -> None:
    fresh, forked = (run(ENDS[how], confined, start, stdin=b"one\ntwo\n") for start in (spawn.fresh, interpreter.start))
    assert forked == fresh


SURROUNDINGS = """
import json, os, resource, signal, sys
opened = []
for descriptor in range(256):
    try:
        os.fstat(descriptor)
    except OSError:
        continue
    opened.append(descriptor)
print(json.dumps({
    "opened": opened,
    "environment": dict(os.environ),
    "arguments": sys.argv,
    "flags": list(sys.flags),
    "path": sys.path,
    "folder": os.getcwd(),
    "mask": os.umask(0),
    "encodings": [[s.encoding, s.errors, s.line_buffering, s.buffer.raw.seekable(), s.buffer.raw.mode]
                  for s in (sys.stdin, sys.stdout, sys.stderr)],
    "signals": [str(signal.getsignal(number)) for number in range(1, 32)],
    "blocked": [int(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, [])],
    "limits": [resource.getrlimit(kind) for kind in range(16)],
    "recursion": sys.getrecursionlimit(),
    "session": [os.getsid(0) == os.getpid(), os.getpgid(0) == os.getpid()],
    "names": sorted(globals()),
    "main": sorted(vars(sys.modules["__main__"])),
    "threads": len(os.sched_getaffinity(0)),
}, sort_keys=True))
"""


@pytest.mark.covers("sandbox 4")
def test_program_finds_what_it_finds_in_an_interpreter_of_its_own(
    confined: profile.Confinement, interpreter: warm.Interpreter
) -> None:
    fresh, forked = (run(SURROUNDINGS, confined, start) for start in (spawn.fresh, interpreter.start))
    assert forked.output.decode() == fresh.output.decode()
    assert b'"opened": [0, 1, 2]' in forked.output


CHANGES = """
import builtins, collections, gc, json, os, random, sys, types
sys.modules["left"] = types.ModuleType("left")
builtins.left = json.left = random.left = 1
os.environ["LEFT"] = "1"
sys.setrecursionlimit(1234)
sys.path.append("/left")
collections.OrderedDict = dict
gc.disable()
json.dumps = lambda *a, **k: "{}"
"""
LOOKS = """
import builtins, collections, gc, json, os, random, sys
def found():
    return [name for name, there in {
        "module": "left" in sys.modules,
        "attribute": any(hasattr(module, "left") for module in (builtins, json, random)),
        "environment": "LEFT" in os.environ,
        "limit": sys.getrecursionlimit() == 1234,
        "path": "/left" in sys.path,
        "class": collections.OrderedDict is dict,
        "collector": not gc.isenabled(),
    }.items() if there]
"""


@pytest.mark.covers("sandbox 4")
def test_nothing_that_a_program_changed_is_there_for_the_next(
    confined: profile.Confinement, interpreter: warm.Interpreter
) -> None:
    in_one = run(CHANGES + LOOKS + "print(len(found()))", confined, interpreter.start)
    assert in_one.output == b"7\n"
    next_one = run(LOOKS, confined, interpreter.start, fn_name="found")
    assert next_one.records == (("returned", []),)


@pytest.mark.covers("sandbox 4")
def test_texts_of_a_program_and_its_input_are_not_in_the_memory_of_the_next(
    confined: profile.Confinement, interpreter: warm.Interpreter
) -> None:
    leaves = "kept = 'mark-83b1' + input()\nprint(kept)\n"
    looks = """
import gc, sys
texts = [*map(repr, gc.get_objects()), *map(repr, sys._getframe().f_back.f_locals.items())]
texts += [repr(value) for module in list(sys.modules.values()) for value in vars(module).values()]
print(any("".join(["mark-", "83b1"]) in text for text in texts))
"""
    assert b"True" in run(leaves + looks, confined, interpreter.start, stdin=b"x").output
    assert run(looks, confined, interpreter.start).output == b"False\n"


@pytest.mark.covers("sandbox 4")
def test_random_numbers_of_two_programs_differ(confined: profile.Confinement, interpreter: warm.Interpreter) -> None:
    source = "import random, uuid\nprint(random.random(), randint(1, 10**9), uuid.uuid4())"
    first, second = (run(source, confined, interpreter.start).output.split() for _ in range(2))
    assert not set(first) & set(second)


def test_interpreter_that_ended_is_replaced_before_the_next_program(
    confined: profile.Confinement, interpreter: warm.Interpreter
) -> None:
    run("print(1)", confined, interpreter.start)
    (pid,) = interpreter.pids
    os.kill(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert run("print(2)", confined, interpreter.start).output == b"2\n"
    assert interpreter.pids != {pid}


@pytest.mark.covers("sandbox 4")
def test_program_whose_interpreter_ends_with_it_is_nobodys_fault_and_does_not_stay(
    confined: profile.Confinement, interpreter: warm.Interpreter
) -> None:
    begun = []

    def start(request_fd: int, reply_fd: int) -> spawn.Started:
        started = interpreter.start(request_fd, reply_fd)
        begun.append(started.pid)
        os.kill(started.parent, signal.SIGKILL)
        return started

    with pytest.raises(spawn.CannotRunError, match="forked from has ended"):
        run("import signal\nsignal.pause()", confined, start)
    assert not procfs.tree(begun[0])
    assert run("print(2)", confined, interpreter.start).output == b"2\n"


def test_interpreter_that_cannot_start_is_nobodys_fault(
    confined: profile.Confinement, interpreter: warm.Interpreter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spawn, "INTERPRETER", (*spawn.INTERPRETER, "-c", "raise SystemExit('no')"))
    with pytest.raises(spawn.CannotRunError, match="did not start: .*no"):
        run("print(1)", confined, interpreter.start)
    assert interpreter.pids == frozenset()
