"""The real program with TLS: every role's own clients reach it with their certificates, and no other's calls."""

import asyncio
import pathlib
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from rljob_api import enums, errors, process_config, types
from rljob_testing import certificates, makers
from rljob_testing.certificates import HOST, Authority
from rljob_testing.ports import free_ports
from rljob_workers.rpc import status, train, work
from rljob_workers.runtime import clock, retry
from rljob_workers.weights.backends import grpc_store

_LIMIT_S = 100.0
_BACKOFF = retry.Backoff(first_s=0.05, most_s=0.2)
R, T, V = enums.Role.ROLLOUT, enums.Role.TRAINER, enums.Role.VERIFIER


class Served:
    """Addresses of the program, and certificates of any caller."""

    def __init__(self, folder: pathlib.Path, control: int, store: int) -> None:
        self.control, self.store = f"{HOST}:{control}", f"{HOST}:{store}"
        self._folder, self._authority = folder, Authority()

    def files(self, caller: str) -> process_config.TlsConfig:
        return self._authority.files(self._folder / caller, caller)


@pytest.fixture
def served(make_config: Callable[..., process_config.CoordinatorConfig], tmp_path: pathlib.Path) -> Iterator[Served]:
    control, store, health = free_ports(3)
    found = Served(tmp_path, control, store)
    config = make_config().model_copy(
        update={
            "job": certificates.JOB, "tls": found.files(enums.Role.COORDINATOR), "health_host": "127.0.0.1",
            "control_port": control, "store_port": store, "store_address": found.store, "health_port": health,
        }
    )  # fmt: skip
    path = tmp_path / "coordinator.json"
    path.write_text(config.model_dump_json(), encoding="utf-8")
    with (tmp_path / "log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "rljob_workers.coordinator", "--config", str(path)], stdout=log, stderr=log
        )
        yield found
        process.terminate()
        assert process.wait(_LIMIT_S) == 0, (tmp_path / "log").read_text()


async def _patiently(call: Callable[[], Any]) -> Any:
    return await retry.retry_async(call, clock=clock.SystemClock(), deadline_s=_LIMIT_S, backoff=_BACKOFF)


async def test_every_role_works_with_its_own_certificate_and_no_role_with_anothers(served: Served) -> None:
    rollout = work.WorkClient(address=served.control, tls=served.files(R))
    await _patiently(lambda: rollout.register(pod="rollout-0", boot_id="b", initial_state_hash="h"))
    grant = await rollout.lease(capacity=1, serving_version=types.VersionId(0), wait_s=1.0)
    (leased,) = grant.leases
    group = makers.make_group(lease_id=leased.lease_id, group_id=leased.group_id, attempt=leased.attempt)
    assert (await rollout.submit(group)).outcome == "accepted"

    def operator_asks() -> types.RunStatus:
        client = status.StatusClient(address=served.control, tls=served.files(enums.OPERATOR), timeout_s=_LIMIT_S)
        try:
            return client.status()
        finally:
            client.close()

    assert (await asyncio.to_thread(operator_asks)).queue_depth["submitted"] == 1

    def trainer_publishes_and_rollout_pulls() -> bytes:
        trainer = train.BatchClient(address=served.control, tls=served.files(T))
        session = trainer.register(
            pod="trainer-0", boot_id="t", attempt=1, rank=0, resume_step=0, initial_state_hash="h"
        )
        publisher = grpc_store.WeightPublisher(
            control_address=served.control, store_address=served.store, tls=served.files(T)
        )
        publisher.session = session.token
        artifact = retry.retry_sync(
            lambda: publisher.upload(memoryview(b"image"), enums.Encoding.WHOLE), deadline_s=_LIMIT_S, backoff=_BACKOFF
        )
        puller = grpc_store.WeightPuller(control_address=served.control, tls=served.files(R))
        image = bytearray(artifact.num_bytes)
        puller.pull(
            artifact, [types.WeightSource(address=served.store, kind=enums.SourceKind.STORE)], memoryview(image)
        )
        for client in (trainer, publisher, puller):
            client.close()
        return bytes(image)

    assert await asyncio.to_thread(trainer_publishes_and_rollout_pulls) == b"image"

    stranger = work.WorkClient(address=served.control, tls=served.files(V))
    with pytest.raises(errors.ForbiddenError, match="role/verifier may not call"):
        await stranger.register(pod="verifier-0", boot_id="v", initial_state_hash="h")
    plain = work.WorkClient(address=served.control, tls=None)
    with pytest.raises(errors.UnavailableError):
        await plain.register(pod="rollout-1", boot_id="p", initial_state_hash="h")
    for client in (rollout, stranger, plain):
        await client.close()
