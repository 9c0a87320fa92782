"""`python -m rljob_operator.smoke`: what `helm test` runs in a pod of its own.

Submits a small RLJob, waits for its end, checks conditions, steps, metrics and cleanup, and deletes it also on failure.
"""

import argparse
import asyncio
import pathlib
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

import yaml

from rljob_api import cluster_placement, enums, errors
from rljob_operator.kube import client as cluster
from rljob_operator.kube.kinds import POD, RLJOB, Kind

Object = dict[str, Any]
_POLL_S, _GONE_S, _METRICS_S = 5.0, 120.0, 30.0
_HELD = ("CoordinatorReady", "TrainerReady", "RolloutReady", "VerifierReady")


class Api(Protocol):
    """The verbs that the test needs; `kube.client.Client` has them."""

    async def get(self, kind: Kind, namespace: str, name: str) -> Object | None: ...

    async def list(self, kind: Kind, namespace: str | None, *, selector: str = "") -> list[Object]: ...

    async def apply(self, kind: Kind, namespace: str, body: Mapping[str, object]) -> Object: ...

    async def delete(self, kind: Kind, namespace: str, name: str, *, uid: str, grace_s: int | None) -> Object: ...


class Smoke:
    """One run of the test. `say` prints a line of the report; `fetch` returns the text behind a URL."""

    def __init__(
        self,
        api: Api,
        *,
        namespace: str,
        timeout_s: float,
        say: Callable[[str], None],
        fetch: Callable[[str], str],
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._api, self._namespace, self._timeout_s = api, namespace, timeout_s
        self._say, self._fetch, self._monotonic, self._sleep = say, fetch, monotonic, sleep

    async def run(self, manifest: Object) -> list[str]:
        """Return what was wrong, empty if nothing was."""
        name = str(manifest["metadata"]["name"])
        if await self._api.get(RLJOB, self._namespace, name) is not None:
            return [f"RLJob {name} exists already: another test runs, or delete it"]
        created = await self._api.apply(RLJOB, self._namespace, manifest)
        uid = str(created["metadata"]["uid"])
        self._say(f"submitted RLJob {name}")
        try:
            job = await self._ended(name)
            wrong = problems(job)
            if not wrong:
                wrong += metric_problems(self._metrics(name), max_steps=manifest["spec"]["maxSteps"])
        finally:
            await self._api.delete(RLJOB, self._namespace, name, uid=uid, grace_s=None)
            self._say(f"deleted RLJob {name}")
        return [*wrong, *await self._left(uid)]

    async def _ended(self, name: str) -> Object | None:
        deadline, shown = self._monotonic() + self._timeout_s, ""
        job: Object | None = None
        while self._monotonic() < deadline:
            job = await self._api.get(RLJOB, self._namespace, name)
            line = progress(job)
            if line != shown:
                self._say(line)
                shown = line
            if job is None or {"Complete", "Failed"} & _true(job):
                return job
            await self._sleep(_POLL_S)
        return job

    def _metrics(self, name: str) -> str:
        host = f"{name}-{enums.Role.COORDINATOR}.{self._namespace}.svc"
        try:
            return self._fetch(f"http://{host}:{cluster_placement.HEALTH_PORT}/metrics")
        except OSError as error:
            return f"# {error}"

    async def _left(self, uid: str) -> list[str]:
        """Return a sentence if pods of the job outlive it."""
        deadline = self._monotonic() + _GONE_S
        while True:
            pods = await self._api.list(POD, self._namespace, selector=f"rljob.dev/uid={uid}")
            if not pods:
                self._say("no pod is left")
                return []
            if self._monotonic() >= deadline:
                return [f"pods outlive the job: {', '.join(pod['metadata']['name'] for pod in pods)}"]
            await self._sleep(_POLL_S)


def progress(job: Object | None) -> str:
    """Return one line on how far the job is."""
    if job is None:
        return "the job is gone"
    status = job.get("status") or {}
    return f"{status.get('summary') or 'Pending'}, step {status.get('step', 0)}: {status.get('reason') or '-'}"


def problems(job: Object | None) -> list[str]:
    """Return what the job's status says against it: it must be complete, with every role ready before."""
    if job is None:
        return ["the job was deleted by another client"]
    true_conditions = _true(job)
    if "Complete" not in true_conditions:
        lines = [
            f"{each['type']}={each['status']} {each.get('reason', '')}: {each.get('message', '')}"
            for each in _conditions(job)
        ]
        return ["the job did not complete", *lines]
    step, max_steps = (job.get("status") or {}).get("step", 0), job["spec"]["maxSteps"]
    wrong = [] if step == max_steps else [f"step is {step}, but spec.maxSteps is {max_steps}"]
    lasting = {"Stalled", "Failed", "Running"} & true_conditions
    return [*wrong, *(f"{kind} is True on a complete job" for kind in sorted(lasting))]


def metric_problems(text: str, *, max_steps: int) -> list[str]:
    """Return what a coordinator's exposition lacks."""
    values = [line.rsplit(" ", 1)[1] for line in text.splitlines() if line.startswith("rljob_step{")]
    if not values:
        return [f"the coordinator's metrics have no rljob_step: {text[:200]}"]
    return [] if float(values[0]) == max_steps else [f"rljob_step is {values[0]}, not {max_steps}"]


def _conditions(job: Object) -> list[Object]:
    conditions: list[Object] = (job.get("status") or {}).get("conditions") or []
    return conditions


def _true(job: Object) -> set[str]:
    return {str(each["type"]) for each in _conditions(job) if each["status"] == "True"}


def _get(url: str) -> str:
    # The address is built from a job's own name; no proxy is between pods.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(url, timeout=_METRICS_S) as answer:
        return str(answer.read(1 << 20).decode())


async def _main(manifest: pathlib.Path, namespace: str, timeout_s: float) -> int:
    client = cluster.Client(await cluster.connect(None), qps=5, burst=10)
    try:
        smoke = Smoke(
            client, namespace=namespace, timeout_s=timeout_s, say=lambda line: print(line, flush=True), fetch=_get
        )
        wrong = await smoke.run(yaml.safe_load(manifest.read_text(encoding="utf-8")))
    except errors.ClusterError as error:
        wrong = [str(error)]
    finally:
        await client.close()
    print("\n".join(f"PROBLEM: {each}" for each in wrong) or "passed", flush=True)
    return 1 if wrong else 0


def main() -> int:
    """Run the test with the rights of this pod."""
    parser = argparse.ArgumentParser(prog="rljob-smoke", description="Runs a small RLJob to its end.")
    parser.add_argument("--manifest", required=True, type=pathlib.Path, help="the RLJob to submit")
    parser.add_argument("--namespace", required=True, help="where to submit it")
    parser.add_argument("--timeout-seconds", type=float, default=600.0, help="seconds that it may take")
    arguments = parser.parse_args()
    return asyncio.run(_main(arguments.manifest, arguments.namespace, arguments.timeout_seconds))


if __name__ == "__main__":
    sys.exit(main())
