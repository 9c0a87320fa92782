"""The kernel's count of processes that it ended for want of memory, in both versions of control groups."""

import pathlib

import pytest

from rljob_workers.verifier.sandbox.processes import shortage

V1 = "9:name=systemd:/\n4:memory:/pods/a\n0::/\n"
V2 = "0::/pods/a\n"
EVENTS = "low 0\nhigh 1\nmax 7\noom 5\noom_kill 3\noom_group_kill 9\n"
CONTROL = "oom_kill_disable 0\nunder_oom 0\noom_kill 4\n"


@pytest.mark.covers("sandbox 4")
@pytest.mark.parametrize(
    ("membership", "file", "text", "count"),
    [
        (V2, "pods/a/memory.events", EVENTS, 3),
        (V2, "memory.events", EVENTS, 3),
        (V1, "memory/pods/a/memory.oom_control", CONTROL, 4),
        (V1, "memory/memory.oom_control", CONTROL, 4),
        (V2, "pods/a/memory.events", "oom 5\n", 0),
        ("4:cpu:/\n", "memory/memory.oom_control", CONTROL, 0),
    ],
)
def test_kills_are_counted_where_the_process_is_or_at_the_root_of_its_container(
    tmp_path: pathlib.Path, membership: str, file: str, text: str, count: int
) -> None:
    (tmp_path / "cgroup").write_text(membership)
    counter = tmp_path / "fs" / file
    counter.parent.mkdir(parents=True)
    counter.write_text(text)
    found = shortage.counter(tmp_path / "cgroup", tmp_path / "fs")
    assert shortage.num_kills(found) == count
    assert found in ((counter,) if count else (None,))


def test_machine_without_a_counter_has_no_kills(tmp_path: pathlib.Path) -> None:
    assert shortage.counter(tmp_path / "none", tmp_path) is None
    assert shortage.num_kills(None) == 0
    assert shortage.num_kills(tmp_path / "gone") == 0
