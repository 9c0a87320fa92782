"""What a tree of processes takes of a machine's memory while it runs, by role, from /proc.

anonymous: pages that only swap could take away, and shared memory, each shared page divided among its users
(Pss_Anon, Pss_Shmem). mapped: pages of files, which the kernel drops where it needs memory (Pss_File).
"""

import contextlib
import dataclasses
import pathlib
import threading
from collections.abc import Iterator, Mapping

import psutil

PERIOD_S = 0.5
_ROLES = ("coordinator", "rollout", "verifier", "trainer")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """The most that was measured of one kind of process, and of all at once, bytes."""

    anonymous: int = 0
    mapped: int = 0

    def joined(self, other: "Peak") -> "Peak":
        return Peak(anonymous=max(self.anonymous, other.anonymous), mapped=max(self.mapped, other.mapped))


@dataclasses.dataclass(slots=True, kw_only=True)
class Usage:
    """Peaks by role, of all processes at once, and of the machine: used is what is neither free nor can be freed."""

    roles: dict[str, Peak] = dataclasses.field(default_factory=dict)
    all: Peak = dataclasses.field(default_factory=Peak)
    machine_used: int = 0
    machine_used_before: int = 0


def rollup(pid: int) -> Peak:
    """Return what a process holds now; nothing of one that is gone."""
    try:
        lines = pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    except OSError:
        return Peak()
    sizes = {name.rstrip(":"): int(size) * 1024 for name, size, *_ in (line.split() for line in lines)}
    return Peak(
        anonymous=sizes.get("Pss_Anon", 0) + sizes.get("Pss_Shmem", 0),
        mapped=sizes.get("Pss_File", 0),
    )


def used_bytes() -> int:
    """Return what of the machine's memory is in use and cannot be freed."""
    memory = psutil.virtual_memory()
    return int(memory.total - memory.available)


def kind_of(command: str, parent: str) -> str:
    """Return whose process it is by its command line or, where that does not tell, by the kind of its parent: a role,
    "rollout engine", which a rollout starts, or "runner".
    """
    role = next((role for role in _ROLES if f"rljob_workers.{role}" in command), "")
    is_engine = parent == "rollout" and ("multiprocessing.spawn" in command or command.startswith("VLLM"))
    return role or ("rollout engine" if is_engine else parent or "runner")


def sample(root: int) -> Mapping[str, Peak]:
    """Return what the processes below `root` hold now, together by kind: roles, engines apart from their rollouts."""
    by_kind: dict[str, Peak] = {}
    parents = {root: ""}
    with contextlib.suppress(psutil.NoSuchProcess):
        for process in psutil.Process(root).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                kind = kind_of(" ".join(process.cmdline()), parents.get(process.ppid(), ""))
                parents[process.pid] = kind
                memory, before = rollup(process.pid), by_kind.get(kind, Peak())
                by_kind[kind] = Peak(
                    anonymous=before.anonymous + memory.anonymous, mapped=before.mapped + memory.mapped
                )
    return by_kind


@contextlib.contextmanager
def watch(root: int) -> Iterator[Usage]:
    """Look at the processes below `root` twice a second until the block ends."""
    usage, over = Usage(machine_used_before=used_bytes()), threading.Event()

    def look() -> None:
        while not over.is_set():
            now = sample(root)
            for kind, memory in now.items():
                usage.roles[kind] = usage.roles.get(kind, Peak()).joined(memory)
            total = Peak(
                anonymous=sum(memory.anonymous for memory in now.values()),
                mapped=sum(memory.mapped for memory in now.values()),
            )
            usage.all = usage.all.joined(total)
            usage.machine_used = max(usage.machine_used, used_bytes())
            over.wait(PERIOD_S)

    thread = threading.Thread(target=look, name="memory-watch")
    thread.start()
    try:
        yield usage
    finally:
        over.set()
        thread.join()
