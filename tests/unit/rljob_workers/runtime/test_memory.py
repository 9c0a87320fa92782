"""What memory is left: the machine's, or a control group's limit less what is used and cannot be dropped."""

import pathlib

import pytest

from rljob_workers.runtime import memory

MACHINE = 24_000_000 * 1024
V1 = "9:name=systemd:/\n4:memory:/pods/a\n0::/\n"
V2 = "0::/pods/a\n"


def available(folder: pathlib.Path, membership: str, files: dict[str, str]) -> int:
    meminfo = folder / "meminfo"
    meminfo.write_text("MemTotal:       25000000 kB\nMemFree:         1000000 kB\nMemAvailable:   24000000 kB\n")
    (folder / "cgroup").write_text(membership)
    for name, text in files.items():
        path = folder / "fs" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return memory.available_bytes(meminfo, folder / "cgroup", folder / "fs")


def version_2(where: str, limit: str) -> dict[str, str]:
    return {
        f"{where}memory.max": limit,
        f"{where}memory.current": "3000\n",
        # Of 2,000 bytes in the page cache 500 are shared memory, which no file holds.
        f"{where}memory.stat": "anon 1000\nfile 2000\nshmem 500\n",
    }


def version_1(where: str, limit: str) -> dict[str, str]:
    return {
        f"{where}memory.limit_in_bytes": limit,
        f"{where}memory.usage_in_bytes": "3000\n",
        f"{where}memory.stat": "cache 1\ntotal_cache 2000\ntotal_shmem 500\n",
    }


@pytest.mark.parametrize(
    ("membership", "files", "expected"),
    [
        pytest.param(V2, {}, MACHINE, id="no group"),
        pytest.param(V2, version_2("pods/a/", "max\n"), MACHINE, id="version 2 without a limit"),
        pytest.param(V2, version_2("pods/a/", "10000\n"), 10_000 - 3000 + 1500, id="version 2"),
        pytest.param(V2, version_2("", "10000\n"), 10_000 - 3000 + 1500, id="version 2 in a container"),
        pytest.param(V2, version_2("pods/a/", "1200\n"), 0, id="more is used than may be"),
        pytest.param(V1, version_1("memory/pods/a/", "9223372036854771712\n"), MACHINE, id="version 1 without a limit"),
        pytest.param(V1, version_1("memory/", "10000\n"), 10_000 - 3000 + 1500, id="version 1 in a container"),
        pytest.param("4:cpu:/\n", version_1("memory/", "10000\n"), MACHINE, id="a group of something else"),
    ],
)
def test_the_machine_or_a_group_limits_whichever_leaves_less(
    tmp_path: pathlib.Path, membership: str, files: dict[str, str], expected: int
) -> None:
    assert available(tmp_path, membership, files) == expected
