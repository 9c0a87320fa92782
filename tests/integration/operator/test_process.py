"""The operator as a process on a fake API server: probes, metrics, an orderly end, settings that are no good."""

import asyncio
import json
import pathlib
import subprocess
import sys
import time
import urllib.error
import urllib.request

import pytest

from rljob_testing import fake_api
from rljob_testing.operator_scene import Scene
from rljob_testing.operator_stage import until
from rljob_testing.ports import free_ports

IMAGE = "example/rljob:1"


def ask(port: int, path: str) -> tuple[int, str]:
    """Return status and text of an answer; 0 while no one listens."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
            return int(answer.status), answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError:
        return 0, ""


@pytest.mark.asyncio(loop_scope="module")
async def test_process_serves_probes_and_metrics_and_ends_in_order(scene: Scene, tmp_path: pathlib.Path) -> None:
    health, metrics = free_ports(2)
    images = dict.fromkeys(("coordinator", "rollout", "verifier", "trainer"), IMAGE)
    # A namespace of its own: the other operator of this module sees everything.
    settings = {"healthPort": health, "metricsPort": metrics, "watchNamespaces": ["alone"], "jobs": {"images": images}}
    (tmp_path / "settings.json").write_text(json.dumps(settings))
    (tmp_path / "kubeconfig").write_text(json.dumps(fake_api.kubeconfig(scene.connection.server)))
    command = [sys.executable, "-m", "rljob_operator", "--host", "127.0.0.1"]
    command += ["--config", str(tmp_path / "settings.json"), "--kubeconfig", str(tmp_path / "kubeconfig")]
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
    try:
        await until(lambda: process.poll() is not None or ask(health, "/readyz")[0] == 200, within_s=120.0)
        assert process.poll() is None, (tmp_path / "log").read_text()
        assert (await asyncio.to_thread(ask, health, "/healthz")) == (200, "ok\n")
        code, text = await asyncio.to_thread(ask, metrics, "/metrics")
        assert code == 200
        assert 'rljob_operator_info{crd_matches="true",version="' in text
        assert "rljob_operator_api_requests_total" in text
        began = time.monotonic()
        process.terminate()
        await asyncio.to_thread(process.wait, 30)
        lines = (tmp_path / "log").read_text().splitlines()
        assert process.returncode == 0, lines
        assert all("message" in json.loads(line) for line in lines), "JSON lines"
        assert not [line for line in lines if "succeeded" in line], "no line per event"
        assert time.monotonic() - began < 20.0, "well within the 30 s that a pod has"
    finally:
        process.kill()
        process.wait()


def test_settings_that_are_no_good_end_it_with_a_sentence(tmp_path: pathlib.Path) -> None:
    (tmp_path / "settings.json").write_text('{"concurency": 3}')
    command = [sys.executable, "-m", "rljob_operator", "--config", str(tmp_path / "settings.json")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2
    assert "concurency: Extra inputs are not permitted" in done.stderr
