"""Agents of a job as processes of their own: the real coordinator, gateway and supervisor, an engine without model."""

import asyncio
import contextlib
import json
import os
import pathlib
import signal
import sys
from collections.abc import Callable, Iterator

import pytest

from rljob_api import enums, process_config
from rljob_api.manifest.rollout import KEY_VARIABLE
from rljob_testing import joined_run
from rljob_workers.coordinator.ledger import audit
from rljob_workers.local.run import launch, restart_policy, supervise
from rljob_workers.local.rundir import journal, layout
from rljob_workers.rollout.engines import fake
from rljob_workers.rollout.gateway import network
from rljob_workers.rpc import work
from rljob_workers.runtime import clock as clocks

STEPS, PROMPTS, GROUP = 2, 2, 2
# Asks by the standard library alone. The first session of all is never closed: its agent waits there for its end.
AGENT = """
import json, os, pathlib, time, urllib.error, urllib.request

gateway, key = os.environ["RLJOB_GATEWAY"], pathlib.Path(os.environ["RLJOB_GATEWAY_KEY_FILE"]).read_text()
stuck, taken = pathlib.Path("stuck.json"), pathlib.Path("taken.jsonl")


def post(url, key, body):
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    request = urllib.request.Request(url, data=json.dumps(body).encode(), headers=headers, method="POST")
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.loads(answer.read() or "null")


while True:
    try:
        session = post(f"{gateway}/v1/sessions", key, {"waitSeconds": 5})
        if session is None:
            continue
        base, own = session["base_url"], session["api_key"]
        asked = {"model": "policy", "prompt": session["task"]["prompt_text"]}
        post(f"{base}/completions", own, asked)
        if not stuck.exists():
            pathlib.Path("stuck.part").write_text(json.dumps(session))
            os.replace("stuck.part", stuck)
            time.sleep(600)
        post(f"{base}/close", own, {})
        with taken.open("a") as file:
            file.write(json.dumps(session["task"]["query_id"]) + "\\n")
    except urllib.error.URLError:
        time.sleep(0.05)
"""


@contextlib.contextmanager
def supervised(folder: pathlib.Path, gateway_url: str) -> Iterator[supervise.Supervisor]:
    """Start an agent under what `rljob run` keeps it alive with."""
    (folder / "agent.py").write_text(AGENT, encoding="utf-8")
    config = process_config.AgentsConfig(
        job=process_config.JobIdentity(name="small", namespace="default", uid="u"),
        role=enums.Role.AGENTS,
        pod="agents-0",
        scratch_dir=str(folder / "scratch"),
        command=(sys.executable, "agent.py"),
        directory=str(folder),
        gateway_url=gateway_url,
    )
    directory = layout.RunDir(folder / "run")
    directory.claim(directory.admit(name="small", spec={}, manifest_dir=folder), "")
    log = journal.Journal(directory.journal)
    launcher = launch.Launcher(
        configs={"agents": config},
        directory=directory,
        programs=launch.own_programs,
        log=log,
        clock=clocks.SystemClock(),
        attempt=0,
        env=launch.environment(folder, cache=folder),
    )
    made = supervise.Supervisor(
        spawn=launcher.spawn,
        policy=restart_policy.Policy(first_delay_s=0.05),
        clock=clocks.SystemClock(),
        # The coordinator is a child of this process too.
        sweep=lambda _guards: None,
    )
    made.start("agents", enums.Role.AGENTS, supervise.Progress())
    try:
        yield made
    finally:
        made.kill_all()
        while made.running():
            made.tick(supervise.Progress(), restart=())
        log.close()


async def test_an_agent_that_is_killed_in_mid_session_is_replaced_and_no_answer_is_trained_twice(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = await asyncio.to_thread(
        joined_run.JoinedRun,
        tmp_path,
        **{
            "maxSteps": STEPS,
            "algorithm.promptsPerStep": PROMPTS,
            "algorithm.groupSize": GROUP,
            # The second step's answers may be of the weights of the first: no version has to be published.
            "async.maxOffPolicySteps": 1,
            "workflow.type": "external",
            "rollout.gateway": {"idleSeconds": 1},
        },
    )
    attempts, client = run.attempts(), work.WorkClient(address=run.program.address, tls=None)
    trainer = await asyncio.to_thread(run.trainer)
    rollout = run.rollout(fake.FakeEngine(clock=run.clock), client, attempts)
    where = process_config.GatewayConfig(bind_host="127.0.0.1", host="127.0.0.1", port=0)
    key = "a key of the gateway's own"
    monkeypatch.setenv(KEY_VARIABLE, key)
    async with contextlib.AsyncExitStack() as stack:
        gateway = await stack.enter_async_context(network.Gateway(where, attempts, key))
        agents = stack.enter_context(supervised(tmp_path, gateway.address))
        working = asyncio.ensure_future(rollout.run())
        stuck = tmp_path / "stuck.json"
        await _until(agents, stuck.exists)
        session = json.loads(stuck.read_text())["session"]
        assert attempts.find(session) is not None
        (killed,) = agents.running().values()
        assert killed.pid is not None
        os.kill(killed.pid, signal.SIGKILL)
        trained = asyncio.ensure_future(asyncio.to_thread(_train, trainer))
        await _until(agents, trained.done)
        assert attempts.find(session) is None
        assert agents.restarts == 1
        rollout.hand_back()
        await working
    await client.close()
    await asyncio.to_thread(trainer.close)
    await asyncio.to_thread(run.close)
    # The attempt of the killed agent was made again, by the one that took its place.
    closed = (tmp_path / "taken.jsonl").read_text().splitlines()
    assert len(closed) == STEPS * PROMPTS * GROUP
    steps = [line for line in run.history() if line["kind"] == "step"]
    assert len(steps) == STEPS
    assert audit.main([run.program.config.state_dir]) == 0


def _train(trainer: joined_run.JoinedTrainer) -> None:
    for step in range(1, STEPS + 1):
        assert trainer.fetch(step).kind is enums.BatchKind.BATCH
        trainer.commit(step)


async def _until(agents: supervise.Supervisor, holds: Callable[[], object]) -> None:
    """Look after the agents, as the runner does, until something holds."""
    async with asyncio.timeout(60):
        while not holds():
            agents.tick(supervise.Progress())
            await asyncio.sleep(0.02)
