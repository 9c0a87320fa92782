"""The seams of an episode: who acts, what answers, who collects, who grades. Shapes: docs/design/workflows.md#s-2.

A class that fits one of these Protocols needs no base class of ours. `None` from a collector means rejected: not
trained, counted. An exception means a failed attempt, which is tried again. Neither ever becomes a reward of zero.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from rljob_api import types
from rljob_workers.rollout import generation

if TYPE_CHECKING:
    from rljob_workers.rollout.gateway import tools

ObsT = TypeVar("ObsT")
ActionT = TypeVar("ActionT")
SeenT = TypeVar("SeenT", covariant=True)
TakenT = TypeVar("TakenT", contravariant=True)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What an episode is about: the record, its prompt ids and the text that they spell."""

    record: types.PromptRecord
    input_ids: tuple[int, ...]
    prompt_text: str

    @property
    def query_id(self) -> str:
        return self.record.prompt_id


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TurnRecord:
    """What dumps report on a turn: lengths in tokens, first and last version that sampled it, the verdict's reason."""

    raw_reward: float
    prompt_len: int
    answer_len: int
    version_start: int
    version_end: int
    stop_reason: str
    reason: str

    @property
    def success(self) -> bool:
        """Return whether the answer earned anything."""
        return self.raw_reward > 0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """The rows of one episode, `sample_index` 0 in each: the worker knows the member, the episode does not.

    `turns` may be empty: they are for dumps alone.
    """

    rows: tuple[types.Trajectory, ...]
    total_reward: float
    num_turns: int = 1
    turns: tuple[TurnRecord, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class AgentInput(Generic[ObsT]):
    """What an agent decides from."""

    obs: ObsT
    llm_client: generation.Generator
    gconfig: types.Sampling


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class AgentOutput(Generic[ActionT]):
    """A decision and the generation behind it."""

    action: ActionT
    llm_req: generation.GenerationRequest
    llm_resp: generation.GenerationResult


class Agent(Protocol[ObsT, ActionT]):
    """Makes one decision at a time."""

    async def aact(self, agent_input: AgentInput[ObsT]) -> AgentOutput[ActionT]:
        """Decide."""

    async def areset(self) -> None:
        """Forget; called before every episode."""


class Environment(Protocol[SeenT, TakenT]):
    """Gymnasium's meaning, made async."""

    async def reset(
        self, *, seed: int | None = None, options: Mapping[str, object] | None = None
    ) -> tuple[SeenT, Mapping[str, object]]:
        """Start; seeds its own generator only if `seed` is given."""

    async def step(self, action: TakenT) -> tuple[SeenT | None, float, bool, bool, Mapping[str, object]]:
        """Return obs, reward, terminated, truncated, info."""

    async def aclose(self) -> None:
        """Free everything; always called."""


class Grader(Protocol):
    """Grades one completion of the episode's task."""

    async def grade(
        self,
        *,
        prompt: str,
        completion: str,
        truncated: bool,
        prompt_ids: tuple[int, ...] = (),
        completion_ids: tuple[int, ...] = (),
    ) -> types.Verdict:
        """Return a verdict; one with reason infra_failure carries no reward. Raises GraderError for a bad record."""


class RolloutCollector(Protocol):
    """Runs one episode. One outstanding generation at a time; cancelling it aborts the generation."""

    async def arun_episode(
        self, *, llm_client: generation.Generator, gconfig: types.Sampling, task: Task, grader: Grader, seed: int
    ) -> Episode | None:
        """Return the rows, or None if the episode is rejected. Raises EngineError, EpisodeError or GraderError."""


class Tokens(Protocol):
    """What an episode needs from a tokenizer."""

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """Return the ids of EOS and pad."""

    def prompt_ids(self, record: types.PromptRecord) -> tuple[int, ...]:
        """Return the ids of a record's prompt."""

    def feedback_ids(self, text: str) -> tuple[int, ...]:
        """Return the ids between a closed answer and the next one: `text` as a user turn, the answer opened."""

    def chat_ids(
        self, messages: Sequence[Mapping[str, object]], *, tools: Sequence[Mapping[str, object]] = ()
    ) -> tuple[int, ...]:
        """Return the ids of a conversation, the next answer opened; `tools` are declared to the model."""

    def continuation_ids(
        self,
        before: Sequence[Mapping[str, object]],
        after: Sequence[Mapping[str, object]],
        *,
        tools: Sequence[Mapping[str, object]] = (),
    ) -> tuple[int, ...]:
        """Return the ids that `after`, the next answer opened, adds to `before`, which ends with a closed answer.

        Raises ManifestError if the chat template does not append turns.
        """

    def lone_message_ids(self, text: str) -> tuple[int, ...]:
        """Return the ids of a line break and `text` rendered as a conversation of its own, as AReaL put it."""

    def encode(self, text: str) -> tuple[int, ...]:
        """Return the ids of a plain text that begins a context."""

    def encode_more(self, text: str) -> tuple[int, ...]:
        """Return the ids of a plain text that goes on."""

    def plain(self, text: str) -> str:
        """Return a text that no one of the job wrote, without special tokens: a backslash goes into each."""

    def tool_notation(self, name: str, *, field: str) -> "tools.Notation | None":
        """Return the notation of tool calls whose parser has that name; for `auto` that of the chat template, None if
        there is none. Raises ManifestError that names `field` and the parsers.
        """

    def decode(self, ids: Sequence[int]) -> str:
        """Return text without special tokens."""

    def decode_exact(self, ids: Sequence[int]) -> str:
        """Return text with special tokens."""
