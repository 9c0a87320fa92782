"""`rljob-trainer` as a child of `nursery.py`: launcher and ranks are forks of a process that has imported torch and
DeepSpeed, which takes most of a short run otherwise. What runs in them is the program's own code; only the start of an
interpreter is another, which tests with the real program see.
"""

import functools
import json
import os
import select
import signal
import subprocess
import sys
import types
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import torch

from rljob_workers.runtime import boot
from rljob_workers.trainer import __main__ as program
from rljob_workers.trainer import app as app  # what a rank imports once it has its config
from rljob_workers.trainer import launch, worker


class ForkedRank:
    """What the launcher uses of `subprocess.Popen`."""

    __class_getitem__: Any = classmethod(types.GenericAlias)

    def __init__(self, command: Sequence[str], *, env: Mapping[str, str], start_new_session: bool) -> None:
        assert start_new_session
        assert command[1:4] == ["-u", "-m", worker.__name__]
        sys.stdout.flush()
        self._code: int | None = None
        self.pid = os.fork()
        if not self.pid:
            os.setsid()
            _rank(command[4:], env)

    def wait(self, timeout: float | None = None) -> int:
        """Raises subprocess.TimeoutExpired as the original does."""
        if self._code is None:
            descriptor = os.pidfd_open(self.pid)
            ended, _, _ = select.select([descriptor], [], [], timeout)
            os.close(descriptor)
            if not ended:
                raise subprocess.TimeoutExpired("rank", timeout or 0.0)
            self._code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self._code

    def send_signal(self, number: int) -> None:
        if self._code is None:
            os.kill(self.pid, number)

    terminate = functools.partialmethod(send_signal, signal.SIGTERM)
    kill = functools.partialmethod(send_signal, signal.SIGKILL)


def _rank(arguments: Sequence[str], env: Mapping[str, str]) -> NoReturn:
    code = 1
    try:
        os.environ.clear()
        os.environ.update(env)
        # A new interpreter reads it as it imports torch.
        if "OMP_NUM_THREADS" in env:
            torch.set_num_threads(int(env["OMP_NUM_THREADS"]))
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        sys.argv = [worker.__name__, *arguments]
        code = worker.main()
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 1
    finally:
        os._exit(code)


def main(arguments: Sequence[str]) -> None:
    """Run `rljob-trainer --config FILE` and answer with its exit code. arguments: the file, and variables in JSON."""
    boot.die_with_parent()
    # The log gets what is printed.
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    config, variables = arguments
    os.environ.update(json.loads(variables))
    vars(launch)["subprocess"] = types.SimpleNamespace(Popen=ForkedRank, TimeoutExpired=subprocess.TimeoutExpired)
    try:
        code = program.main(["--config", config])
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 1
    answer.write(json.dumps({"code": code}) + "\n")
    answer.flush()
