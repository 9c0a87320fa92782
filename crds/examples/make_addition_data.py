"""Makes the data of addition-cpu.yaml and its relatives: `python crds/examples/make_addition_data.py`. The same bytes
each time.

Each prompt holds four worked examples and one question, a line each, so that a small base model knows what is asked:
about a tenth of its sampled answers are right, which leaves room to learn and gives groups with unlike rewards.
"""

import json
import pathlib
import random
from collections.abc import Sequence

SEED = 20260101
NUM_TRAIN = 1000
NUM_HELD_OUT = 200
# Of the training questions; their answers are learned by the supervised steps of addition-sft-cpu.yaml.
NUM_EXAMPLES = 500
FIRST_OPERANDS = range(1, 51)
SECOND_OPERANDS = range(1, 51)
WORKED_EXAMPLES = ((12, 7), (46, 31), (58, 9), (24, 67))
FOLDER = pathlib.Path(__file__).parent / "data"

Pair = tuple[int, int]


def questions() -> list[Pair]:
    """Return every pair once, in random order; a + b and b + a are one question, and worked examples are none."""
    taken = {_unordered(pair) for pair in WORKED_EXAMPLES}
    pairs: list[Pair] = []
    for pair in ((first, second) for first in FIRST_OPERANDS for second in SECOND_OPERANDS):
        if _unordered(pair) not in taken:
            taken.add(_unordered(pair))
            pairs.append(pair)
    random.Random(SEED).shuffle(pairs)
    return pairs


def _unordered(pair: Pair) -> Pair:
    return min(pair), max(pair)


def split(pairs: Sequence[Pair]) -> tuple[Sequence[Pair], Sequence[Pair]]:
    """Return training and held-out questions. Raises ValueError if there are too few, or one is in both."""
    train, held_out = pairs[:NUM_TRAIN], pairs[NUM_TRAIN : NUM_TRAIN + NUM_HELD_OUT]
    if len(train) < NUM_TRAIN or len(held_out) < NUM_HELD_OUT:
        raise ValueError(f"{len(pairs)} questions do not make {NUM_TRAIN} + {NUM_HELD_OUT}")
    shared = {_unordered(pair) for pair in train} & {_unordered(pair) for pair in held_out}
    if shared:
        raise ValueError(f"{len(shared)} held-out questions are also trained on, such as {sorted(shared)[0]}")
    return train, held_out


def record(name: str, index: int, pair: Pair) -> dict[str, str]:
    """Return one record: id, few-shot prompt, answer."""
    worked = "".join(f"{first} + {second} = {first + second}\n" for first, second in WORKED_EXAMPLES)
    first, second = pair
    return {"id": f"{name}-{index:04d}", "prompt": f"{worked}{first} + {second} = ", "answer": str(first + second)}


def lines(name: str, pairs: Sequence[Pair]) -> str:
    """Return the records as JSONL."""
    return "".join(json.dumps(record(name, index, pair)) + "\n" for index, pair in enumerate(pairs))


def main() -> None:
    """Write the files."""
    train, held_out = split(questions())
    FOLDER.mkdir(exist_ok=True)
    for name, pairs in (("train", train), ("held-out", held_out), ("examples", train[:NUM_EXAMPLES])):
        path = FOLDER / f"addition-{name}.jsonl"
        path.write_text(lines(name, pairs), encoding="utf-8")
        print(f"wrote {len(pairs)} records to {path.name}")


if __name__ == "__main__":
    main()
