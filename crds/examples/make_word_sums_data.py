"""Makes the data of the *-cpu.yaml variants: `python crds/examples/make_word_sums_data.py`. The same bytes each time.

Short word problems in the form of GSM8K: a question, and an answer that ends with "#### <number>". `result` is that
number alone, for graders that compare it with a boxed or tagged answer; `task` gives areal-math-code-cpu.yaml the kind
of question it is.
"""

import json
import pathlib
import random
from collections.abc import Sequence

SEED = 20260102
NUM_TRAIN = 320
NUM_HELD_OUT = 64
NUMBERS = range(2, 30)
THINGS = ("apples", "books", "coins", "stamps")
NAMES = ("Ada", "Ben", "Cem", "Dana")
FOLDER = pathlib.Path(__file__).parent / "data"

Sum = tuple[int, int]


def sums() -> list[Sum]:
    """Return every pair a <= b once, in random order."""
    pairs = [(first, second) for first in NUMBERS for second in NUMBERS if first <= second]
    random.Random(SEED).shuffle(pairs)
    return pairs


def split(pairs: Sequence[Sum]) -> tuple[Sequence[Sum], Sequence[Sum]]:
    """Return training and held-out sums, none in both. Raises ValueError if there are too few."""
    train, held_out = pairs[:NUM_TRAIN], pairs[NUM_TRAIN : NUM_TRAIN + NUM_HELD_OUT]
    if len(train) + len(held_out) < NUM_TRAIN + NUM_HELD_OUT:
        raise ValueError(f"{len(pairs)} sums do not make {NUM_TRAIN} + {NUM_HELD_OUT}")
    return train, held_out


def record(name: str, index: int, pair: Sum) -> dict[str, str]:
    """Return one record: id, task, question, worked answer, result."""
    first, second = pair
    who, what = NAMES[index % len(NAMES)], THINGS[index // len(NAMES) % len(THINGS)]
    return {
        "id": f"{name}-{index:04d}",
        "task": "math",
        "question": f"{who} has {first} {what} and gets {second} more. How many {what} does {who} have now?",
        "answer": f"{first} + {second} = {first + second}\n#### {first + second}",
        "result": str(first + second),
    }


def lines(name: str, pairs: Sequence[Sum]) -> str:
    """Return the records as JSONL."""
    return "".join(json.dumps(record(name, index, pair)) + "\n" for index, pair in enumerate(pairs))


def main() -> None:
    """Write both files."""
    train, held_out = split(sums())
    FOLDER.mkdir(exist_ok=True)
    for name, pairs in (("train", train), ("held-out", held_out)):
        path = FOLDER / f"word-sums-{name}.jsonl"
        path.write_text(lines(name, pairs), encoding="utf-8")
        print(f"wrote {len(pairs)} records to {path.name}")


if __name__ == "__main__":
    main()
