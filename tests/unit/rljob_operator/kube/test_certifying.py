"""Certificates over a job's life, on a fake client; and a coordinator on loopback that lets the operator ask."""

import asyncio
import base64
import dataclasses
import json
import pathlib
import time
from collections.abc import Callable, Mapping
from typing import Any, cast

import pytest

from rljob_api import enums, errors, process_config
from rljob_api.manifest.job import RLJob
from rljob_api.manifest.status import JobStatus
from rljob_api.wire.v1 import status_pb2_grpc
from rljob_operator.coordinators import FIRST_WITHIN_S, opened
from rljob_operator.kube import kinds
from rljob_operator.kube.cache import Cache
from rljob_operator.kube.client import ApiError, Client
from rljob_operator.kube.kinds import Kind
from rljob_operator.kube.resync import Lister
from rljob_operator.model import Apply
from rljob_operator.pki import certificates, manager
from rljob_operator.pki.manager import CertificateManager, Credentials
from rljob_operator.reconcile.cluster import LiveCluster
from rljob_operator.reports import Target
from rljob_testing.certificates import Authority
from rljob_testing.clock import FakeClock
from rljob_testing.cluster import manifests
from rljob_testing.fake_client import FakeClient, Unheard
from rljob_testing.operator_stage import SaidStatus
from rljob_workers.rpc import channel

DAY_S = 86_400.0
NAMES = ("run-ca", "run-tls-coordinator", "run-tls-rollout", "run-tls-verifier", "run-tls-trainer")
READ = [f"get Secret {name}" for name in NAMES]
WRITE = [f"apply Secret {name}" for name in NAMES]
# A new CA is read again before leaves are made of it.
MADE = [*READ, WRITE[0], READ[0], *WRITE[1:]]


class Scene:
    """A certifier over a fake client, and a job."""

    def __init__(self, tls: str = "Operator", *, start: float = 1_800_000_000.0) -> None:
        self.client, self.clock = FakeClient(), FakeClock(start)
        self.certifier = self.started()
        self.raw = self.client.hold(cast(dict[str, Any], manifests.job("run", {"security.tls": tls})))
        self.job = RLJob.model_validate_json(json.dumps(self.raw))

    def started(self) -> CertificateManager:
        return CertificateManager(cast(Client, self.client), trust_domain="cluster.local", clock=self.clock.now)

    def ensure(self) -> list[str]:
        """Return the requests that it took."""
        before = len(self.client.requests)
        asyncio.run(self.certifier.ensure(self.job))
        return self.client.requests[before:]


def test_secrets_are_made_once_and_looked_at_again_after_half_an_hour() -> None:
    scene = Scene()
    assert scene.ensure() == MADE
    assert scene.ensure() == []
    scene.clock.tick(manager.LOOK_EVERY_S)
    assert scene.ensure() == READ


def test_ends_of_certificates_are_those_of_the_secrets() -> None:
    """Seven days, less what a rounding to seconds takes."""
    scene = Scene()
    scene.ensure()
    ends = scene.certifier.ends(scene.job.metadata.uid)
    assert set(ends) == set(enums.STANDARD_ROLES)
    assert all(end == pytest.approx(scene.clock.now() + 7 * DAY_S, abs=1) for end in ends.values())
    assert Scene("Disabled").certifier.ends("unknown") == {}


def test_a_job_in_plain_text_costs_no_request() -> None:
    scene = Scene("Disabled")
    assert scene.ensure() == []
    assert scene.certifier.is_provisioned(scene.job.metadata.uid)
    assert scene.certifier.credentials(scene.job.metadata.uid) is None


class Slow(FakeClient):
    """Lets others continue while a request is under way."""

    async def get(self, kind: Kind, namespace: str, name: str) -> dict[str, Any] | None:
        await asyncio.sleep(0)
        return await super().get(kind, namespace, name)


async def test_passes_at_the_same_time_make_one_ca() -> None:
    scene = Scene()
    scene.client = Slow()
    scene.certifier = scene.started()
    await asyncio.gather(*(scene.certifier.ensure(scene.job) for _ in range(3)))
    assert scene.client.requests == MADE


class Rival(FakeClient):
    """Another operator overwrites the CA the moment it was first written."""

    def __init__(self, secret: dict[str, Any]) -> None:
        super().__init__()
        self._secret: dict[str, Any] | None = secret

    async def apply(self, kind: Kind, namespace: str, body: Mapping[str, Any]) -> dict[str, Any]:
        answer = await super().apply(kind, namespace, body)
        if body["metadata"]["name"] == "run-ca" and self._secret is not None:
            self.hold(self._secret)
            self._secret = None
        return answer


def test_leaves_are_of_the_ca_that_stands_when_two_operators_make_one() -> None:
    other = Scene()
    other.ensure()
    scene = Scene()
    theirs = other.client.objects["Secret", "run-ca"]
    scene.client = Rival({**theirs, "metadata": {**theirs["metadata"], "ownerReferences": _owner(scene.job)}})
    scene.certifier = scene.started()
    scene.ensure()
    held = {name: scene.client.objects["Secret", name]["data"] for name in NAMES}
    assert held["run-ca"] == theirs["data"]
    authority = base64.b64decode(held["run-ca"]["tls.crt"])
    for name in NAMES[1:]:
        assert certificates.is_issued_by(base64.b64decode(held[name]["tls.crt"]), authority)
        assert base64.b64decode(held[name]["ca.crt"]) == authority


def _owner(job: RLJob) -> list[dict[str, Any]]:
    return [{"uid": job.metadata.uid, "controller": True}]


def test_an_operator_that_starts_anew_reads_what_is_there() -> None:
    scene = Scene()
    scene.ensure()
    scene.certifier = scene.started()
    assert scene.ensure() == READ
    assert scene.certifier.credentials(scene.job.metadata.uid) is not None


def test_leaves_of_running_jobs_are_renewed_and_those_of_others_are_not() -> None:
    scene = Scene()
    scene.ensure()
    scene.clock.tick(5 * DAY_S)
    asyncio.run(scene.certifier.renew())
    assert scene.client.requests[-4:] == WRITE[1:]
    scene.certifier.keep_only(frozenset())
    scene.clock.tick(5 * DAY_S)
    before = len(scene.client.requests)
    asyncio.run(scene.certifier.renew())
    assert len(scene.client.requests) == before


def test_a_secret_of_another_owner_is_neither_read_nor_changed() -> None:
    scene = Scene()
    metadata = {"name": "run-tls-rollout", "namespace": "team", "ownerReferences": []}
    scene.client.hold({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": {}})
    with pytest.raises(errors.ClusterError, match="Secret run-tls-rollout exists and is not this job's"):
        scene.ensure()
    assert not [request for request in scene.client.requests if request.startswith("apply")]


def _live(scene: Scene) -> LiveCluster:
    cache, client = Cache(), cast(Client, scene.client)
    cache.put(kinds.RLJOB, scene.raw)
    lister = Lister(client=client, cache=cache, namespaces=(None,))
    return LiveCluster(
        client=client,
        cache=cache,
        lister=lister,
        coordinators=Unheard(),
        clock=scene.clock.now,
        certify=scene.certifier.ensure,
    )


def _child() -> Apply:
    metadata = {"name": "run-rollout", "namespace": "team", "labels": {"rljob.dev/job": "run"}}
    return Apply(manifest={"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata})


async def test_certificates_are_there_before_the_first_pod() -> None:
    scene = Scene()
    live = _live(scene)
    seen = await live.observe("team/run", live=False)
    assert seen is not None
    assert await live.apply(seen, _child()) is None
    assert scene.client.requests == [*MADE, "apply Deployment run-rollout"]


async def test_without_the_right_to_secrets_no_pod_is_made_and_the_job_says_so() -> None:
    scene = Scene()
    scene.client.fail["get Secret run-ca"] = 403
    live = _live(scene)
    seen = await live.observe("team/run", live=False)
    assert seen is not None
    refusal = await live.apply(seen, _child())
    assert refusal is not None
    assert (refusal.reason, refusal.message) == ("Forbidden", "get secrets: refused")
    assert sorted(scene.client.requests) == sorted(READ), "nothing is written"


async def test_trainers_next_attempt_is_made_though_certificates_cannot_be_renewed() -> None:
    scene = Scene()
    scene.client.fail["get Secret run-ca"] = 403
    live = _live(scene)
    seen = await live.observe("team/run", live=False)
    assert seen is not None
    begun = dataclasses.replace(seen, job=seen.job.model_copy(update={"status": JobStatus(attempt=2)}))
    assert await live.apply(begun, _child()) is None
    assert scene.client.requests[-1] == "apply Deployment run-rollout"


async def test_a_failure_that_may_pass_is_raised() -> None:
    scene = Scene()
    scene.client.fail["get Secret run-ca"] = 503
    live = _live(scene)
    seen = await live.observe("team/run", live=False)
    assert seen is not None
    with pytest.raises(ApiError):
        await live.apply(seen, _child())


async def test_a_coordinator_answers_the_operator_of_its_own_job_alone(tmp_path: pathlib.Path) -> None:
    """Real certificates and real gRPC; the server's certificate is for this machine's name."""
    scene = Scene(start=time.time())
    other = Scene(start=time.time())
    await scene.certifier.ensure(scene.job)
    await other.certifier.ensure(other.job)
    metadata = scene.job.metadata
    identity = process_config.JobIdentity(name=metadata.name, namespace=metadata.namespace, uid=metadata.uid)
    authority = Authority()
    data = scene.client.objects["Secret", "run-ca"]["data"]
    authority.pair = certificates.Pair(base64.b64decode(data["tls.crt"]), base64.b64decode(data["tls.key"]))
    tls = authority.files(tmp_path, enums.Role.COORDINATOR, job=identity)
    config = process_config.ProcessConfig(
        job=identity, role=enums.Role.COORDINATOR, pod="run-0", health_port=1, scratch_dir="/tmp", tls=tls
    )
    server = channel.aio_server(config)
    said = SaidStatus()
    said.says(enums.Phase.RUNNING, step=1)
    status_pb2_grpc.add_RunStatusServicer_to_server(said, server)
    port = channel.bind(server, "localhost:0", tls)
    await server.start()
    target = Target(key="team/run", uid=metadata.uid, address=f"localhost:{port}")

    async def hears(credentials_of: Callable[[str], Credentials | None]) -> bool:
        stream = opened(target, credentials_of=credentials_of, now=time.time)
        try:
            return await stream.read(within_s=FIRST_WITHIN_S) is not None
        finally:
            await stream.close()

    try:
        assert await hears(scene.certifier.credentials)
        assert not await hears(lambda _: other.certifier.credentials(other.job.metadata.uid))
        assert not await hears(lambda _: None)
    finally:
        await server.stop(0)
