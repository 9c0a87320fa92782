"""One reward's judge: from an answer, or two of a group, to a score from 0 to 1; remembered, and asked once at a time.

What was judged once is not asked again: every rollout of a job calls this one process. The key is a digest of all that
the judge is told but the marker, which differs per call.
"""

import asyncio
import collections
import hashlib
import json
import secrets
from collections.abc import Awaitable, Mapping, Sequence

from rljob_api import enums, errors, types
from rljob_api.manifest.reward_options import JudgeOptions, pairs
from rljob_workers.judge import calls, forms
from rljob_workers.runtime import clock as clocks
from rljob_workers.runtime import judge_costs

MAX_REMEMBERED = 65_536
# The first question, and one more where the reply to it holds no verdict.
_SEEDS = (0, 1)
_MARKER_BYTES = 8

Score = float | calls.UnavailableError


class Judge:
    """Asks for the scores of one reward."""

    def __init__(self, *, options: JudgeOptions, door: calls.Calls, clock: clocks.Clock) -> None:
        self._options, self._door, self._clock = options, door, clock
        self._running: dict[bytes, asyncio.Task[float]] = {}
        self._remembered: collections.OrderedDict[bytes, float] = collections.OrderedDict()

    @property
    def cost(self) -> judge_costs.Cost:
        """What its calls have cost."""
        return self._door.cost

    @property
    def compares(self) -> bool:
        """Whether it judges the answers of a group by one another."""
        return self._options.form == "pairwise"

    def check(self, item: types.VerifyItem) -> None:
        """Raise RecordError for a record without a column that the template needs."""
        self._question(item, ())

    async def scores(self, items: Sequence[types.VerifyItem]) -> list[Score]:
        """Return the score of each answer, from 0 to 1, or why there is none.

        In a comparison all have one or none has: a share of wins over those that were judged by chance is no reward.
        """
        deadline = self._clock.monotonic() + self._options.deadline_seconds
        if self.compares:
            return await self._win_shares(items, deadline)
        return await _all([self._answer(item, deadline) for item in items])

    async def ask_once(self, deadline_s: float) -> bool:
        """Return whether a reply to a small question holds a verdict. Raises UnavailableError without a reply."""
        answers = ("2", "3") if self.compares else ("2",)
        question = forms.Question("How much is 1 + 1?", "2", answers)
        reply = await self._reply(question, seed=0, deadline=self._clock.monotonic() + deadline_s)
        return forms.score(self._options, reply) is not None

    async def _answer(self, item: types.VerifyItem, deadline: float) -> float:
        if not item.completion.strip():
            # Nothing to judge: the lowest score without a call.
            return 0.0
        return await self._judged(self._question(item, (item.completion,)), deadline)

    async def _win_shares(self, items: Sequence[types.VerifyItem], deadline: float) -> list[Score]:
        if len(items) < 2:
            # Its siblings failed, or have their verdicts: there is nobody left to compare it with.
            return [calls.UnavailableError("no other answer of its group is there to compare it with") for _ in items]
        compared = pairs(len(items), self._options.opponents)
        wins = await _all([self._win(items[first], items[second], deadline) for first, second in compared])
        won: list[list[float]] = [[] for _ in items]
        for (first, second), win in zip(compared, wins, strict=True):
            if isinstance(win, calls.UnavailableError):
                return [win for _ in items]
            won[first].append(win)
            won[second].append(1.0 - win)
        return [sum(own) / len(own) for own in won]

    async def _win(self, first: types.VerifyItem, second: types.VerifyItem, deadline: float) -> float:
        """Return 1 if the first answer is better, 0 if the second is, 0.5 for a tie."""
        texts = first.completion.strip(), second.completion.strip()
        if texts[0] == texts[1]:
            return 0.5
        if not all(texts):
            return float(bool(texts[0]))
        # Judges favor a position: which answer comes first is as good as random, and the same each time.
        swapped = _digest(list(texts))[0] % 2 == 1
        ordered = (second, first) if swapped else (first, second)
        win = await self._judged(self._question(first, tuple(item.completion for item in ordered)), deadline)
        return 1.0 - win if swapped else win

    def _question(self, item: types.VerifyItem, answers: tuple[str, ...]) -> forms.Question:
        options = self._options
        question = _column(item, options.question_column) if options.question_column else item.prompt
        reference = _column(item, options.reference_column) if options.reads_reference else ""
        return forms.Question(question, reference, answers)

    async def _judged(self, question: forms.Question, deadline: float) -> float:
        key = _digest(
            [self._options.url, forms.path(self._options), forms.body(self._options, question, marker="-", seed=0)]
        )
        if key in self._remembered:
            self._remembered.move_to_end(key)
            self._door.count(enums.JudgeCall.CACHED)
            return self._remembered[key]
        task = self._running.get(key)
        if task is None:
            task = self._running[key] = asyncio.create_task(self._ask(question, deadline))
            task.add_done_callback(lambda done: self._ended(key, done))
        else:
            self._door.count(enums.JudgeCall.CACHED)
        # A caller that goes away must not end a question that another one has joined.
        return await asyncio.shield(task)

    async def _ask(self, question: forms.Question, deadline: float) -> float:
        for seed in _SEEDS:
            score = forms.score(self._options, await self._reply(question, seed=seed, deadline=deadline))
            if score is not None:
                return score
            self._door.count(enums.JudgeCall.UNREADABLE)
            if self._options.form == "score":
                break
        raise calls.UnavailableError("no verdict could be read in its replies")

    async def _reply(self, question: forms.Question, *, seed: int, deadline: float) -> Mapping[str, object]:
        body = forms.body(self._options, question, marker=f"text-{secrets.token_hex(_MARKER_BYTES)}", seed=seed)
        return await self._door.ask(forms.path(self._options), body, deadline=deadline)

    def _ended(self, key: bytes, task: "asyncio.Task[float]") -> None:
        self._running.pop(key, None)
        if task.cancelled() or task.exception() is not None:
            return
        self._remembered[key] = task.result()
        while len(self._remembered) > MAX_REMEMBERED:
            self._remembered.popitem(last=False)


async def _all(questions: Sequence[Awaitable[float]]) -> list[Score]:
    """Return what each gives, or that the judge is not available; anything else rises once all have ended."""
    results = await asyncio.gather(*questions, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException) and not isinstance(result, calls.UnavailableError):
            raise result
    return [result for result in results if isinstance(result, float | calls.UnavailableError)]


def _column(item: types.VerifyItem, name: str) -> str:
    """Return a column of the record as text; of several, all."""
    value = item.columns.get(name)
    values = value if isinstance(value, list | tuple) else [value]
    texts = [each if isinstance(each, str) else json.dumps(each) for each in values if each is not None]
    if not any(text.strip() for text in texts):
        raise errors.RecordError(f"the judge needs column {name!r}, which is missing or empty")
    return " or ".join(texts)


def _digest(value: object) -> bytes:
    return hashlib.blake2b(json.dumps(value, sort_keys=True).encode("ascii"), digest_size=16).digest()
