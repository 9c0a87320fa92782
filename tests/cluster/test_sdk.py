"""The Python client against a real API server: the page on it is run, block by block."""

import pathlib
import re
import threading
import time
from collections.abc import Iterator

import pytest

import rljob
from rljob_testing.cluster import manifests
from rljob_testing.cluster.manifests import Api
from rljob_testing.examples import ROOT

PAGE = (ROOT / "docs/sdk.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)
LIMIT_S = 60.0


@pytest.fixture
def client(api: Api) -> rljob.Client:
    return rljob.Client(kubeconfig=api.cluster.kubeconfig, namespace="default")


@pytest.fixture
def name(api: Api, request: pytest.FixtureRequest) -> Iterator[str]:
    name = re.sub(r"[^a-z]+", "-", request.node.name.removeprefix("test_"))[:30].strip("-")
    yield name
    api.cluster.kubectl("delete", "rljob", name, "--ignore-not-found")


def complete(step: int) -> manifests.Object:
    at = "2026-01-01T00:00:00Z"
    condition = {"type": "Complete", "status": "True", "reason": "MaxStepsReached", "lastTransitionTime": at}
    return {"summary": "Succeeded", "step": step, "completionTime": at, "conditions": [condition]}  # type: ignore[list-item]


def play(api: Api, name: str, stop: threading.Event) -> None:
    """Write the statuses of a run, as an operator would: a step whenever the one before was there for a moment."""
    end = time.monotonic() + LIMIT_S
    while time.monotonic() < end and not stop.is_set():
        if api.cluster.kubectl("get", "rljob", name).returncode == 0:
            for step in range(1, 5):
                api.set_status(name, {"summary": "Running", "step": step, "conditions": []})
                stop.wait(1.0)
            api.set_status(name, complete(4))
            return
        stop.wait(0.2)


def test_every_block_of_the_page_runs(
    api: Api, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(api.cluster.kubeconfig))
    stop = threading.Event()
    operator = threading.Thread(target=play, args=(api, "sums", stop))
    operator.start()
    try:
        names: dict[str, object] = {}
        for block in BLOCKS:
            exec(compile(block, "docs/sdk.md", "exec"), names)  # noqa: S102  # blocks of our own page
    finally:
        stop.set()
        operator.join()
    printed = capsys.readouterr().out
    assert "spec.maxSteps" in printed
    assert "2026-01-01T00:00:00Z" in printed
    assert "sums Succeeded" in printed
    assert api.cluster.kubectl("get", "rljob", "sums").returncode != 0


def test_a_change_that_a_job_may_not_make_is_refused_by_field(api: Api, client: rljob.Client, name: str) -> None:
    client.submit(manifests.job(name, {}))
    # It has begun: before its first attempt all may change.
    api.set_status(name, {"attempt": 1})
    with pytest.raises(rljob.RefusedError) as refused:
        client.submit(manifests.job(name, {"seed": 7}))
    assert refused.value.status == 422
    assert [problem.field for problem in refused.value.problems] == ["spec.seed"], refused.value.problems


def test_a_job_that_only_the_dry_run_knows_is_not_found(client: rljob.Client, name: str) -> None:
    assert client.submit(manifests.job(name, {}), dry_run=True).uid
    with pytest.raises(rljob.NotFoundError, match=name):
        client.get(name)


def test_a_field_that_the_server_does_not_know_is_refused_and_not_dropped(
    api: Api, client: rljob.Client, name: str
) -> None:
    body = manifests.job(name, {})
    body["metadata"] = {"name": name, "namespace": "default"}
    body["spec"]["nonsense"] = 1  # type: ignore[index,call-overload]
    with pytest.raises(rljob.ApiError, match="nonsense"):
        client._api.apply(body, dry_run=True)


def test_a_suspended_job_says_so_and_a_deleted_one_ends_its_watch(client: rljob.Client, name: str) -> None:
    job = client.submit(manifests.job(name, {}))
    job.suspend()
    assert job.manifest.spec.suspend is True
    assert [each.name for each in client.list() if each.name == name] == [name]
    threading.Timer(1.0, client.get(name).delete).start()
    with pytest.raises(rljob.GoneError):
        for _ in job.watch(timeout=LIMIT_S):
            pass


def test_a_version_that_the_server_has_forgotten_is_an_expired_one(client: rljob.Client, name: str) -> None:
    client.submit(manifests.job(name, {}))
    with pytest.raises(rljob.ApiError) as expired:
        for _ in client._api.watch(name, "1", seconds=5):
            pass
    assert expired.value.status == 410


def test_a_kubeconfig_that_is_not_there_is_named(tmp_path: pathlib.Path) -> None:
    with pytest.raises(rljob.ApiError, match="cannot connect"):
        rljob.Client(kubeconfig=tmp_path / "none")
