"""Makes the data of two-players-cpu.yaml: `python crds/examples/make_two_players_data.py`. The same bytes each time.

A record is a number of two digits: what one player is told, and what the other is to say in the end.
"""

import json
import pathlib
import random
from collections.abc import Sequence

SEED = 20261129
NUMBERS = range(11, 99)
NUM_HELD_OUT = 24
FOLDER = pathlib.Path(__file__).parent / "data"


def split() -> tuple[Sequence[int], Sequence[int]]:
    """Return the numbers for training and those held out, in random order, each once."""
    numbers = list(NUMBERS)
    random.Random(SEED).shuffle(numbers)
    return numbers[NUM_HELD_OUT:], numbers[:NUM_HELD_OUT]


def lines(numbers: Sequence[int]) -> str:
    """Return the records as JSONL. The agent makes its own prompts; this one names the record where it is shown."""
    return "".join(
        json.dumps({"id": f"number-{number}", "prompt": str(number), "answer": str(number)}) + "\n"
        for number in numbers
    )


def main() -> None:
    """Write the files."""
    FOLDER.mkdir(exist_ok=True)
    for name, numbers in zip(("train", "held-out"), split(), strict=True):
        path = FOLDER / f"two-players-{name}.jsonl"
        path.write_text(lines(numbers), encoding="utf-8")
        print(f"wrote {len(numbers)} records to {path.name}")


if __name__ == "__main__":
    main()
