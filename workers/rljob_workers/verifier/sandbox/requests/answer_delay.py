"""How long a program waited for a runner that was ready to answer it and had no processor.

Each process and thread that a program starts waits for its runner's answer (`fork_gate.py`). Where the machine gives
the runner no time, the program sleeps meanwhile, and nothing in its own accounts distinguishes that from a sleep of its
choice. The runner's account does: what its thread waited for a processor from when it began to wait for a request until
it had answered it. Looks that no one asked for do not count: a program that sleeps by choice is kept from nothing by a
runner that wakes late.
"""

from collections.abc import Callable

from rljob_workers.verifier.sandbox.processes import procfs


class AnswerDelay:
    """Sums what requests waited. Of the thread that answers them."""

    def __init__(self, run_delay_s: Callable[[], float] = procfs.own_run_delay_s) -> None:
        """`run_delay_s`: how long the calling thread has ever been ready to run and did not."""
        self._run_delay_s = run_delay_s
        self._before_s = run_delay_s()
        self.total_s = 0.0

    def begin(self) -> None:
        """Note that from now on the thread waits for a request; again if none came."""
        self._before_s = self._run_delay_s()

    def answered(self) -> None:
        """Count what the thread waited for a processor since it began to wait for the request that it has answered."""
        now_s = self._run_delay_s()
        self.total_s += now_s - self._before_s
        self._before_s = now_s
