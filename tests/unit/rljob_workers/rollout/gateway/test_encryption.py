"""The gateway with a job's certificate: whom clients trust, renewal under way, and the key that is needed as before."""

import asyncio
import base64
import contextlib
import pathlib
import ssl
import time
from collections.abc import AsyncIterator

import anthropic
import httpx
import openai
import pytest
from cryptography import x509

from rljob_api import cluster_placement, enums, errors, process_config, types
from rljob_api.validation import load
from rljob_operator.pki import secrets
from rljob_testing import episodes, examples
from rljob_testing import rollout as fakes
from rljob_testing.certificates import HOST, Authority
from rljob_testing.clock import FakeClock
from rljob_workers.rollout.episodes import protocols
from rljob_workers.rollout.gateway import episode_calls, external, network, sessions

KEY = "a key of the gateway's own"
LIMITS = sessions.Limits(most=8, idle_s=60.0, session_s=600.0)
TASK = protocols.Task(
    record=types.PromptRecord(prompt_id="p", source="s", columns={"prompt": "hi"}), input_ids=(10,), prompt_text="hi"
)


@contextlib.asynccontextmanager
async def gateway_of(files: process_config.TlsConfig, attempts: sessions.Sessions | None = None) -> AsyncIterator[str]:
    config = process_config.GatewayConfig(bind_host="127.0.0.1", host=HOST, port=0, service=HOST)
    async with network.Gateway(config, attempts or sessions.Sessions(LIMITS, FakeClock()), KEY, files) as gateway:
        yield gateway.address


async def asked(address: str, authority: bytes, *, key: str = KEY) -> httpx.Response:
    """Ask for a task in a connection of its own."""
    trusted = ssl.create_default_context(cadata=authority.decode())
    async with httpx.AsyncClient(trust_env=False, verify=trusted) as http:
        body = {"waitSeconds": 0}
        return await http.post(f"{address}/v1/sessions", json=body, headers={"Authorization": f"Bearer {key}"})


async def shown(address: str) -> x509.Certificate:
    """Return the certificate that a client is shown which names no host."""
    port = int(address.rpartition(":")[2])
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    certificate = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.close()
    return x509.load_der_x509_certificate(certificate)


@pytest.mark.covers("security")
async def test_who_trusts_the_job_s_ca_is_served_and_needs_the_key_as_before(tmp_path: pathlib.Path) -> None:
    authority = Authority()
    async with gateway_of(authority.files(tmp_path, "rollout")) as address:
        assert address.startswith(f"https://{HOST}:")
        assert (await asked(address, authority.pair.certificate)).status_code == 204
        assert (await asked(address, authority.pair.certificate, key="another")).status_code == 401


@pytest.mark.covers("security")
async def test_a_gateway_of_another_job_is_not_trusted_and_plain_text_is_not_served(tmp_path: pathlib.Path) -> None:
    async with gateway_of(Authority().files(tmp_path, "rollout")) as address:
        with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
            await asked(address, Authority("u-2").pair.certificate)
        with pytest.raises(httpx.RemoteProtocolError):
            await asked(address.replace("https", "http"), Authority().pair.certificate)


async def test_the_operator_s_certificate_is_good_for_the_service_and_for_each_pod_behind_it(
    tmp_path: pathlib.Path,
) -> None:
    job = load.load_manifest((examples.EXAMPLES / "addition-agents-cpu.yaml").read_text())
    made = secrets.secrets(job, {}, trust_domain="cluster.local", now=time.time())
    (leaf,) = (each for each in made.changed if each["metadata"]["name"] == f"{job.metadata.name}-tls-rollout")  # type: ignore[index]  # a Secret's
    for name, value in leaf["data"].items():  # type: ignore[attr-defined]  # a Secret's
        (tmp_path / name).write_bytes(base64.b64decode(value))
    files = process_config.TlsConfig(
        ca_file=str(tmp_path / "ca.crt"), cert_file=str(tmp_path / "tls.crt"), key_file=str(tmp_path / "tls.key")
    )
    host = cluster_placement.service_host(job, enums.Role.ROLLOUT)
    trusted = ssl.create_default_context(cafile=files.ca_file)
    async with gateway_of(files) as address:
        port = int(address.rpartition(":")[2])
        for name in (host, f"10-1-2-3.{host}"):
            _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trusted, server_hostname=name)
            writer.close()
        with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
            await asyncio.open_connection("127.0.0.1", port, ssl=trusted, server_hostname=f"other-{host}")


async def test_a_renewed_certificate_is_shown_to_the_next_client_without_a_restart(tmp_path: pathlib.Path) -> None:
    authority, successor = Authority(), Authority("u-1 next")
    async with gateway_of(authority.files(tmp_path, "rollout")) as address:
        first = await shown(address)
        assert await shown(address) == first
        authority.files(tmp_path, "rollout")
        assert await shown(address) != first
        # By the next CA of the job, which clients trust from then on.
        successor.files(tmp_path, "rollout")
        assert (await asked(address, successor.pair.certificate)).status_code == 204


async def test_files_that_cannot_be_read_leave_the_certificate_that_was_there(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    authority = Authority()
    files = authority.files(tmp_path, "rollout")
    async with gateway_of(files) as address:
        first = await shown(address)
        pathlib.Path(files.key_file).write_text("half a key")
        assert await shown(address) == first
        pathlib.Path(files.cert_file).unlink()
        assert await shown(address) == first
        assert [record.levelname for record in caplog.records if "kept the old certificate" in record.message] == [
            "WARNING", "WARNING",
        ]  # fmt: skip
        authority.files(tmp_path, "rollout")
        assert await shown(address) != first


async def test_a_gateway_whose_certificate_cannot_be_read_does_not_start(tmp_path: pathlib.Path) -> None:
    files = Authority().files(tmp_path, "rollout")
    pathlib.Path(files.cert_file).unlink()
    with pytest.raises(errors.UnavailableError, match="tls.crt"):
        async with gateway_of(files):
            pass


async def test_the_official_clients_reach_it_by_the_file_that_the_environment_names(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = Authority().files(tmp_path, "rollout")
    attempts = sessions.Sessions(LIMITS, FakeClock())
    collector = external.ExternalCollector(
        open_sessions=attempts, config=episode_calls.ProxyConfig(), tokens=fakes.FakeTokens(), template="raw",
        max_model_len=1024,
    )  # fmt: skip
    # What pods of agents have in their environment.
    monkeypatch.setenv("SSL_CERT_FILE", files.ca_file)
    monkeypatch.setenv("NO_PROXY", HOST)
    async with gateway_of(files, attempts) as address, httpx.AsyncClient() as http:
        run = asyncio.ensure_future(
            collector.arun_episode(
                llm_client=episodes.FakeModel((65, episodes.EOS), (66, episodes.EOS)),
                gconfig=types.Sampling(max_tokens=8), task=TASK, grader=episodes.FakeGrader(), seed=1,
            )
        )  # fmt: skip
        taken = await http.post(
            f"{address}/v1/sessions", json={"waitSeconds": 5}, headers={"Authorization": f"Bearer {KEY}"}
        )
        session = taken.json()
        assert session["base_url"] == f"{address}/{session['session']}/v1"
        async with (
            openai.AsyncOpenAI(base_url=session["base_url"], api_key=session["api_key"], max_retries=0) as gpt,
            anthropic.AsyncAnthropic(
                base_url=session["base_url"].removesuffix("/v1"), api_key=session["api_key"], max_retries=0
            ) as claude,
        ):
            asked_first = await gpt.chat.completions.create(model="policy", messages=[{"role": "user", "content": "x"}])
            asked_next = await claude.messages.create(
                model="policy", max_tokens=8, messages=[{"role": "user", "content": "y"}]
            )
        headers = {"Authorization": f"Bearer {session['api_key']}"}
        await http.post(f"{session['base_url']}/close", json={"reward": 1}, headers=headers)
        episode = await run
    assert asked_first.choices[0].message.content == "A"
    assert [block.text for block in asked_next.content if block.type == "text"] == ["B"]
    assert episode is not None
    assert episode.total_reward == 1.0
