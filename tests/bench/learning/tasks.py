"""The tasks of the learning bench: questions, who grades an answer, and how the small base model came to answer.

Each has answers of a few tokens, questions that training never sees, and a score by a grader or environment of the
product. The base model (`base_model.py`) imitates `demonstrate`: it can answer, and mostly does so by a habit that is
wrong, as models before reinforcement learning do. What is learned is which habits to give up.
"""

import dataclasses
import itertools
import random
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from rljob_api import process_config
from rljob_testing import examples
from rljob_workers.verifier.graders import base, registry

guess_number = examples.generator("guess_number")
make_counting_data = examples.generator("make_counting_data")
make_word_sums_data = examples.generator("make_word_sums_data")
T = TypeVar("T")
NUM_HELD_OUT = 200
SEED = 20261125


@dataclasses.dataclass(frozen=True, slots=True)
class Record:
    """A question as the policy reads it, and the columns that its grader reads."""

    prompt: str
    columns: Mapping[str, object]


@dataclasses.dataclass(frozen=True, slots=True)
class Reply:
    """What an answer earned, and what the environment says next; None: the episode is over."""

    reward: float
    feedback: str | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Turn:
    """A demonstrated answer, and what the environment said to it; "" after the last one."""

    answer: str
    feedback: str = ""


class Episode(Protocol):
    """One attempt at one record."""

    def respond(self, answer: str) -> Reply:
        """Return what comes of an answer, its end token left out."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """`max_tokens`: of one answer, its end token included. pieces: texts that are one token each.

    demonstrate: a record's turns, right or by a wrong habit. begin: starts an episode.
    """

    name: str
    train: Sequence[Record]
    held_out: Sequence[Record]
    max_tokens: int
    pieces: Sequence[str]
    demonstrate: Callable[[Record, random.Random], Sequence[Turn]]
    begin: Callable[[Record], Episode]


@dataclasses.dataclass(frozen=True, slots=True)
class _Graded:
    """One answer, scored by a grader of the product."""

    grader: base.Grader
    record: Record

    def respond(self, answer: str) -> Reply:
        graded = base.Answer(prompt=self.record.prompt, completion=answer, columns=self.record.columns)
        grade = base.guarded(self.grader.quick, graded) or base.guarded(self.grader.grade, graded)
        assert grade is not None, "a grader decides in its second step"
        return Reply(grade.score or 0.0)


def _graded(kind: str, **options: object) -> Callable[[Record], Episode]:
    config = process_config.GraderConfig(name="score", type=kind, config=options)
    grader = registry.build([config], registry.BUILT_IN)[0]
    grader.warm()
    return lambda record: _Graded(grader, record)


def _split(records: Sequence[Record]) -> tuple[Sequence[Record], Sequence[Record]]:
    """Return training and held-out records, none in both; `records` are in random order."""
    return records[NUM_HELD_OUT:], records[:NUM_HELD_OUT]


def _shuffled(items: Sequence[T], seed: int = SEED) -> list[T]:
    return random.Random(seed).sample(items, len(items))


def _without_carry(first: int, second: int) -> int:
    return (first // 10 + second // 10) * 10 + (first + second) % 10


def order(records: Sequence[Record], *, seed: int, count: int) -> list[Record]:
    """Return the questions of a run: all records in random order, again and again, a function of the seed alone."""
    draw, ordered = random.Random(seed), list[Record]()
    while len(ordered) < count:
        ordered += draw.sample(records, len(records))
    return ordered[:count]


def addition() -> Task:
    """Sums below 100: the habit is to forget the carry, or to be off by one."""
    pairs = _shuffled([(first, second) for first in range(50) for second in range(50)])
    train, held_out = _split([Record(f"{a}+{b}=", {"a": a, "b": b, "answer": str(a + b)}) for a, b in pairs])

    def demonstrate(record: Record, draw: random.Random) -> Sequence[Turn]:
        a, b = (int(str(record.columns[name])) for name in "ab")
        (wrong,) = draw.choices((a + b, _without_carry(a, b), a + b + 1, max(a + b - 10, 0)), (25, 30, 25, 20))
        return (Turn(str(wrong)),)

    return Task(
        name="addition", train=train, held_out=held_out, max_tokens=4, pieces=(),
        demonstrate=demonstrate, begin=_graded("exact", firstLine=True),
    )  # fmt: skip


def word_sums() -> Task:
    """A format and an answer in it: `#### 47` after a calculation; a number in that format alone earns a tenth."""
    sums = [(a, b) for a in range(2, 50) for b in range(2, 50)]
    made = [make_word_sums_data.record("sum", index, pair) for index, pair in enumerate(_shuffled(sums))]
    train, held_out = _split([Record(f"{each['question']}\n", each) for each in made])

    def demonstrate(record: Record, draw: random.Random) -> Sequence[Turn]:
        a, b = (int(part) for part in str(record.columns["answer"]).split(" = ")[0].split(" + "))
        (sign, total), *_ = draw.choices((("+", a + b), ("-", abs(a - b)), ("+", _without_carry(a, b))), (45, 30, 25))
        text = f"{a} {sign} {b} = {total}"
        return (Turn(text + (f"\n#### {total}" if draw.random() < 0.5 else "")),)

    pieces = [*make_word_sums_data.NAMES, *make_word_sums_data.THINGS]
    pieces += [" has ", " and gets ", " more. How many ", " does ", " have now?\n", " + ", " - ", " = ", "\n#### "]
    return Task(
        name="word sums", train=train,
        held_out=held_out, max_tokens=14, pieces=pieces, demonstrate=demonstrate,
        begin=_graded("gsm8k", formatScore=0.1),
    )  # fmt: skip


def spelling() -> Task:
    """reasoning-gym's spell_backward with its partial credit: a part for each letter in its place."""
    import reasoning_gym

    items = reasoning_gym.create_dataset("spell_backward", seed=SEED, size=4000, min_word_len=4, max_word_len=7)
    unlike = {str(item["answer"]): item for item in items if str(item["answer"]).isascii()}
    train, held_out = _split([Record(str(item["question"]), item) for item in unlike.values()])

    def demonstrate(record: Record, draw: random.Random) -> Sequence[Turn]:
        right = str(record.columns["answer"])
        (text,) = draw.choices(
            (right, right[::-1], right[0] + right[1:][::-1], right[:-2] + right[-1] + right[-2], right[1:]),
            (20, 20, 20, 20, 20),
        )
        return (Turn(text),)

    return Task(
        name="spelling", train=train,
        held_out=held_out, max_tokens=9, pieces=["Spell this word backward (example: sun -> nus): "],
        demonstrate=demonstrate, begin=_graded("reasoning_gym"),
    )  # fmt: skip


def counting() -> Task:
    """Count one shape among up to eight things, the number in brackets."""
    make = make_counting_data
    draw = random.Random(SEED)
    scenes: dict[object, None] = {}
    while len(scenes) < 4000:
        things = tuple(
            (draw.choice(make.SIZES), draw.choice(make.COLOURS), draw.choice(make.SHAPES))
            for _ in range(draw.randint(2, make.MOST_OBJECTS))
        )
        scenes[things, draw.choice(make.SHAPES)] = None
    records = []
    for index, scene in enumerate(scenes):
        columns = make.record("count", index, scene)
        records.append(Record(columns["messages"][0]["content"], {**columns, "things": len(scene[0])}))
    train, held_out = _split(records)

    def demonstrate(record: Record, draw: random.Random) -> Sequence[Turn]:
        right, things = (int(str(record.columns[name])) for name in ("answer", "things"))
        (number,) = draw.choices((right, right + 1, things, max(right - 1, 0)), (35, 30, 20, 15))
        return (Turn(f"[{number}]" if draw.random() < 0.6 else str(number)),)

    pieces = [f"a {' '.join(thing)}" for thing in itertools.product(make.SIZES, make.COLOURS, make.SHAPES)]
    pieces += ["On the table: ", ", ", ". How many ", *(f"{shape}s are there" for shape in make.SHAPES)]
    pieces += ["? Answer with the number in square brackets, as [2]."]
    return Task(
        name="counting", train=train, held_out=held_out,
        max_tokens=4, pieces=pieces, demonstrate=demonstrate, begin=_graded("clevr_count_70k"),
    )  # fmt: skip


class _Guess:
    """An episode of the example's own environment."""

    def __init__(self, record: Record) -> None:
        self._game = guess_number.GuessNumber({"tries": 3})
        _now(self._game.reset(options=record.columns))

    def respond(self, answer: str) -> Reply:
        hint, reward, ended, _, _ = _now(self._game.step(answer))
        return Reply(reward, None if ended else f"{hint}\n")


def _now(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that waits for nothing."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    raise AssertionError("it waits")


def guessing() -> Task:
    """Several turns with feedback: a number from 1 to 9 in three guesses. Hints must be used, and the range halved.

    The best policy finds seven of the nine numbers.
    """
    prompt = _now(guess_number.GuessNumber({}).reset(options={"answer": 1}))[0] + "\n"
    records = [Record(prompt, {"answer": str(number)}) for number in range(1, 10)]

    def demonstrate(record: Record, draw: random.Random) -> Sequence[Turn]:
        episode, low, high, turns = _Guess(record), 1, 9, list[Turn]()
        heeds_hints = draw.random() < 0.5
        while True:
            guess = draw.randint(low, high) if heeds_hints else draw.randint(1, 9)
            reply = episode.respond(str(guess))
            turns.append(Turn(str(guess), reply.feedback or ""))
            if reply.feedback is None:
                return turns
            low, high = (max(low, guess + 1), high) if reply.feedback == "Larger.\n" else (low, min(high, guess - 1))

    return Task(
        name="guessing", train=records,
        held_out=[record for record in records for _ in range(NUM_HELD_OUT // 9)], max_tokens=2,
        pieces=[prompt, "Larger.\n", "Smaller.\n"], demonstrate=demonstrate, begin=_Guess,
    )  # fmt: skip


MAKERS: Mapping[str, Callable[[], Task]] = {
    "addition": addition,
    "word sums": word_sums,
    "spelling": spelling,
    "counting": counting,
    "guessing": guessing,
}
