"""Fakes of environments, whose commands are functions of this process; and groups that work with a shell."""

import contextlib
from collections.abc import AsyncIterator, Callable, Mapping

from rljob_api import enums, process_config, types
from rljob_testing import episodes
from rljob_testing import rollout as fakes
from rljob_workers.rollout import generation, group
from rljob_workers.rollout.episodes import protocols, shell_tool, tool_use
from rljob_workers.rpc import environment
from rljob_workers.runtime import clock as clocks
from rljob_workers.runtime import metrics

JOB = process_config.JobIdentity(name="shells", namespace="tests", uid="uid")

# What a command gives; raises for a place that is lost.
Answers = Callable[[str], environment.Reply]


def says(text: str = "", **fields: object) -> environment.Reply:
    return environment.Reply(stdout=text.encode(), **fields)  # type: ignore[arg-type]  # its fields


class FakePlace:
    """`events` lists what it was asked; `files` is what was written."""

    def __init__(self, answers: Answers, events: list[str]) -> None:
        self.answers, self.events, self.files = answers, events, dict[str, bytes]()

    async def exec(self, command: str, *, timeout_s: float, max_output: int) -> environment.Reply:
        assert timeout_s > 0, "a command has a time"
        assert max_output > 0, "and an output"
        self.events.append(command)
        return self.answers(command)

    async def write(self, path: str, data: bytes) -> None:
        if path.startswith("/"):
            raise environment.RefusedError(f"{path} is outside")
        self.events.append(f"write {path}")
        self.files[path] = data


class FakePlaces:
    """Lends a new place each time."""

    def __init__(self, answers: Answers | Mapping[str, environment.Reply]) -> None:
        self.answers: Answers = answers if callable(answers) else answers.__getitem__
        self.events: list[str] = []

    @contextlib.asynccontextmanager
    async def open(self, episode: str, *, wait_s: float) -> AsyncIterator[FakePlace]:
        assert wait_s > 0, "a claim has a time"
        self.events.append(f"claim {episode}")
        try:
            yield FakePlace(self.answers, self.events)
        finally:
            self.events.append("release")


class Weights:
    """Version 0 is served."""

    async def serves(self, lease: types.GroupLease) -> None:
        assert lease.from_version == 0, "no other version is asked for"


def line(command: str) -> generation.GenerationResult:
    """Return a command as a model would have sampled it, in ids of characters."""
    ids = (*map(ord, command), episodes.EOS)
    return generation.GenerationResult(
        output_ids=ids, logprobs=(-0.5,) * len(ids), versions=(0,) * len(ids), stop_reason="stop"
    )


def group_runner(
    generator: generation.Generator, places: shell_tool.Places, clock: clocks.Clock, *, num_turns: int
) -> group.GroupRunner:
    """Return what runs groups of `tool_use` as a rollout does, in a terminal's notation, ten attempts each."""
    tokens = fakes.FakeTokens()
    collector = tool_use.ToolUseCollector(
        tool_use.ToolUseConfig(tools=("shell",), notation="terminal", num_turns=num_turns, command_seconds=60.0),
        tokens=tokens,
        template="raw",
        max_model_len=1024,
        places=places,
    )
    return runner_of(collector, generator, clock)


def runner_of(
    collector: protocols.RolloutCollector, generator: generation.Generator, clock: clocks.Clock
) -> group.GroupRunner:
    """Return what runs groups of a collector as a rollout does, ten attempts each; every answer is right."""
    tokens = fakes.FakeTokens()
    return group.GroupRunner(
        generator=generator,
        flow=group.Flow(tokens=tokens, collector=collector),
        flow_by_suite={},
        verifiers=fakes.FakeGrading([]),
        receiver=Weights(),  # type: ignore[arg-type]  # all that a group asks of it
        max_attempts=10,
        clock=clock,
        metrics=metrics.Metrics(role=enums.Role.ROLLOUT, job=JOB),
    )
