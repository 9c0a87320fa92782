"""The calls of one episode and what they earn: parents, rewards, retry orphans, discount, rows. Pure.

Order: calls finish, `reward` (and retry orphans go), `discount`, `rows`. Source: docs/design/workflows.md#s-7.
"""

import dataclasses
import logging
import math
from collections.abc import Mapping, Sequence
from typing import Literal

from rljob_api import errors, types
from rljob_workers.rollout import generation
from rljob_workers.rollout.episodes import agent, rows, turns
from rljob_workers.rollout.openai import tools
from rljob_workers.runtime import redaction

logger = logging.getLogger(__name__)
Export = Literal["individual", "concat"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One message of a conversation: an answer may call tools, and a message of role `tool` answers such a call."""

    role: str
    content: str
    tool_calls: tuple[tools.ToolCall, ...] = ()
    tool_call_id: str = ""


@dataclasses.dataclass(slots=True, kw_only=True, eq=False)
class Interaction:
    """One call: what was asked, what was sampled, what it earned. `parent` is the call that it goes on from.

    tools: the JSON list of tools that the prompt declares, "" for none.
    """

    id: str
    messages: tuple[Message, ...]
    tools: str
    prompt_ids: tuple[int, ...]
    created: int
    parent: "Interaction | None"
    output: Message | None = None
    result: generation.GenerationResult | None = None
    reward: float | None = None
    returns: float = 0.0

    @property
    def conversation(self) -> tuple[Message, ...]:
        return self.messages if self.output is None else (*self.messages, self.output)


class Interactions:
    """The calls of one episode, in order of creation."""

    def __init__(self) -> None:
        self._all: list[Interaction] = []
        self._num_begun = 0
        self.num_rewritten = 0
        self._discounted = False

    def parent_of(self, messages: Sequence[Message], *, tools: str = "") -> Interaction | None:
        """Return the longest finished call with the same tools whose messages and answer these messages begin with.

        Where only its messages do, the agent rewrote the answer: counted and logged, and there is no parent.
        """
        prompt = tuple(messages)
        # Other tools are another prompt from its first tokens on.
        earlier = [call for call in self._all if call.output is not None and call.tools == tools]
        continued = [call for call in earlier if _begins(prompt, call.conversation)]
        if continued:
            return max(continued, key=lambda call: (len(call.messages), call.created))
        if any(_begins(prompt, call.messages) and len(prompt) > len(call.messages) for call in earlier):
            self.num_rewritten += 1
            logger.warning("a call rewrote an earlier answer; it has no parent (%d so far)", self.num_rewritten)
        return None

    def begin(self, messages: Sequence[Message], *, prompt_ids: tuple[int, ...], tools: str = "") -> Interaction:
        """Return a call that is in flight."""
        interaction = Interaction(
            id=f"call-{self._num_begun}",
            messages=tuple(messages),
            tools=tools,
            prompt_ids=prompt_ids,
            created=self._num_begun,
            parent=self.parent_of(messages, tools=tools),
        )
        self._num_begun += 1
        self._all.append(interaction)
        return interaction

    def finished(self) -> list[Interaction]:
        """Return the calls that were answered, in order of creation."""
        return [call for call in self._all if call.result is not None]

    def in_flight(self) -> int:
        """Return how many calls were begun and never answered."""
        return len(self._all) - len(self.finished())

    def reward(self, returned: object, *, drop_orphans: bool = False) -> None:
        """Take what the agent returned: a number for the last call, or numbers by id; drop retry orphans if asked.

        A call that was rewarded by its id is dropped for no twin that was not, and a number goes to no call that is
        dropped. Raises EpisodeError for another type, an id that does not exist or a number that is not finite.
        """
        by_id = {call.id: call for call in self.finished()}
        if isinstance(returned, Mapping):
            for key, value in returned.items():
                if key not in by_id:
                    raise errors.EpisodeError(
                        f"the agent rewarded a call that does not exist; there are {', '.join(by_id) or 'none'}"
                    )
                by_id[key].reward = _number(value, f"reward of {key}")
        if drop_orphans:
            self.drop_retry_orphans()
        done = self.finished()
        if done and not isinstance(returned, Mapping):
            done[-1].reward = _number(returned, "reward")
        if done and done[-1].reward is None:
            logger.warning("the last call has no reward; it counts 0")
            done[-1].reward = 0.0

    def drop_retry_orphans(self) -> int:
        """Drop all but one of the calls with the same messages: a client that timed out repeats its call.

        A repeat that never got its answer displaces none that did. Of the answered ones those without children go where
        one has any; else the latest that the agent rewarded by its id stays, else the latest. Return how many went.
        Raises EpisodeError after the discount.
        """
        if self._discounted:
            raise errors.EpisodeError("retry orphans are dropped before the discount")
        remaining: list[Interaction] = []
        parents = {id(call.parent) for call in self._all if call.parent is not None}
        for call in self._all:
            twins = [twin for twin in self._all if (twin.messages, twin.tools) == (call.messages, call.tools)]
            answered = [twin for twin in twins if twin.result is not None] or twins
            with_children = [twin for twin in answered if id(twin) in parents]
            rewarded = [twin for twin in answered if twin.reward is not None]
            if call in (with_children or rewarded[-1:] or answered[-1:]):
                remaining.append(call)
        dropped = len(self._all) - len(remaining)
        self._all = remaining
        return dropped

    def discount(self, factor: float) -> float:
        """Run rewards back in order of creation, an unset one counting 0; return the total of the undiscounted ones.

        Raises EpisodeError the second time.
        """
        if self._discounted:
            raise errors.EpisodeError("the rewards of an episode are discounted once")
        self._discounted = True
        done = self.finished()
        earned = [call.reward or 0.0 for call in done]
        for call, value in zip(done, turns.back_propagated(earned, discount=factor), strict=True):
            call.returns = value
        return math.fsum(earned)

    def rows(self, export: Export) -> tuple[types.Trajectory, ...]:
        """Return a row per call, or one per leaf with its ancestors' tokens; none if no call was answered.

        Raises EpisodeError if a call's prompt does not begin with the ids of its parent.
        """
        if self.in_flight():
            logger.warning("%d calls were still in flight and are left out", self.in_flight())
        done = self.finished()
        if export == "individual":
            return tuple(_row([call], turn=index) for index, call in enumerate(done))
        parents = {id(call.parent) for call in done if call.parent is not None}
        trajectories: list[types.Trajectory] = []
        turn = 0
        for leaf in (call for call in done if id(call) not in parents):
            chain = _chain(leaf)
            trajectories.append(_row(chain, turn=turn))
            turn += len(chain)
        return tuple(trajectories)


def _begins(messages: Sequence[Message], first: Sequence[Message]) -> bool:
    return tuple(messages[: len(first)]) == tuple(first)


def _number(value: object, what: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise errors.EpisodeError(f"the agent's {what} is {redaction.brief(value)}, but must be a finite number")
    return float(value)


def _chain(leaf: Interaction) -> list[Interaction]:
    chain = [leaf]
    while chain[-1].parent is not None:
        chain.append(chain[-1].parent)
    return chain[::-1]


def _row(chain: Sequence[Interaction], *, turn: int) -> types.Trajectory:
    """Return the calls of a chain as one row; `turn` numbers the first, so that no two rows share one."""
    row = rows.RowBuilder()
    for offset, call in enumerate(chain):
        assert call.result is not None, "calls in flight are in no chain"
        if list(call.prompt_ids[: len(row.ids)]) != row.ids:
            raise errors.EpisodeError(
                f"the prompt of {call.id} does not begin with the ids of {chain[offset - 1].id}: the chat template is"
                " not append-only; set spec.workflow.config.proxy.export to individual"
            )
        row.insert(call.prompt_ids[len(row.ids) :])
        row.sample(call.result, turn=turn + offset)
    leaf = chain[-1]
    assert leaf.result is not None, "calls in flight are in no chain"
    raw = leaf.reward or 0.0
    return row.finished(
        last=leaf.result,
        reward=leaf.returns,
        raw_reward=raw,
        verdict=agent.verdict_of(raw, grader="agent"),
        num_turns=len(chain),
    )
