"""Starts the operator: `rljob-operator --config FILE`."""

import argparse
import asyncio
import gc
import logging
import pathlib
import resource
import socket
import uuid
from collections.abc import Callable, Sequence

import kopf

import rljob_api
from rljob_operator import settings as settings_module
from rljob_operator.app import Operator, coordinator_address
from rljob_operator.kube import client as cluster
from rljob_operator.kube import watch
from rljob_operator.kube.fence import fence_of
from rljob_operator.telemetry.health import HealthServer
from rljob_operator.telemetry.metrics import Metrics

ANY_ADDRESS = "0.0.0.0"
# New objects, and collections of a generation before one of the next. As many hold a few MiB.
_OBJECTS_BETWEEN_COLLECTIONS = (50_000, 20, 20)


def main(argv: Sequence[str] | None = None) -> None:
    """Run until stopped. Ends with a sentence if the settings are no good."""
    parser = arguments()
    options = parser.parse_args(argv)
    try:
        settings = settings_module.read(options.config) if options.config else settings_module.Settings()
    except ValueError as error:
        parser.error(str(error))
    configure_logs(settings.log)
    allow_open_files()
    asyncio.run(run(settings, kubeconfig=options.kubeconfig, host=options.host, identity=options.identity))


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="rljob-operator", description=__doc__)
    parser.add_argument("--config", type=pathlib.Path, help="JSON file of settings; defaults without one")
    parser.add_argument("--kubeconfig", help="how to reach the API server; the pod's own account without one")
    parser.add_argument("--host", default=ANY_ADDRESS, help="address that probes and metrics listen on")
    parser.add_argument(
        "--identity",
        default="",
        help="name of this process among operators that elect a leader; host name and a random number without one",
    )
    return parser


def configure_logs(log_settings: settings_module.LogSettings) -> None:
    """Log in one form and from one level on; of Kopf, which has a line for every event, only what went wrong."""
    debug = log_settings.level == "debug"
    kopf.configure(
        debug=debug, log_format=kopf.LogFormat.JSON if log_settings.format == "json" else kopf.LogFormat.FULL
    )
    logging.getLogger().setLevel(log_settings.level.upper())
    logging.getLogger("kopf").setLevel(logging.DEBUG if debug else logging.WARNING)


def allow_open_files() -> None:
    """Let this process open as many files as it may: each run that is listened to is a connection."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def look_for_cycles_less_often() -> None:
    """Set the garbage collector's thresholds: a list of the cluster makes millions of objects in which there is no
    cycle, and by the defaults a third of the time of reading one is spent looking for some.
    """
    gc.set_threshold(*_OBJECTS_BETWEEN_COLLECTIONS)


async def run(
    settings: settings_module.Settings,
    *,
    kubeconfig: str | None,
    host: str,
    identity: str = "",
    address_of: Callable[[str, str], str] = coordinator_address,
) -> None:
    """Serve probes, then run Kopf with our handlers until a signal comes or a loop of ours ends.

    address_of: where the coordinator of a job answers, by namespace and name.
    """
    look_for_cycles_less_often()
    limits = settings.client
    connection = await cluster.connect(kubeconfig)
    metrics = Metrics(job_series=settings.job_series, owner_labels=settings.jobs.propagate_labels)
    identity = identity or f"{socket.gethostname()}_{uuid.uuid4().hex[:8]}"
    fence = fence_of(settings.leader_election)
    client = cluster.Client(
        connection,
        qps=limits.qps,
        burst=limits.burst,
        on_answer=metrics.answered,
        fence=fence,
        agent=f"{cluster.CHILD_MANAGER}/{rljob_api.__version__} ({identity})",
    )
    operator = Operator(settings, client, address_of=address_of, metrics=metrics, fence=fence, identity=identity)
    health = HealthServer(alive=operator.alive, ready=operator.ready, exposition=metrics.exposition)
    await health.start(host=host, health_port=settings.health_port, metrics_port=settings.metrics_port)
    try:
        await watch.serve(
            operator,
            connection=connection,
            namespaces=settings.watch_namespaces,
            namespace_selector=settings.watch_namespace_selector,
        )
    finally:
        await operator.stop()
        await health.close()


if __name__ == "__main__":
    main()
