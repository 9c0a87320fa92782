"""`python -I -S leash.py PARENT COMMAND...`: becomes COMMAND, which the kernel kills when PARENT ends.

A program of its own, since code between fork and exec of a process with threads may wait for ever. Standard library
alone.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1

if __name__ == "__main__":
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    # It may have ended before the kernel was asked.
    if os.getppid() != int(sys.argv[1]):
        sys.exit(1)
    os.execvp(sys.argv[2], sys.argv[2:])
