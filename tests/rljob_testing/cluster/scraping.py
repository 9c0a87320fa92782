"""A Prometheus beside the cluster's first node: it finds pods by the API server, as the chart's monitors would."""

import contextlib
import pathlib
from collections.abc import Iterator
from typing import Any

from rljob_testing import rules
from rljob_testing.charts import program_or_skip
from rljob_testing.cluster.full import FullCluster
from rljob_testing.prometheus import Server

PORT = 9099
_LABEL = "__meta_kubernetes_pod_label_"
# What a PodMonitor adds, and what of a pod it scrapes: a job's by their uid, the operator by its name.
_POD = [
    {"source_labels": ["__meta_kubernetes_namespace"], "target_label": "namespace"},
    {"source_labels": ["__meta_kubernetes_pod_name"], "target_label": "pod"},
]


def config(cluster: FullCluster) -> dict[str, Any]:
    """Return what is scraped: all jobs' pods and the operator's."""
    discovery = [{"role": "pod", "kubeconfig_file": str(cluster.kubeconfig)}]

    def job(name: str, label: str, value: str, port: str) -> dict[str, Any]:
        keep = [
            {"source_labels": [_LABEL + label], "regex": value, "action": "keep"},
            {"source_labels": ["__meta_kubernetes_pod_container_port_name"], "regex": port, "action": "keep"},
        ]
        return {"job_name": name, "kubernetes_sd_configs": discovery, "relabel_configs": [*keep, *_POD]}

    return {
        "global": {"scrape_interval": "5s", "scrape_timeout": "4s", "evaluation_interval": "5s"},
        "rule_files": list(map(str, rules.FILES)),
        "scrape_configs": [
            job("jobs", "rljob_dev_uid", ".+", "health"),
            job("operator", "app_kubernetes_io_name", "rljob-operator", "metrics"),
        ],
    }


@contextlib.contextmanager
def scraping(cluster: FullCluster, folder: pathlib.Path) -> Iterator[Server]:
    """Yield a Prometheus that scrapes the cluster's pods until the context ends."""
    program = program_or_skip("prometheus")
    reach = f"127.0.0.1:{cluster.relay('prometheus-relay', PORT)}"
    listen = f"{cluster.home.address}:{PORT}"
    server = Server(program, folder, config(cluster), enter=cluster.home.enter, listen=listen, reach=reach)
    try:
        yield server
    finally:
        server.close()
