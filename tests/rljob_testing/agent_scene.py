"""Programs of agents as processes of their own, at the real gateway, over a model with given answers."""

import contextlib
import os
import pathlib
import subprocess
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence

from rljob_api import process_config, types
from rljob_testing import episodes
from rljob_testing import rollout as fakes
from rljob_workers.rollout.episodes import protocols
from rljob_workers.rollout.gateway import episode_calls, external, network, sessions
from rljob_workers.runtime import clock as clocks

KEY = "a key of the gateway's own"


class Scene:
    """Hands records to the program, one at a time."""

    def __init__(self, open_sessions: sessions.Sessions, *, max_model_len: int) -> None:
        """Read no more than `max_model_len` characters, which are the model's tokens."""
        self.requests: list[str] = []
        self._collector = external.ExternalCollector(
            open_sessions=open_sessions, config=episode_calls.ProxyConfig(export="concat"), tokens=fakes.FakeTokens(),
            template="chat", max_model_len=max_model_len,
        )  # fmt: skip

    async def rows(self, columns: Mapping[str, object], *answers: str) -> list[tuple[float, int, int]]:
        """Return reward, turns and sampled tokens of each row of an episode in which the model gives these answers.
        `requests` has what it was asked.
        """
        model = episodes.FakeModel(*((*map(ord, answer), episodes.EOS) for answer in answers))
        record = types.PromptRecord(prompt_id=str(columns["id"]), source="given", columns=dict(columns))
        try:
            episode = await self._collector.arun_episode(
                llm_client=model,
                gconfig=types.Sampling(max_tokens=512),
                task=protocols.Task(record=record, input_ids=(10, 11), prompt_text=""),
                grader=episodes.FakeGrader(), seed=1,
            )  # fmt: skip
        finally:
            self.requests = ["".join(map(chr, request.input_ids)) for request in model.requests]
        assert episode is not None
        return [(row.reward, row.num_turns, row.num_sampled) for row in episode.rows]


@contextlib.contextmanager
def started(command: Sequence[str], folder: pathlib.Path, gateway: str, key_file: pathlib.Path) -> Iterator[None]:
    """Keep a program asking a gateway for the length of the block."""
    key_file.write_text(KEY)
    scripts = pathlib.Path(command[0]).absolute().parent if "/" in command[0] else folder
    env = {
        **os.environ,
        "PATH": f"{scripts}:{os.environ['PATH']}",
        "RLJOB_GATEWAY": gateway,
        "RLJOB_GATEWAY_KEY_FILE": str(key_file),
    }
    process = subprocess.Popen(command, cwd=folder, env=env)
    try:
        yield
    finally:
        process.terminate()
        process.wait(timeout=60)


@contextlib.asynccontextmanager
async def scene_of(
    command: Sequence[str], folder: pathlib.Path, *, key_file: pathlib.Path, max_model_len: int = 1024
) -> AsyncIterator[Scene]:
    """Start a program in a folder, and end it."""
    limits = sessions.Limits(most=8, idle_s=900.0, session_s=900.0)
    attempts = sessions.Sessions(limits, clocks.SystemClock())
    where = process_config.GatewayConfig(bind_host="127.0.0.1", host="127.0.0.1", port=0)
    async with network.Gateway(where, attempts, KEY) as gateway:
        with started(command, folder, gateway.address, key_file):
            yield Scene(attempts, max_model_len=max_model_len)
