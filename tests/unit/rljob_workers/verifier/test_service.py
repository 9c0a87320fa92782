"""The verifier as others meet it: gRPC on loopback with real workers, and the program itself."""

import asyncio
import contextlib
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator

import grpc
import grpc.aio
import pytest
import pytest_asyncio

from rljob_api import enums, errors, process_config, types
from rljob_api.manifest.base import Decimal
from rljob_api.wire import codec
from rljob_api.wire.v1 import verify_pb2, verify_pb2_grpc
from rljob_workers.rpc import channel
from rljob_workers.runtime import health
from rljob_workers.verifier import service

R = enums.VerdictReason
MakeConfig = Callable[..., process_config.VerifierConfig]
Running = Callable[..., contextlib.AbstractAsyncContextManager[service.Service]]
MATH = process_config.GraderConfig(name="maths", type="math", weight=Decimal(2.0))
EXACT = process_config.GraderConfig(name="text", type="exact", weight=Decimal(0.5))


class Client:
    """Verifies over a channel and returns our types."""

    def __init__(self, port: int) -> None:
        self._channel = channel.aio_channel(f"127.0.0.1:{port}", None)
        self._stub = verify_pb2_grpc.VerifierStub(self._channel)

    async def verify(self, items: list[types.VerifyItem]) -> list[types.Verdict]:
        reply = await self._stub.Verify(
            verify_pb2.VerifyRequest(items=[codec.to_message(item) for item in items]), timeout=60
        )
        return [codec.from_message(types.Verdict, verdict) for verdict in reply.verdicts]

    async def close(self) -> None:
        await self._channel.close(None)


@contextlib.asynccontextmanager
async def client_of(verifier: service.Service) -> AsyncIterator[Client]:
    client = Client(verifier.port)
    try:
        yield client
    finally:
        await client.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(make_config: MakeConfig, running: Running) -> AsyncIterator[Client]:
    async with running(make_config(MATH, EXACT)) as verifier, client_of(verifier) as connected:
        yield connected


@pytest.mark.asyncio(loop_scope="module")
async def test_batch_comes_back_in_order_with_weighted_rewards_and_named_parts(
    client: Client, make_item: Callable[..., types.VerifyItem]
) -> None:
    texts = ["5", "2+3", "6", "", r"\boxed{4+1}", "10^{10^{10}}"] * 20
    verdicts = await client.verify([make_item(text, sample_id=f"s{n}") for n, text in enumerate(texts)])
    rewards = {"5": 2.5, "2+3": 2.0, "6": 0.0, "": 0.0, r"\boxed{4+1}": 2.0, "10^{10^{10}}": 0.0}
    assert [verdict.reward for verdict in verdicts] == [rewards[text] for text in texts]
    assert verdicts[0].parts == {"maths": 1.0, "text": 1.0}
    assert verdicts[4].parts == {"maths": 1.0, "text": 0.0}
    assert verdicts[3].reason is R.NO_ANSWER


@pytest.mark.asyncio(loop_scope="module")
async def test_thousand_items_at_once_are_all_judged(
    client: Client, make_item: Callable[..., types.VerifyItem]
) -> None:
    items = [make_item(rf"\boxed{{{n % 7}}}", sample_id=f"b{n}", attempt=2) for n in range(1024)]
    verdicts = await client.verify(items)
    assert [verdict.parts["maths"] for verdict in verdicts] == [float(n % 7 == 5) for n in range(1024)]
    assert {verdict.attempt for verdict in verdicts} == {2}


@pytest.mark.covers("graders 2.2")
@pytest.mark.asyncio(loop_scope="module")
async def test_missing_gold_is_invalid_argument_and_names_sample_and_key(client: Client) -> None:
    item = types.VerifyItem(sample_id="s7", attempt=0, prompt="", completion="5", columns={"prompt": "2+3"})
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await client.verify([item])
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    error = channel.translate(caught.value, "verifier")
    assert type(error) is errors.RecordError
    assert re.search("sample s7.*'answer'", str(error))
    assert error.retry is errors.Retry.NEVER


@pytest.mark.asyncio(loop_scope="module")
async def test_empty_batch_is_an_empty_answer(client: Client) -> None:
    assert await client.verify([]) == []


async def test_full_queue_is_resource_exhausted_and_worth_another_try(
    make_config: MakeConfig, running: Running, make_item: Callable[..., types.VerifyItem]
) -> None:
    config = make_config(MATH, max_waiting=3, num_slots=1)
    async with running(config) as verifier, client_of(verifier) as connected:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await connected.verify([make_item(r"\boxed{\sqrt{5}\sqrt{5}}", sample_id=str(n)) for n in range(5)])
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        error = channel.translate(caught.value, "verifier")
        assert isinstance(error, errors.UnavailableError)
        assert error.retry is errors.Retry.LATER
        (verdict,) = await connected.verify([make_item(r"\boxed{\sqrt{5}\sqrt{5}}")])
        assert verdict.reward == 2.0


async def test_verifier_without_need_of_workers_keeps_none(
    make_config: MakeConfig, running: Running, make_item: Callable[..., types.VerifyItem]
) -> None:
    children = pathlib.Path(f"/proc/self/task/{os.getpid()}/children")
    before = children.read_text(encoding="ascii")
    async with running(make_config(EXACT)) as verifier, client_of(verifier) as connected:
        assert children.read_text(encoding="ascii") == before
        (verdict,) = await connected.verify([make_item("5")])
        assert verdict.reward == 0.5


async def test_many_callers_at_once_get_their_own_verdicts(
    make_config: MakeConfig, running: Running, make_item: Callable[..., types.VerifyItem]
) -> None:
    async with running(make_config(MATH)) as verifier, client_of(verifier) as connected:
        calls = [
            connected.verify(
                [make_item(rf"\boxed{{\sqrt{{{n}}}\sqrt{{{n}}}}}", gold=n, sample_id=f"c{n}-{m}") for m in range(4)]
            )
            for n in range(32)
        ]
        assert all(verdict.reward == 2.0 for verdicts in await asyncio.gather(*calls) for verdict in verdicts)


@contextlib.contextmanager
def program(config: process_config.VerifierConfig, folder: pathlib.Path) -> Iterator["subprocess.Popen[str]"]:
    path = folder / "role.json"
    path.write_text(config.model_dump_json(), encoding="utf-8")
    environment = {"PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)}
    command = [sys.executable, "-m", "rljob_workers.verifier", "--config", str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            yield process
        finally:
            process.kill()


def served_ports(process: "subprocess.Popen[str]") -> int:
    assert process.stdout is not None
    for line in process.stdout:
        found = re.search(r"served on 127\.0\.0\.1:(\d+)", json.loads(line)["msg"])
        if found:
            return int(found.group(1))
    raise AssertionError("the program ended before it served")


async def test_program_serves_until_it_is_told_to_stop(
    make_config: MakeConfig, make_item: Callable[..., types.VerifyItem], tmp_path: pathlib.Path, free_port: int
) -> None:
    config = make_config(EXACT, health_port=free_port)
    with program(config, tmp_path) as process:
        client = Client(served_ports(process))
        assert (await client.verify([make_item("5")]))[0].reward == 0.5
        await client.close()
        url = f"http://127.0.0.1:{free_port}"
        assert urllib.request.urlopen(f"{url}/readyz").read() == b"ok\n"
        assert (
            b'rljob_verify_total{mode="strict",outcome="pass",reason="ok",reward="text"'
            in urllib.request.urlopen(f"{url}/metrics").read()
        )
        headers = {health.STOP_HEADER: health.stop_token(health.stop_token_file(config))}
        asked = urllib.request.Request(f"{url}/stop", method="POST", headers=headers)
        assert urllib.request.urlopen(asked).status == 202
        assert process.wait(60) == enums.ExitCode.OK


def test_program_ends_in_order_on_sigterm(make_config: MakeConfig, tmp_path: pathlib.Path) -> None:
    with program(make_config(EXACT), tmp_path) as process:
        served_ports(process)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == enums.ExitCode.OK


@pytest.mark.covers("security")
@pytest.mark.parametrize(
    ("changes", "code", "message"),
    [
        (
            {"rewards": [{"name": "r", "type": "maths"}]},
            enums.ExitCode.CONFIGURATION,
            "unknown type 'maths'; expected one of ",
        ),
        ({"execution": {"isolation": {"type": "None"}}}, enums.ExitCode.ISOLATION_REFUSED, "allowUnsafe"),
    ],
)
def test_program_refuses_what_it_cannot_serve(
    make_config: MakeConfig, tmp_path: pathlib.Path, changes: dict[str, object], code: enums.ExitCode, message: str
) -> None:
    with program(make_config(EXACT, **changes), tmp_path) as process:
        assert process.stdout is not None
        output = process.stdout.read()
        assert process.wait(60) == code
        assert message in output
