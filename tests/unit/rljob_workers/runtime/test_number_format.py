import pathlib

import pytest

from rljob_workers.runtime import machine


@pytest.mark.parametrize(
    ("wanted", "flags", "found"),
    [
        ("bfloat16", {"avx2", "fma"}, "float32"),
        ("bfloat16", {"avx512f", "avx512bw"}, "float32"),
        ("bfloat16", {"avx512f", "avx512_bf16"}, "bfloat16"),
        ("bfloat16", {"amx_bf16"}, "bfloat16"),
        ("bfloat16", {"asimd", "bf16"}, "bfloat16"),
        ("float32", {"amx_bf16"}, "float32"),
        ("float16", {"avx2"}, "float16"),
    ],
)
def test_bfloat16_is_computed_where_the_cpu_has_it(wanted: str, flags: set[str], found: str) -> None:
    assert machine.dtype_for_cpu(wanted, frozenset(flags)) == found


@pytest.mark.parametrize("key", ["flags\t\t", "Features\t"])
def test_flags_are_read_from_the_first_processor(tmp_path: pathlib.Path, key: str) -> None:
    path = tmp_path / "cpuinfo"
    path.write_text(f"processor\t: 0\n{key}: fpu avx2\n\nprocessor\t: 1\n{key}: other\n")
    assert machine.cpu_flags(path) == {"fpu", "avx2"}


def test_a_machine_that_tells_no_flags_computes_what_the_job_says(tmp_path: pathlib.Path) -> None:
    assert machine.dtype_for_cpu("bfloat16", machine.cpu_flags(tmp_path / "none")) == "bfloat16"
