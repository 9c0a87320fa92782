"""A Prometheus alongside the cluster's first node, which scrapes the pods that the API server names, as monitors do.

Discovery by the API server is not built into every distribution's Prometheus, so it reads its targets from a file,
which a test keeps up to date.
"""

import contextlib
import dataclasses
import json
import os
import pathlib
import time
from collections.abc import Iterator, Mapping
from typing import Any

from rljob_testing import observed, rules
from rljob_testing.charts import program_or_skip
from rljob_testing.cluster.full import FullCluster
from rljob_testing.prometheus import Server

PORT = 9099
# What is scraped of which pods: a job's by their uid, the operator by its name. The port is found by its own name.
_MONITORS = {
    "jobs": ("rljob.dev/uid", None, "health"),
    "operator": ("app.kubernetes.io/name", "rljob-operator", "metrics"),
}


@dataclasses.dataclass(frozen=True, slots=True)
class Scraping:
    """A Prometheus, and the files that hold its targets.

    kinds: types of metrics, as processes said. began: unix seconds.
    """

    cluster: FullCluster
    folder: pathlib.Path
    server: Server
    kinds: dict[str, str] = dataclasses.field(default_factory=dict)
    began: float = dataclasses.field(default_factory=time.time)

    @property
    def span(self) -> observed.Span:
        """Return the time since its start."""
        return observed.Span(self.began, time.time())

    def refresh(self) -> None:
        """Let it scrape the pods that are there now. Fails with kubectl's words."""
        done = self.cluster.kubectl("get", "pods", "--all-namespaces", "--output=json")
        assert done.returncode == 0, done.stderr
        pods = json.loads(done.stdout)["items"]
        for name in _MONITORS:
            path = _targets(self.folder, name)
            # Prometheus must not read half a file.
            new = path.with_suffix(".new")
            new.write_text(json.dumps(targets(pods, name)))
            os.replace(new, path)
        # Prometheus shows types of what it scrapes at this time only.
        self.kinds.update(observed.types_of(self.server))


def targets(pods: list[Mapping[str, Any]], monitor: str) -> list[dict[str, Any]]:
    """Return the target groups of a monitor: one for each of its pods that has an address, with the pod's labels."""
    label, value, port_name = _MONITORS[monitor]
    groups = []
    for pod in pods:
        metadata, address = pod["metadata"], pod["status"].get("podIP")
        found = metadata.get("labels", {}).get(label)
        ports = [port for each in pod["spec"]["containers"] for port in each.get("ports", ())]
        number = next((port["containerPort"] for port in ports if port.get("name") == port_name), None)
        if found is None or value not in (None, found) or not address or number is None:
            continue
        labels = {"namespace": metadata["namespace"], "pod": metadata["name"]}
        groups.append({"targets": [f"{address}:{number}"], "labels": labels})
    return groups


@contextlib.contextmanager
def scraping(cluster: FullCluster, folder: pathlib.Path, *, port: int = PORT) -> Iterator[Scraping]:
    """Yield a Prometheus that scrapes the cluster's pods until the context ends. port: of the first node."""
    program = program_or_skip("prometheus")
    reach = f"127.0.0.1:{cluster.relay(f'prometheus-relay-{port}', port)}"
    listen = f"{cluster.home.address}:{port}"
    server = Server(program, folder, _config(folder), enter=cluster.home.enter, listen=listen, reach=reach)
    try:
        yield Scraping(cluster, folder, server)
    finally:
        server.close()


def _targets(folder: pathlib.Path, monitor: str) -> pathlib.Path:
    return folder / f"{monitor}.json"


def _config(folder: pathlib.Path) -> dict[str, Any]:
    return {
        "global": {"scrape_interval": "5s", "scrape_timeout": "4s", "evaluation_interval": "5s"},
        "rule_files": list(map(str, rules.FILES)),
        "scrape_configs": [
            {
                "job_name": name,
                "file_sd_configs": [{"files": [str(_targets(folder, name))], "refresh_interval": "2s"}],
            }
            for name in _MONITORS
        ],
    }
