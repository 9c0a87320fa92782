"""promtool: the checks and unit tests of Prometheus' own tool. And a Prometheus that scrapes, on loopback."""

import json
import pathlib
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from rljob_testing.ports import free_ports

TIMEOUT_S = 240.0
_STOP_S = 30.0


class PromtoolError(AssertionError):
    """promtool found a fault; the message is what it wrote."""


class Promtool:
    """Runs one promtool binary."""

    def __init__(self, program: pathlib.Path) -> None:
        """Keep the path."""
        self._program = program

    def check_metrics(self, exposition: bytes) -> None:
        """Parse the text format and look at names, units and help texts. Raises PromtoolError."""
        self._run("check", "metrics", text=exposition)

    def check_rules(self, *files: pathlib.Path) -> None:
        """Parse rule files, their expressions and their templates. Raises PromtoolError."""
        self._run("check", "rules", "--lint=all", "--lint-fatal", *map(str, files))

    def test_rules(self, file: pathlib.Path) -> None:
        """Run a file of unit tests. Raises PromtoolError with what differs."""
        self._run("test", "rules", str(file))

    def _run(self, *arguments: str, text: bytes = b"") -> None:
        done = subprocess.run([str(self._program), *arguments], input=text, capture_output=True, timeout=TIMEOUT_S)
        if done.returncode:
            raise PromtoolError((done.stdout + done.stderr).decode(errors="replace")[-4000:])


def of_processes(ports: Mapping[str, int], *, namespace: str, rule_files: Sequence[pathlib.Path]) -> dict[str, Any]:
    """Return a configuration for processes on loopback, with the labels that the chart's own scraping gives targets.

    ports: by the name that a process would have as a pod.
    """
    targets = [
        {"targets": [f"127.0.0.1:{port}"], "labels": {"namespace": namespace, "pod": pod}}
        for pod, port in ports.items()
    ]
    return {
        "global": {"scrape_interval": "2s", "scrape_timeout": "2s", "evaluation_interval": "1s"},
        "rule_files": list(map(str, rule_files)),
        "scrape_configs": [{"job_name": "rljob", "static_configs": targets}],
    }


class Server:
    """One Prometheus with its data in a folder; the process ends with `close`."""

    def __init__(
        self,
        program: pathlib.Path,
        folder: pathlib.Path,
        config: Mapping[str, Any],
        *,
        enter: Sequence[str] = (),
        listen: str = "",
        reach: str = "",
    ) -> None:
        """Write the configuration, start the process and return at once.

        enter: the prefix of a command in a network namespace, where it is to `listen`; from here it is at `reach`.
        """
        (folder / "prometheus.yml").write_text(yaml.safe_dump(dict(config)))
        self._log = folder / "log"
        own = f"127.0.0.1:{free_ports(1)[0]}"
        self._address = reach or own
        command = [
            *enter,
            str(program),
            f"--config.file={folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address={listen or own}",
        ]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        # No proxy of the machine's is between a test and loopback.
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def get(self, path: str, **parameters: str) -> Any:
        """Return `data` of an answer of the HTTP API, None before it answers. Raises PromtoolError if it ended."""
        if self._process.poll() is not None:
            raise PromtoolError(f"Prometheus ended: {self._log.read_text(errors='replace')[-4000:]}")
        url = f"http://{self._address}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with self._opener.open(url, timeout=TIMEOUT_S) as answer:
                return json.load(answer)["data"]
        except ConnectionError:
            return None
        except urllib.error.HTTPError as error:
            if error.code == 503:
                return None
            raise PromtoolError(f"{parameters}: {error.read().decode(errors='replace')[:2000]}") from error
        except urllib.error.URLError as error:
            if isinstance(error.reason, ConnectionError):
                return None
            raise

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Return the samples of an expression now. Raises PromtoolError with its fault."""
        found = self.get("query", query=expression)
        return [] if found is None else list(found["result"])

    def query_range(self, expression: str, *, start: float, end: float, step_s: float) -> list[dict[str, Any]]:
        """Return the samples of an expression between two times, unix seconds. Raises PromtoolError with its fault."""
        found = self.get("query_range", query=expression, start=str(start), end=str(end), step=str(step_s))
        return [] if found is None else list(found["result"])

    def close(self) -> None:
        """End the process."""
        self._process.terminate()
        try:
            self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
