"""Plays environments of the library verifiers, as they are, as agents of a job: docs/verifiers.md.

    export: the environment's tasks --> JSONL that data.train names
    run:    take a session --> its task by key --> the environment's own episode, whose model is the session --> close

Needs requirements.txt next to this file and nothing else of this repository: its pins clash with the worker's.
"""

import argparse
import asyncio
import contextlib
import dataclasses
import itertools
import json
import logging
import math
import os
import pathlib
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Protocol

import httpx

logger = logging.getLogger("verifiers-agent")

# The column by which a session's record is found again among the environment's tasks.
TASK_KEY = "task_key"
# The loader wants an answer; a task without one keeps it in columns of its own, or in code.
NO_ANSWER = "-"
WAIT_S = 20
RETRY_S = 1.0
# The library keeps a client of 0.4 MB for each address that it was given, and a session has its own, until the
# environment is served again.
SESSIONS_PER_SERVING = 512
LONGEST_REASON = 500


class UnusableError(Exception):
    """An environment, or its options, that cannot be played; the sentence is for the user."""


class NoRewardError(Exception):
    """An attempt that earned no reward: it is given up, and the job makes it again."""


class Environment(Protocol):
    """What `run` asks of an environment."""

    def serving(self) -> contextlib.AbstractAsyncContextManager[None]:
        """Keep what its episodes share, such as servers of tools, for the length of the block."""

    async def play(self, task_key: str, *, base_url: str, key_variable: str) -> float:
        """Return the reward of one episode with the model at `base_url`, whose key is in that variable. Raises
        NoRewardError.
        """


class LoadedEnvironment:
    """One of the library's, with its tasks by key."""

    def __init__(self, environment: str, options: Mapping[str, Any], limit: int | None) -> None:
        """environment: id of a task set, as `vf-eval` takes it. options: its block `env`. limit: of its first tasks,
        needed where it makes them without end. Raises UnusableError.
        """
        import verifiers.v1 as library

        taskset = {**options.get("taskset", {}), "id": environment}
        self._library = library
        self._environment = library.load_environment(library.resolve_env_config({**options, "taskset": taskset}))
        check_seats(self._seats())
        tasks = self._environment.taskset if limit is None else self._environment.taskset.take(limit)
        if not tasks.bounded:
            raise UnusableError(f"{environment} makes tasks without end: say with --limit how many to use")
        self.tasks = {task.key: task for task in tasks}

    def _seats(self) -> dict[str, Any]:
        config = self._environment.config
        fields = {name: getattr(config, name) for name in type(config).model_fields}
        return {name: value for name, value in fields.items() if isinstance(value, self._library.AgentConfig)}

    def serving(self) -> contextlib.AbstractAsyncContextManager[None]:
        serving: contextlib.AbstractAsyncContextManager[None] = self._environment.serving()
        return serving

    async def play(self, task_key: str, *, base_url: str, key_variable: str) -> float:
        if task_key not in self.tasks:
            raise NoRewardError(f"the record's {TASK_KEY} is none of the environment's: export its tasks again")
        client = self._library.EvalClientConfig(base_url=base_url, api_key_var=key_variable)
        # Sampling is the job's. Not `run_slot`: it may repeat the episode, and calls of both would be of one session.
        context = self._library.ModelContext(model="policy", client=client)
        return reward_of(await self._environment.run_episode(self.tasks[task_key], context), base_url)


def check_seats(seats: Mapping[str, Any]) -> None:
    """Raise UnusableError unless one seat asks the policy, once: what a session samples is trained with one reward."""
    policies = [name for name, seat in seats.items() if seat.client is None]
    if len(policies) != 1:
        raise UnusableError(
            f"{len(policies)} seats ask the policy ({', '.join(policies) or 'none'}), but one must: give the others a"
            ' client of their own, such as {"user": {"client": {"base_url": "https://...", "api_key_var": "USER_KEY"}}}'
        )
    retries = seats[policies[0]].retries
    if retries.max_retries or retries.rules:
        raise UnusableError(
            f"{policies[0]}.retries would leave the calls of two runs in one session: leave it out, the job makes a"
            " failed attempt again"
        )


def reward_of(episode: Any, base_url: str) -> float:
    """Return what the one run of an episode that asked the model at `base_url` has earned.

    Raises NoRewardError where something failed, or where a reward is missing: the library counts both as 0.
    """
    if not episode.ok:
        problems = [*episode.errors, *(error for trace in episode.traces for error in trace.errors)]
        raise NoRewardError("; ".join(f"{error.type}: {error.message}" for error in problems) or "the episode failed")
    runs = [trace for trace in episode.traces if trace.agent.config.client.base_url == base_url]
    if len(runs) != 1:
        raise NoRewardError(f"{len(runs)} runs of the episode asked the policy, but a session has one reward")
    (run,) = runs
    missing = [name for name, reward in run.rewards.items() if reward is None]
    if missing or not run.rewards:
        raise NoRewardError(f"no reward of {', '.join(missing)}" if missing else "the environment gave no reward")
    reward = float(run.reward)
    if not math.isfinite(reward):
        raise NoRewardError(f"the reward is {reward}")
    return reward


def records(tasks: Iterable[Any]) -> Iterator[dict[str, Any]]:
    """Yield each task as a record of the job: its own columns, and `id`, `prompt`, `answer` and TASK_KEY."""
    for task in tasks:
        columns = columns_of(task.data)
        # The library's id may be missing, or repeat.
        if "id" in columns:
            columns["source_id"] = columns["id"]
        answer = columns.get("answer")
        is_plain = isinstance(answer, str | int | float) and not isinstance(answer, bool) and str(answer).strip()
        yield {
            **columns,
            "id": str(task.data.idx),
            "prompt": prompt_of(columns),
            "answer": str(answer) if is_plain else NO_ANSWER,
            TASK_KEY: task.key,
        }


def columns_of(data: Any) -> dict[str, Any]:
    """Return the fields of a task's data that have a value of their own, whole: a message's role is a default."""
    whole = data.model_dump(mode="json")
    columns = {name: whole[name] for name in data.model_dump(mode="json", exclude_defaults=True)}
    if isinstance(columns.get("prompt"), list):
        columns["prompt"] = [
            {key: value for key, value in message.items() if value is not None} for message in columns["prompt"]
        ]
    return columns


def prompt_of(columns: Mapping[str, Any]) -> str | list[dict[str, Any]]:
    """Return what a task begins with: a text, or messages if it has more than that. The environment sends its own;
    the job measures this one, and shows it.
    """
    prompt, system = columns.get("prompt"), columns.get("system_prompt")
    if prompt is None:
        prompt = columns.get("description") or columns.get("name") or "(the environment opens the conversation)"
    if isinstance(prompt, str) and not system:
        return prompt
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    return [{"role": "system", "content": system}, *messages] if system else messages


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """One attempt at one answer."""

    base_url: str
    api_key: str = dataclasses.field(repr=False)
    task_key: str


class Gateway:
    """The port of a rollout where sessions are taken: docs/agents.md#a-session."""

    def __init__(self, address: str, key: str, http: httpx.AsyncClient) -> None:
        self._address, self._key, self._http = address, key, http

    async def take(self) -> Session | None:
        """Wait for a session; None if none came. Raises UnusableError for a wrong key, httpx.HTTPError."""
        answer = await self._post(f"{self._address}/v1/sessions", self._key, {"waitSeconds": WAIT_S})
        if answer.status_code == httpx.codes.UNAUTHORIZED:
            raise UnusableError("the gateway refuses the key in RLJOB_GATEWAY_KEY_FILE")
        answer.raise_for_status()
        if answer.status_code == httpx.codes.NO_CONTENT:
            return None
        body = answer.json()
        task_key = str(body["task"].get(TASK_KEY, ""))
        return Session(base_url=body["base_url"], api_key=body["api_key"], task_key=task_key)

    async def close(self, session: Session, reward: float) -> None:
        """Give the reward. Raises httpx.HTTPError, also for a session that is over."""
        await self._end(session, "close", {"reward": reward})

    async def abandon(self, session: Session) -> None:
        """Give the attempt up. Raises httpx.HTTPError, also for a session that is over."""
        await self._end(session, "abandon", {})

    async def _end(self, session: Session, how: str, body: object) -> None:
        (await self._post(f"{session.base_url}/{how}", session.api_key, body)).raise_for_status()

    async def _post(self, url: str, key: str, body: object) -> httpx.Response:
        return await self._http.post(url, json=body, headers={"Authorization": f"Bearer {key}"})


async def attempt(environment: Environment, gateway: Gateway, session: Session, key_variable: str) -> None:
    """Play a session to its end. Raises httpx.HTTPError where the gateway does not take the result."""
    # The library reads keys from the environment alone, and hides those with this name from programs that it starts.
    os.environ[key_variable] = session.api_key
    try:
        reward = await environment.play(session.task_key, base_url=session.base_url, key_variable=key_variable)
    except Exception as error:  # noqa: BLE001  # boundary: an environment may raise anything, and none of it is a reward
        reason = str(error) if isinstance(error, NoRewardError) else f"{type(error).__name__}: {error}"
        logger.warning("gave an attempt up: %.*s", LONGEST_REASON, reason)
        await gateway.abandon(session)
    else:
        await gateway.close(session, reward)
    finally:
        del os.environ[key_variable]


async def next_session(gateway: Gateway) -> Session:
    """Return the next session, however long it takes to come. Raises UnusableError for a wrong key."""
    while True:
        try:
            session = await gateway.take()
        except httpx.TransportError:
            # A rollout that starts, or is gone: minutes of it, and no news.
            await asyncio.sleep(RETRY_S)
        except httpx.HTTPStatusError as error:
            # As a rule a gateway that is full.
            logger.info("no session was opened: %.*s", LONGEST_REASON, error)
            await asyncio.sleep(RETRY_S)
        else:
            if session is not None:
                return session


async def work(environment: Environment, gateway: Gateway, turns: Iterator[int], key_variable: str) -> None:
    """Play sessions, one after the other, as long as there are turns, which workers share."""
    for _ in turns:
        session = await next_session(gateway)
        try:
            await attempt(environment, gateway, session, key_variable)
        except httpx.HTTPError as error:
            # A session that is over, or a rollout that is gone: the attempt is offered again.
            logger.info("the end of a session was not taken: %.*s", LONGEST_REASON, str(error) or type(error).__name__)


async def run(environment: Environment, gateway: Gateway, *, num_sessions: int, servings: Iterable[int]) -> None:
    """Play sessions, `num_sessions` at once. servings: how many to play before the environment is served again."""
    for length in servings:
        turns = iter(range(length))
        async with environment.serving(), asyncio.TaskGroup() as group:
            for number in range(num_sessions):
                group.create_task(work(environment, gateway, turns, f"RLJOB_SESSION_{number}_API_KEY"))


async def _run_forever(environment: Environment, num_sessions: int) -> None:
    address = os.environ["RLJOB_GATEWAY"]
    key = pathlib.Path(os.environ["RLJOB_GATEWAY_KEY_FILE"]).read_text(encoding="utf-8").strip()
    # Each session that is waited for has a connection. Certificates and proxies are those of the variables that the
    # library's client reads too.
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(timeout=3 * WAIT_S, limits=limits) as http:
        servings = itertools.repeat(SESSIONS_PER_SERVING)
        await run(environment, Gateway(address, key, http), num_sessions=num_sessions, servings=servings)


def _export(environment: LoadedEnvironment, path: pathlib.Path) -> None:
    lines = [json.dumps(record) + "\n" for record in records(environment.tasks.values())]
    path.write_text("".join(lines), encoding="utf-8")
    logger.info("wrote %d records to %s", len(lines), path)


def _options(text: str) -> dict[str, Any]:
    options = json.loads(text)
    if not isinstance(options, dict) or not isinstance(options.get("taskset", {}), dict):
        raise ValueError("an object is expected, and one at taskset")
    return options


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Environments of verifiers as agents of a job.")
    commands = parser.add_subparsers(dest="command", required=True)
    exporting = commands.add_parser("export", help="write the environment's tasks as JSONL, for data.train")
    exporting.add_argument("--out", type=pathlib.Path, required=True, help="the file")
    running = commands.add_parser("run", help="play the sessions of a job; agents.command")
    running.add_argument("--sessions", type=int, default=8, choices=range(1, 257), metavar="N", help="1 to 256 at once")
    for command in (exporting, running):
        command.add_argument("--environment", required=True, help="id of a task set: an installed package, or a module")
        command.add_argument("--args", type=_options, default={}, help="the block env of the library's config, as JSON")
        command.add_argument(
            "--limit", type=int, metavar="N", help="use the first N tasks alone; the same for both commands"
        )
    return parser.parse_args()


def main() -> int:
    """Return the exit code: 78 for what cannot be played."""
    arguments = _arguments()
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    # Lines for each call and each run, with addresses of sessions.
    for name in ("httpx", "aiohttp.access", "verifiers"):
        logging.getLogger(name).setLevel(logging.WARNING)
    # A module of the folder that it was started in; behind everything that is installed.
    sys.path.append(os.getcwd())
    exit_code = 0
    try:
        environment = LoadedEnvironment(arguments.environment, arguments.args, arguments.limit)
        if arguments.command == "export":
            _export(environment, arguments.out)
        else:
            asyncio.run(_run_forever(environment, arguments.sessions))
    except* UnusableError as group:
        logger.error("%s", group.exceptions[0])
        exit_code = 78
    return exit_code


if __name__ == "__main__":
    sys.exit(main())
