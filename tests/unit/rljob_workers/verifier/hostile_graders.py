"""A grader for tests of the pool that does what the completion says. Imported by workers."""

import os
import signal
from collections.abc import Callable, Mapping

from rljob_api import enums, process_config
from rljob_workers.verifier.graders import base
from rljob_workers.verifier.sandbox.processes import confine


class Obedient(base.SingleTimeLimit):
    """Does to its process what the completion orders; `right` is a right answer."""

    needs_worker = True

    def __init__(self, config: process_config.GraderConfig) -> None:
        self._config = config

    def check(self, columns: Mapping[str, object]) -> None:
        """Every record will do."""

    def warm(self) -> None:
        """Nothing to import."""

    def quick(self, answer: base.Answer) -> base.Grade | None:
        """Never decides."""
        return None

    def grade(self, answer: base.Answer) -> base.Grade:
        order, _, argument = answer.completion.partition(" ")
        decide: Callable[[str], base.Grade] = getattr(self, f"_{order}")
        return decide(argument)

    def _right(self, argument: str) -> base.Grade:
        return base.passed(argument)

    def _spin(self, argument: str) -> base.Grade:
        while True:
            pass

    def _native_spin(self, argument: str) -> base.Grade:
        # One bytecode that holds the interpreter lock for hours: alarms and threads do not help.
        return base.passed(str(9 ** (9**9))[:1])

    def _sleep(self, argument: str) -> base.Grade:
        signal.pause()
        return base.passed("")

    def _die(self, argument: str) -> base.Grade:
        os.kill(os.getpid(), signal.SIGKILL)
        return base.passed("")

    def _die_once(self, argument: str) -> base.Grade:
        try:
            os.mkdir(argument)
        except FileExistsError:
            return base.passed("second time")
        return self._die("")

    def _exit(self, argument: str) -> base.Grade:
        os._exit(0)

    def _hoard(self, argument: str) -> base.Grade:
        return base.passed(str(len(bytearray(1 << 34))))

    def _raise(self, argument: str) -> base.Grade:
        raise ValueError(argument)

    def _flood(self, argument: str) -> base.Grade:
        print("x" * (1 << 20))
        return base.passed("y" * (1 << 20))

    def _write(self, argument: str) -> base.Grade:
        with open(argument, "w", encoding="utf-8") as file:
            file.write("owned")
        return base.passed("")

    def _status(self, argument: str) -> base.Grade:
        with open("/proc/self/status", encoding="ascii") as file:
            lines = dict(line.split(":", 1) for line in file)
        return base.passed(lines[argument].strip())

    def _environment(self, argument: str) -> base.Grade:
        return base.passed(",".join(sorted(os.environ)))

    def _descriptors(self, argument: str) -> base.Grade:
        return base.passed(",".join(sorted(os.listdir("/proc/self/fd"), key=int)))

    def _parent(self, argument: str) -> base.Grade:
        confine.die_with(os.getppid())
        return base.passed(str(os.getpid()))

    def _surrogate(self, argument: str) -> base.Grade:
        return base.failed(enums.VerdictReason.WRONG, extracted=argument)
