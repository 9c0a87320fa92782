"""What the kernel says of a process: CPU time and mapped memory. Linux /proc."""

import os
import pathlib

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
# Fields of /proc/<pid>/stat after the parenthesised name, which may itself hold spaces and parentheses.
_UTIME, _STIME, _VSIZE = 11, 12, 20


def cpu_s(pid: int) -> float:
    """Return user + system seconds of a process, in steps of 10 ms. Raises OSError if it is gone."""
    fields = _stat(pid)
    return (int(fields[_UTIME]) + int(fields[_STIME])) / _TICKS_PER_S


def mapped_bytes(pid: int) -> int:
    """Return the size of the address space. Raises OSError if the process is gone."""
    return int(_stat(pid)[_VSIZE])


def resident_bytes(pid: int) -> int:
    """Return the resident memory. Raises OSError if the process is gone."""
    return int(pathlib.Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]) * _PAGE_BYTES


def _stat(pid: int) -> list[bytes]:
    return pathlib.Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
