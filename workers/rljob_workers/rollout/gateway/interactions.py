"""The calls of one episode and what they earn: places, rewards, retry orphans, discount, rows. Pure.

Order: calls finish, `reward` (and retry orphans go), `discount`, `rows`. Source: docs/design/workflows.md#s-7.

    call 0  [u1] -> a1 ------ call 1  [u1 a1 u2] -> a2 ------ call 2  [u1 a1 u2 a2 u3] -> a3     goes on: their ids
                       `.... call 3  [u1 a1 u2 a2' u3] -> a4                                     fork: a2' is not a2

A call goes on from the earlier one whose messages and answer its own begin with, by the very ids that were sampled.
What an assistant is said to have said and was not sampled there (a2') makes it a fork: a row of its own, whose prompt
has the ids up to a1 and is masked as a whole. So no token is trained that was not sampled after exactly the ids before.
"""

import dataclasses
import hashlib
import itertools
import logging
import math
from collections.abc import Mapping, Sequence
from typing import Literal

from rljob_api import errors, types
from rljob_workers.rollout import generation
from rljob_workers.rollout.episodes import agent, rows, turns
from rljob_workers.rollout.gateway import conversation
from rljob_workers.runtime import redaction

logger = logging.getLogger(__name__)
Export = Literal["individual", "concat"]


@dataclasses.dataclass(slots=True, kw_only=True, eq=False)
class Interaction:
    """One call: what was asked, what was sampled, what it earned, and the verdict where a grader gave that. `parent` is
    the call that it goes on from.
    """

    id: str
    call: conversation.Call
    prompt_ids: tuple[int, ...]
    created: int
    parent: "Interaction | None"
    output: conversation.Message | None = None
    result: generation.GenerationResult | None = None
    reward: float | None = None
    verdict: types.Verdict | None = None
    returns: float = 0.0

    @property
    def question(self) -> tuple[object, ...]:
        """Return what a repeat of the call has in common with it."""
        return self.call.messages, self.call.prompt, self.call.tools, self.call.stops

    @property
    def ids(self) -> tuple[int, ...]:
        """Return the prompt and, once it was answered, the answer."""
        return self.prompt_ids if self.result is None else self.prompt_ids + self.result.output_ids


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a call belongs among the earlier ones.

    base: the answered call whose conversation this one begins with, None for a new conversation. num_shared: of its
    messages, or characters or ids of its plain prompt, those that base has. forked: the client rewrote what followed.
    """

    base: Interaction | None = None
    num_shared: int = 0
    forked: bool = False


class Interactions:
    """The calls of one episode, in order of creation."""

    def __init__(self) -> None:
        self._all: list[Interaction] = []
        self._num_begun = 0
        self.num_forks = 0
        self._discounted = False
        # Of answered calls, by digest: the one whose messages and answer these are; whether these were the messages.
        self._by_conversation: dict[bytes, Interaction] = {}
        self._answered: set[bytes] = set()

    def place(self, call: conversation.Call) -> Place:
        """Return where a call belongs; among equal earlier calls the latest counts."""
        return self._place_of_prompt(call.prompt) if call.prompt is not None else self._place_of_messages(call)

    def _place_of_messages(self, call: conversation.Call) -> Place:
        keys = _prefix_keys(call.tools, call.messages)
        depth = next((count for count in reversed(range(len(keys))) if keys[count] in self._by_conversation), 0)
        base = self._by_conversation.get(keys[depth])
        claimed = [
            keys[depth + index] in self._answered
            for index, message in enumerate(call.messages[depth:])
            if message.role == conversation.ASSISTANT
        ]
        # Without a base, an assistant's message may also be an example that the client begins with.
        return Place(base=base, num_shared=depth, forked=bool(claimed) if base is not None else any(claimed))

    def _place_of_prompt(self, prompt: str | tuple[int, ...]) -> Place:
        plain = [call for call in self.finished() if type(call.call.prompt) is type(prompt)]
        continued = [
            (len(text), call.created, call) for call in plain for text in _plain(call) if _begins(prompt, text)
        ]
        length, _, base = max(continued, default=(0, 0, None), key=lambda candidate: candidate[:2])
        prompts = [call.call.prompt for call in plain if call is not base and call.call.prompt is not None]
        forked = any(length <= len(before) < len(prompt) and _begins(prompt, before) for before in prompts)
        return Place(base=base, num_shared=length, forked=forked)

    def begin(self, call: conversation.Call, *, prompt_ids: tuple[int, ...], place: Place) -> Interaction:
        """Return a call that is in flight. It is the child of `place.base` if its ids go on from those and it is no
        fork.
        """
        base = place.base
        goes_on = base is not None and prompt_ids[: len(base.ids)] == base.ids
        if place.forked or (base is not None and not goes_on):
            self.num_forks += 1
        interaction = Interaction(
            id=f"call-{self._num_begun}",
            call=call,
            prompt_ids=prompt_ids,
            created=self._num_begun,
            parent=base if goes_on and not place.forked else None,
        )
        self._num_begun += 1
        self._all.append(interaction)
        return interaction

    def finish(
        self, interaction: Interaction, *, output: conversation.Message, result: generation.GenerationResult
    ) -> None:
        """Take the answer of a call."""
        interaction.output, interaction.result = output, result
        if interaction.call.prompt is not None:
            return
        *_, messages_key, conversation_key = _prefix_keys(interaction.call.tools, (*interaction.call.messages, output))
        self._answered.add(messages_key)
        twin = self._by_conversation.get(conversation_key)
        if twin is None or twin.created < interaction.created:
            self._by_conversation[conversation_key] = interaction

    def finished(self) -> list[Interaction]:
        """Return the calls that were answered, in order of creation."""
        return [call for call in self._all if call.result is not None]

    def in_flight(self) -> int:
        """Return how many calls were begun and never answered."""
        return len(self._all) - len(self.finished())

    def last_answer(self, *, drop_orphans: bool) -> Interaction | None:
        """Return the answered call that would get an agent's one reward, None if there is none."""
        if drop_orphans:
            self.drop_retry_orphans()
        return next(reversed(self.finished()), None)

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
            twins = [twin for twin in self._all if twin.question == call.question]
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
        """Return a row per call, or one per leaf with its ancestors' tokens; none if no call was answered."""
        if self.in_flight():
            logger.warning("%d calls were still in flight and are left out", self.in_flight())
        if self.num_forks:
            logger.info("%d calls are forks: the agent or the chat template rewrote answers", self.num_forks)
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


def _prefix_keys(tools: str, messages: Sequence[conversation.Message]) -> list[bytes]:
    """Return a digest of the first 0, 1, ... messages: other tools are another prompt from its first tokens on."""
    begun = hashlib.blake2b(tools.encode(), digest_size=16).digest()
    # Of a dataclass of texts, repr tells any two apart.
    return list(itertools.accumulate(messages, _joined, initial=begun))


def _joined(key: bytes, message: conversation.Message) -> bytes:
    return hashlib.blake2b(key + repr(message).encode(), digest_size=16).digest()


def _plain(call: Interaction) -> Sequence[str | tuple[int, ...]]:
    """Return prompt and answer of a plain call as its client may have them: with the stop that ended it, whose ids were
    sampled, or without.
    """
    assert call.result is not None, "only of answered calls"
    assert call.output is not None, "only of answered calls"
    if isinstance(call.call.prompt, str):
        text = call.call.prompt + call.output.content
        return (text, text + call.result.matched_stop)
    return (call.ids,)


def _begins(whole: str | tuple[int, ...], first: str | tuple[int, ...]) -> bool:
    return whole[: len(first)] == first


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
        assert list(call.prompt_ids[: len(row.ids)]) == row.ids, "a child continues its parent's ids"
        row.insert(call.prompt_ids[len(row.ids) :])
        row.sample(call.result, turn=turn + offset)
    leaf = chain[-1]
    assert leaf.result is not None, "calls in flight are in no chain"
    raw = leaf.reward or 0.0
    return row.finished(
        last=leaf.result,
        reward=leaf.returns,
        raw_reward=raw,
        verdict=leaf.verdict or agent.verdict_of(raw, grader="agent"),
        num_turns=len(chain),
    )
