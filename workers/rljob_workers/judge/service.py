"""Wires a judge together: keys, calls, judging, gRPC server, probes. Started and ended as one."""

import asyncio
import dataclasses
import logging
import pathlib
from collections.abc import Mapping

import grpc.aio

from rljob_api import enums, errors, process_config
from rljob_api.manifest.reward_options import JudgeOptions
from rljob_workers.judge import calls, judging, model_server, transport, verdicts
from rljob_workers.rpc import channel, verify_service
from rljob_workers.runtime import clock as clocks
from rljob_workers.runtime import judge_costs, retry
from rljob_workers.runtime import metrics as metrics_module

logger = logging.getLogger(__name__)

_DRAIN_S = 5.0
_COSTS_S = 10.0
# How long the one question may take by which a judge is known to answer.
FIRST_QUESTION_S = 30.0


def key_of(reward: process_config.GraderConfig, options: JudgeOptions, environment: Mapping[str, str]) -> str:
    """Return the bearer token of a reward's judge, "" for none. Raises ManifestError where it is missing."""
    if options.api_key is None:
        return ""
    variable = options.api_key.variable
    key = environment.get(variable, "").strip()
    if not key or not all(33 <= ord(letter) < 127 for letter in key):
        state = "has characters that no header may have" if key else "is not set or empty"
        raise errors.ManifestError(
            f"reward {reward.name!r}: config.apiKey names Secret {options.api_key.name}, key {options.api_key.key},"
            f" which a judge reads from {variable}; that variable {state}: with rljob run, export it"
        )
    return key


def make_judges(
    config: process_config.JudgeConfig,
    *,
    environment: Mapping[str, str],
    metrics: metrics_module.Metrics,
    clock: clocks.Clock,
    post: transport.Post = transport.post,
    own_key: str = "",
) -> list[verdicts.Judge]:
    """Return the judge of each reward. own_key: that of the model which the judge serves itself. Raises ManifestError
    for a key that is not there.
    """
    judges = []
    for reward in config.rewards:
        options = JudgeOptions.model_validate(reward.config)
        is_own = config.server is not None and config.server.answers_at(options.url)
        door = calls.Calls(
            reward=reward.name,
            options=options,
            key=own_key if is_own else key_of(reward, options, environment),
            metrics=metrics,
            clock=clock,
            post=post,
        )
        judges.append(verdicts.Judge(options=options, door=door, clock=clock))
    return judges


@dataclasses.dataclass(frozen=True, slots=True)
class Unfit:
    """Why a judge's first answer is none. answered: it replied, and no verdict could be read."""

    answered: bool
    sentence: str


async def first_answer(name: str, judge: verdicts.Judge) -> Unfit | None:
    """Ask a reward's judge one small question; return what is wrong with the answer, None for nothing."""
    try:
        if await judge.ask_once(FIRST_QUESTION_S):
            return None
    except calls.UnavailableError as error:
        return Unfit(answered=False, sentence=f"reward {name!r}: the judge does not answer: {error}")
    return Unfit(
        answered=True,
        sentence=f"reward {name!r}: the judge answers, but its first reply had no verdict that can be read",
    )


class Service:
    """A whole judge. `start`, then `run` until `stop`, then `close`."""

    def __init__(
        self,
        config: process_config.JudgeConfig,
        *,
        environment: Mapping[str, str],
        clock: clocks.Clock | None = None,
        post: transport.Post = transport.post,
        model: model_server.ModelServer | None = None,
    ) -> None:
        """Build everything, start nothing. model: what the judge serves itself. Raises ManifestError for a key that is
        not there.
        """
        self._config, self._clock, self._model = config, clock or clocks.SystemClock(), model
        self.metrics = metrics_module.Metrics(role=enums.Role.JUDGE, job=config.job)
        self._judges = make_judges(
            config,
            environment=environment,
            metrics=self.metrics,
            clock=self._clock,
            post=post,
            own_key="" if model is None else model.key,
        )
        self._loaded = None if model is None else asyncio.Event()
        self.judging = judging.Judging(
            rewards=config.rewards,
            judges=self._judges,
            metrics=self.metrics,
            max_waiting=config.max_waiting,
            loaded=self._loaded,
        )
        self._server: grpc.aio.Server | None = None
        self._stopping = asyncio.Event()
        self._unanswered = "starting"
        self._folder = pathlib.Path(config.scratch_dir)
        self._earlier = judge_costs.read(self._folder)
        self.port = 0

    async def start(self) -> None:
        """Serve, and start the model. Raises UnavailableError; `close` is safe after that."""
        self._server = channel.aio_server(self._config)
        verify_service.serve(self.judging, self._server)
        self.port = channel.bind(self._server, f"{self._config.bind_host}:{self._config.port}", self._config.tls)
        await self._server.start()
        logger.info("judge served on %s:%d", self._config.bind_host, self.port)
        if self._model is not None:
            await self._model.start()

    def ready(self) -> tuple[bool, str]:
        """Return whether every judge has answered once, and if not why. Safe from another thread."""
        return (False, self._unanswered) if self._unanswered else (True, "ok")

    def stop(self) -> None:
        """Ask `run` to return."""
        self._stopping.set()

    async def run(self) -> None:
        """Return after `stop`. Raises what ended the first questions, which no judge does by not answering, and what
        ended the model.
        """
        first = asyncio.create_task(self._ask_all_once())
        stopped = asyncio.create_task(self._stopping.wait())
        lasting = [asyncio.create_task(self._keep_costs()), stopped]
        if self._model is not None:
            lasting.append(asyncio.create_task(self._model.until_ended()))
        try:
            await asyncio.wait([first, *lasting], return_when=asyncio.FIRST_COMPLETED)
            if first.done():
                first.result()
                await asyncio.wait(lasting, return_when=asyncio.FIRST_COMPLETED)
            for task in lasting:
                if task.done() and not stopped.done():
                    task.result()
        finally:
            for task in (first, *lasting):
                task.cancel()

    async def _ask_all_once(self) -> None:
        if self._model is not None and self._loaded is not None:
            self._unanswered = "its model is being loaded"
            await self._model.until_ready()
            self._loaded.set()
        for reward, judge in zip(self._config.rewards, self._judges, strict=True):
            backoff = retry.Backoff(first_s=1.0, most_s=30.0)
            while (problem := await first_answer(reward.name, judge)) and not problem.answered:
                self._unanswered = problem.sentence
                logger.warning("%s", problem.sentence)
                await self._clock.sleep(backoff.next_delay_s())
            if problem:
                logger.warning("%s", problem.sentence)
        self._unanswered = ""

    async def _keep_costs(self) -> None:
        while True:
            await asyncio.sleep(_COSTS_S)
            await asyncio.to_thread(self._write_costs)

    def _write_costs(self) -> None:
        costs = dict(self._earlier)
        for reward, judge in zip(self._config.rewards, self._judges, strict=True):
            # Rewards of several suites may have one name.
            costs[reward.name] = costs.get(reward.name, judge_costs.Cost()).plus(judge.cost)
        try:
            judge_costs.write(self._folder, costs)
        except OSError as error:
            # Nothing is graded by it.
            logger.warning("costs could not be written: %s", error)

    async def close(self) -> None:
        """Refuse new calls, give those under way 5 s, leave behind what all of them cost, and end the model."""
        if self._server is not None:
            await self._server.stop(_DRAIN_S)
            self._write_costs()
        if self._model is not None:
            await self._model.close()
