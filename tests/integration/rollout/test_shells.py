"""Episodes with a shell against the real program `rljob-environment`, which is killed while they work."""

import asyncio
import os
import pathlib
import re
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator

import pytest

from rljob_api import enums, errors, process_config, types
from rljob_testing import episodes, examples, shells
from rljob_testing import rollout as fakes
from rljob_testing.ports import free_ports
from rljob_workers.rollout import generation, wait_accounting
from rljob_workers.rollout.episodes import protocols, registry
from rljob_workers.rpc import environment
from rljob_workers.runtime import clock as clocks

JOB = process_config.JobIdentity(name="shells", namespace="tests", uid="uid")
NUM_EPISODES, KILLED_AT = 20, 8
PATIENT_S = 240.0
END_S = 30.0


class Program:
    """The program, on a port that it has again after each start."""

    def __init__(self, folder: pathlib.Path) -> None:
        port, health_port = free_ports(2)
        config = process_config.EnvironmentConfig(
            job=JOB,
            role=enums.Role.ENVIRONMENT,
            pod="environment-0",
            health_host="127.0.0.1",
            health_port=health_port,
            scratch_dir=str(folder),
            bind_host="127.0.0.1",
            port=port,
            num_places=2,
            memory_bytes=256 << 20,
            scratch_bytes=4 << 20,
        )
        self.folder = folder
        self.address, self.num_starts = f"127.0.0.1:{port}", 0
        self._config, self._log = folder / "environment.json", (folder / "log").open("wb")
        self._config.write_text(config.model_dump_json())

    def start(self) -> None:
        self.num_starts += 1
        command = [sys.executable, "-m", "rljob_workers.environment", "--config", str(self._config)]
        self.process = subprocess.Popen(command, stdout=self._log, stderr=self._log, env=dict(os.environ))

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(END_S)

    def close(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(END_S)
        except subprocess.TimeoutExpired:
            self.kill()
        self._log.close()


@pytest.fixture
def program(tmp_path: pathlib.Path) -> Iterator[Program]:
    started = Program(tmp_path)
    started.start()
    yield started
    started.close()


class Script:
    """A generator: it copies a file, then looks at it; with its eighth look the program is killed and started again."""

    def __init__(self, program: Program) -> None:
        self.program, self.num_looks, self.num_calls = program, 0, 0

    async def generate(self, request: generation.GenerationRequest) -> generation.GenerationResult:
        self.num_calls += 1
        is_first = "\n$" not in "".join(map(chr, request.input_ids))
        self.num_looks += not is_first
        if not is_first and self.num_looks == KILLED_AT:
            # Its episode has a place now, which is gone with the program.
            self.program.kill()
            self.program.start()
        return shells.line("cp in out" if is_first else "cat out")


def lease(number: int) -> types.GroupLease:
    columns = {
        "prompt": "$ ",
        "files": {"in": f"{number}\n"},
        "tests": ["test -f out", f'test "$(cat out)" = {number}', "test ! -e left", "touch left"],
    }
    record = types.PromptRecord(prompt_id=f"task-{number}", source="train", columns=columns)
    sampling = types.Sampling(max_tokens=32)
    return fakes.make_lease(f"lease-{number}", prompt=record, group_size=1, sampling=sampling)


async def test_a_killed_environment_costs_no_episode_and_no_reward(program: Program) -> None:
    clock = clocks.SystemClock()
    places = environment.Environments(names=[program.address], tls=None, clock=clock)
    try:
        await _until_it_lends(program, places)
        script, slots = Script(program), wait_accounting.SlotWaits(num_slots=NUM_EPISODES, clock=clock)
        groups = shells.group_runner(script, places, clock, num_turns=2)
        ended = await asyncio.gather(*(groups.run(lease(number), slots.open_slot()) for number in range(NUM_EPISODES)))
    finally:
        await places.close()
    assert [scored.group.failures for scored in ended] == [[]] * NUM_EPISODES
    assert [row.reward for scored in ended for row in scored.group.trajectories] == [1.0] * NUM_EPISODES
    assert program.num_starts == 2
    # Two answers each, and those of an attempt that was made again.
    assert script.num_calls >= 2 * NUM_EPISODES + 2
    texts = ["".join(map(chr, row.tokens)) for scored in ended for row in scored.group.trajectories]
    assert texts == ["$ cp in out\x02\n$cat out\x02"] * NUM_EPISODES


async def test_the_environment_on_the_page_runs_what_the_model_wrote(program: Program, tmp_path: pathlib.Path) -> None:
    """docs/environments.md, whose class takes the job's places."""
    page = (examples.ROOT / "docs/environments.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    file = tmp_path / "runs_scripts.py"
    file.write_text(code, encoding="utf-8")
    places = environment.Environments(names=[program.address], tls=None, clock=clocks.SystemClock())
    collector = registry.make_collector(
        workflow="runs_scripts:RunsScripts",
        config={},
        tokens=fakes.FakeTokens(),
        template="raw",
        max_model_len=256,
        code=str(file),
        places=places,
    )
    record = types.PromptRecord(prompt_id="p", source="train", columns={"prompt": "?", "answer": "42"})
    task = protocols.Task(record=record, input_ids=(1,), prompt_text="?")

    async def reward(answer: str) -> float:
        episode = await collector.arun_episode(
            llm_client=episodes.FakeModel((*map(ord, answer), episodes.EOS)),
            gconfig=types.Sampling(max_tokens=64),
            task=task,
            grader=episodes.FakeGrader(),
            seed=1,
        )
        assert episode is not None
        return episode.total_reward

    try:
        await _until_it_lends(program, places)
        assert [await reward(answer) for answer in ("print(6 * 7)", "print(6 + 7)", "no program")] == [1.0, 0.0, 0.0]
        await _refuses_after_a_kill(program, reward)
    finally:
        await places.close()


async def _refuses_after_a_kill(program: Program, reward: Callable[[str], Awaitable[float]]) -> None:
    """A place that is lost while it works is an error, which fails the attempt, and no reward."""
    working = asyncio.ensure_future(reward("import time; time.sleep(15); print(42)"))
    while not any(program.folder.glob("places/*/*/answer.py")):
        await asyncio.wait({working}, timeout=0.05)
        assert not working.done()
    program.kill()
    with pytest.raises(errors.UnavailableError):
        await working


async def _until_it_lends(program: Program, places: environment.Environments) -> None:
    """Skip where the confinement of places does not hold on this machine."""
    asking = asyncio.ensure_future(_lent(places))
    while not asking.done() and program.process.poll() is None:
        await asyncio.wait({asking}, timeout=0.2)
    if asking.done():
        asking.result()
        return
    asking.cancel()
    assert program.process.returncode == enums.ExitCode.ISOLATION_REFUSED
    pytest.skip("the confinement of places does not hold on this machine (Landlock, user notification)")


async def _lent(places: environment.Environments) -> None:
    try:
        async with places.open("first", wait_s=PATIENT_S) as shell:
            assert (await shell.exec("true", timeout_s=PATIENT_S, max_output=1)).exit_code == 0
    except errors.UnavailableError as error:
        pytest.fail(str(error))
