"""containerd with a root, state and socket of its own: a node runs its pods on one, and images are imported by one."""

import contextlib
import pathlib
import signal
import subprocess
from collections.abc import Iterator, Sequence
from typing import IO

from rljob_testing.cluster import binaries, processes

PAUSE = "rljob.test/pause:1"
READY_S = 60.0
# Gigabytes are unpacked by a machine that may be busy.
CTR_S, IMPORT_S = 300.0, 3600.0
# A socket's path may have 107 characters, fewer than some run folders.
SOCKETS = pathlib.Path("/run/rljob-test")

_CONTAINERD = """\
version = 2
root = "{root}"
state = "{state}"
disabled_plugins = ["io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.btrfs",
  "io.containerd.snapshotter.v1.zfs", "io.containerd.snapshotter.v1.aufs"]
[grpc]
  address = "{socket}"
[plugins."io.containerd.internal.v1.opt"]
  path = "{state}/opt"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{pause}"
  # Raising a score needs CAP_SYS_RESOURCE, which root in a container or a small machine may lack.
  restrict_oom_score_adj = true
  netns_mounts_under_state_dir = true
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
      Root = "{state}/runc"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "{cni}"
"""


class Runtime:
    """A containerd by name. Its state lies in `<run_dir>/<name>`, its log and pid with those of the cluster.

    `root` holds images and containers; `enter` is the prefix of a command that enters its network.
    """

    def __init__(self, name: str, run_dir: pathlib.Path, root: pathlib.Path, enter: Sequence[str] = ()) -> None:
        self.name = name
        self.run_dir = run_dir
        self.root = root
        self.folder = run_dir / name
        self.cni = self.folder / "cni"
        self.socket = SOCKETS / f"{name}.sock"
        self._enter = tuple(enter)
        self._process = f"{name}-containerd"

    def start(self) -> None:
        """Start it and wait until it answers. Raises NotReadyError."""
        for folder in (self.cni, self.folder / "state", self.root, SOCKETS):
            folder.mkdir(parents=True, exist_ok=True)
        config = self.folder / "containerd.toml"
        values = {"root": self.root, "state": self.folder / "state", "socket": self.socket, "cni": self.cni}
        config.write_text(_CONTAINERD.format(**values, pause=PAUSE))
        command = [*self._enter, str(binaries.find("containerd")), "--config", str(config)]
        processes.start(self.run_dir, self._process, command)
        processes.wait_until(self.run_dir, self._process, lambda: self.ctr("version").returncode == 0, READY_S)

    def stop(self) -> None:
        """End containers, their shims and the daemon; what is in `root` stays."""
        if processes.alive(self.run_dir, self._process):
            for container in self.ctr("containers", "ls", "-q").stdout.split():
                self.ctr("tasks", "delete", "--force", container)
                self.ctr("containers", "delete", container)
        for pid in _running_with(str(self.socket)):
            processes.end(pid)
        processes.stop(self.run_dir, self._process)
        _unmount_below(self.folder)
        for left in SOCKETS.glob(f"{self.name}.sock*"):
            left.unlink()

    def ctr(
        self, *arguments: str, stdin: IO[bytes] | None = None, timeout_s: float = CTR_S
    ) -> "subprocess.CompletedProcess[str]":
        """Run ctr in the namespace of Kubernetes; the caller looks at the return code."""
        command = [str(binaries.find("ctr")), "--address", str(self.socket), "--namespace", "k8s.io", *arguments]
        return subprocess.run(command, stdin=stdin, capture_output=True, text=True, timeout=timeout_s)

    def import_image(self, archive: IO[bytes]) -> None:
        """Import and unpack an image archive as it comes. Raises OSError."""
        self._checked("images", "import", "--snapshotter=overlayfs", "-", stdin=archive, timeout_s=IMPORT_S)

    def discard_layers(self) -> None:
        """Forget the archives of layers that are unpacked: containers need the latter alone. Raises OSError."""
        self._checked("content", "prune", "references")

    def pids(self, container: str) -> list[int]:
        """Return the processes of a container, as this machine numbers them. Raises OSError."""
        # A line of heads, then one for each process, its number first.
        return [int(line.split()[0]) for line in self._checked("tasks", "ps", container).splitlines()[1:]]

    @contextlib.contextmanager
    def stopped(self, container: str) -> Iterator[None]:
        """Stop every process of a container: its connections are still taken, by the kernel, and no one answers."""
        pids = self.pids(container)
        assert pids, container
        try:
            processes.signal_all(pids, signal.SIGSTOP)
            yield
        finally:
            processes.signal_all(pids, signal.SIGCONT)

    def kill(self, container: str) -> None:
        """Kill the processes of a container as a crash would, behind the kubelet's back. Raises OSError."""
        self._checked("tasks", "kill", "--all", "--signal=SIGKILL", container)

    def _checked(self, *arguments: str, stdin: IO[bytes] | None = None, timeout_s: float = CTR_S) -> str:
        done = self.ctr(*arguments, stdin=stdin, timeout_s=timeout_s)
        if done.returncode:
            raise OSError(f"ctr {' '.join(arguments)} on {self.name}: {done.stderr.strip()[-2000:]}")
        return done.stdout


def _running_with(argument: str) -> Sequence[int]:
    """Return the pids of processes with exactly this argument: a shim names the socket of its containerd."""
    found = []
    for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if argument.encode() in path.read_bytes().split(b"\0"):
                found.append(int(path.parent.name))
    return found


def _unmount_below(folder: pathlib.Path) -> None:
    lines = pathlib.Path("/proc/self/mountinfo").read_text().splitlines()
    mounts = [line.split()[4].encode().decode("unicode_escape") for line in lines]
    for mount in sorted((one for one in mounts if one.startswith(f"{folder}/")), reverse=True):
        subprocess.run(["umount", "--lazy", mount], capture_output=True, timeout=30)
