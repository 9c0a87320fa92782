"""The number format that a role computes in. Weights are published as the job says; this is about multiplying them.

A CPU without bfloat16 instructions multiplies bfloat16 by converting: on two AVX2 cores PyTorch reached 15 GFLOP/s
where float32 reached 111, and vLLM generated less than half as fast. There float32 is both faster and more exact.
"""

import ctypes
import pathlib

# x86: avx512_bf16, amx_bf16; Arm: bf16. The kernel's names.
_NATIVE = frozenset({"avx512_bf16", "amx_bf16", "bf16"})
_CPUINFO = pathlib.Path("/proc/cpuinfo")
# Parameters of mallopt(3).
_M_TRIM_THRESHOLD = -1
_M_TOP_PAD = -2
_M_MMAP_MAX = -4


def dtype_for_cpu(dtype: str, flags: frozenset[str]) -> str:
    """Return the format to compute in on a CPU with these feature flags, where a job asks for `dtype`."""
    return "float32" if dtype == "bfloat16" and not flags & _NATIVE else dtype


def dtype_for_this_cpu(dtype: str) -> str:
    """Return the format to compute in here."""
    return dtype_for_cpu(dtype, cpu_flags())


def cpu_flags(path: pathlib.Path = _CPUINFO) -> frozenset[str]:
    """Return the feature flags of this machine's CPU; those of bfloat16 where the kernel does not show them."""
    try:
        lines = path.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return _NATIVE
    flag_lists = [line.partition(":")[2].split() for line in lines if line.startswith(("flags", "Features"))]
    return frozenset(flag_lists[0]) if flag_lists else _NATIVE


def keep_memory() -> None:
    """Take no memory from mmap and give none back. Does nothing where the C library has no mallopt."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_MAX, 0)
        mallopt(_M_TRIM_THRESHOLD, (1 << 31) - 1)
        mallopt(_M_TOP_PAD, 256 << 20)
