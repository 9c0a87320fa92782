"""The operator as a process of its own under test: started, asked for what it counts, killed, restarted."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping

from rljob_testing.operator_series import Series, series
from rljob_testing.ports import free_ports

_LOOPBACK = "127.0.0.1"
_STOP_S = 60.0
_POLL_S = 0.05
_ASK_S = 30.0


class OperatorProcess:
    """One operator after another on the same cluster. coordinators: where those of a namespace answer."""

    def __init__(
        self,
        folder: pathlib.Path,
        *,
        kubeconfig: pathlib.Path,
        coordinators: Mapping[str, str],
        settings: object,
        identity: str = "",
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Write settings; nothing runs before `start`. settings: camelCase keys, as the chart renders them.

        identity: its name among operators that elect a leader. environment: variables besides this process's own.
        """
        self._environment = {**os.environ, **(environment or {})}
        folder.mkdir(parents=True, exist_ok=True)
        self._health, self._metrics = free_ports(2)
        self.identity = identity
        assert isinstance(settings, Mapping)
        ports = {"healthPort": self._health, "metricsPort": self._metrics}
        (folder / "settings.json").write_text(json.dumps({**settings, **ports}))
        self.log = folder / "operator.log"
        self._command = [sys.executable, "-m", "rljob_testing.operator_program", "--host", _LOOPBACK]
        self._command += ["--config", str(folder / "settings.json"), "--kubeconfig", str(kubeconfig)]
        self._command += ["--identity", identity] if identity else []
        for namespace, address in coordinators.items():
            self._command += ["--coordinator", f"{namespace}={address}"]
        self._process: subprocess.Popen[bytes] | None = None
        self.started_at = 0.0

    @property
    def metrics_port(self) -> int:
        """Return the port of its metrics, on loopback."""
        return self._metrics

    def start(self) -> None:
        """Start it; `started_at` is in unix seconds."""
        self.started_at = time.time()
        with self.log.open("ab") as log:
            root = pathlib.Path(__file__).parents[1]
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log, cwd=root, env=self._environment)

    def ready(self) -> float:
        """Wait for /readyz and return the seconds from start to ready."""
        self.until(lambda: _ask(self._health, "/readyz")[0] == 200, within_s=300.0)
        return time.time() - self.started_at

    def until(self, holds: Callable[[], bool], *, within_s: float) -> None:
        """Wait until something holds; fails with the log's end if it does not in time, or the process ends."""
        end = time.monotonic() + within_s
        while not holds():
            self.check()
            assert time.monotonic() < end, f"did not happen within {within_s:.0f} s:\n{self._tail()}"
            time.sleep(_POLL_S)

    def check(self) -> None:
        """Fail with the log's end where the process has ended by itself."""
        assert self._process is None or self._process.poll() is None, self._tail()

    def _tail(self) -> str:
        return self.log.read_text(errors="replace")[-3000:]

    def series(self) -> Series:
        """Return every series that it exposes now."""
        status, text = _ask(self._metrics, "/metrics")
        assert status == 200, self._tail()
        return series(text)

    def kill(self) -> None:
        """End it at once, in the middle of whatever it does."""
        assert self._process is not None, "it does not run"
        self.end()

    def freeze(self) -> None:
        """Stop it where it is, as a machine that hangs does, until `thaw`."""
        assert self._process is not None, "it does not run"
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it run on."""
        assert self._process is not None, "it does not run"
        self._process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        """End it in order, as a pod that goes is asked to. Fails where it does not end so."""
        assert self._process is not None, "it does not run"
        self._process.terminate()
        code = self._process.wait(_STOP_S)
        self._process = None
        assert code == 0, self._tail()

    def end(self) -> None:
        """See that nothing of it runs; nothing happens if it does not."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


def _ask(port: int, path: str) -> tuple[int, str]:
    """Return status and text of an answer; 0 while no one listens."""
    try:
        with urllib.request.urlopen(f"http://{_LOOPBACK}:{port}{path}", timeout=_ASK_S) as answer:
            return int(answer.status), answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, ""
    except OSError:
        return 0, ""
