"""What it takes to see an alert for real: the operator and Prometheus as processes alongside a job's own processes.

    the job's processes --/metrics--------------------------------> Prometheus, the chart's rules
         ^ Status                                                       ^
         '---- the operator, on an API server in memory --/metrics -----'

The API server alone is a fake, and its pods are played. The job in it has the name of the one whose processes run.
"""

import asyncio
import contextlib
import json
import pathlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

from kubernetes.aio.client import Configuration

from rljob_operator.kube import client as cluster
from rljob_testing import fake_api, prometheus, rules
from rljob_testing.charts import program_or_skip
from rljob_testing.operator_process import OperatorProcess
from rljob_testing.operator_stage import IMAGES, SaidStatus, Stage
from rljob_testing.prometheus import Server

NAMESPACE, HOST = "default", "127.0.0.1"
_LOOK_S, _READY_S = 0.5, 300.0


class Scene:
    """One job that is watched."""

    def __init__(self, name: str, stage: Stage, server: Server) -> None:
        """Made by `watching`."""
        self.name, self.stage, self._server = name, stage, server

    async def query(self, expression: str) -> list[dict[str, Any]]:
        """Return the samples of an expression now."""
        return await asyncio.to_thread(self._server.query, expression)

    async def firing(self, alert: str = "") -> list[dict[str, str]]:
        """Return the labels of what fires for the job now, of one alert if it is given."""
        selector = f'alertstate="firing", rljob="{self.name}"' + (f', alertname="{alert}"' if alert else "")
        return [sample["metric"] for sample in await self.query(f"ALERTS{{{selector}}}")]

    async def until_fires(self, alert: str, *, within_s: float, **labels: str) -> float:
        """Wait until an alert fires with these labels; return the seconds."""

        async def fires() -> bool:
            return any(labels.items() <= told.items() for told in await self.firing(alert))

        return await self.until(fires, within_s=within_s, what=f"{alert} with {labels}")

    async def until_quiet(self, alert: str, *, within_s: float) -> float:
        """Wait until an alert fires no more; return the seconds."""

        async def quiet() -> bool:
            return not await self.firing(alert)

        return await self.until(quiet, within_s=within_s, what=f"an end of {alert}")

    async def until(self, holds: Callable[[], Awaitable[bool]], *, within_s: float, what: str) -> float:
        """Wait until something holds; return the seconds. Fails with what fires and what the job says."""
        began = time.monotonic()
        while not await holds():
            if time.monotonic() - began > within_s:
                said = ((await self.stage.job(self.name)) or {}).get("status", {})
                told = {name: said.get(name) for name in ("summary", "stalled", "conditions")}
                raise AssertionError(f"no {what} within {within_s:.0f} s; firing: {await self.firing()}; {told}")
            await asyncio.sleep(_LOOK_S)
        return time.monotonic() - began

    async def message(self, kind: str) -> str:
        """Return the message of a condition, empty without it."""
        found = ((await self.stage.job(self.name)) or {}).get("status", {}).get("conditions", [])
        return next((str(one["message"]) for one in found if one["type"] == kind), "")


@contextlib.asynccontextmanager
async def watching(
    name: str,
    folder: pathlib.Path,
    *,
    coordinator: str,
    metrics_ports: Mapping[str, int],
    factor: float,
    spec: Mapping[str, Any],
) -> AsyncIterator[Scene]:
    """Yield the scene of a job whose processes run, with every duration of the rules divided by `factor`.

    coordinator: where its Status is answered. metrics_ports: of its processes, by pod. spec: what `Stage.create` takes.
    """
    program = program_or_skip("prometheus")
    async with fake_api.serving(fake_api.FakeApi()) as (address, side):
        (folder / "kubeconfig").write_text(json.dumps(fake_api.kubeconfig(address)))
        operator = OperatorProcess(
            folder / "operator",
            kubeconfig=folder / "kubeconfig",
            coordinators={NAMESPACE: coordinator},
            settings={"jobs": {"images": dict(IMAGES)}},
        )
        client = cluster.Client(
            cluster.ApiConnection(Configuration(host=side), in_cluster=False), qps=1000.0, burst=1000
        )
        stage = Stage(client, NAMESPACE, SaidStatus(), [])
        targets = {**metrics_ports, "operator-0": operator.metrics_port}
        server: Server | None = None
        try:
            operator.start()
            await asyncio.to_thread(operator.ready)
            await stage.create(name, **spec)
            await stage.until(name, "Running", within_s=_READY_S)
            scaled = rules.scaled(folder, factor=factor)
            configuration = prometheus.of_processes(targets, namespace=NAMESPACE, rule_files=scaled)
            server = Server(program, folder, configuration)
            yield Scene(name, stage, server)
        finally:
            if server is not None:
                await asyncio.to_thread(server.close)
            operator.end()
            await client.close()
