"""Makes the data of arealite-clevr-count-cpu.yaml: `python crds/examples/make_counting_data.py`; the same bytes always.

Counting tasks in the form of clevr_count_70k, with the scene described instead of shown: messages, and the count as
answer.
"""

import json
import pathlib
import random
from collections.abc import Sequence

SEED = 20260103
NUM_TRAIN = 320
NUM_HELD_OUT = 64
MOST_OBJECTS = 8
SIZES = ("small", "large")
COLOURS = ("red", "blue", "green", "gray")
SHAPES = ("cube", "sphere", "cylinder")
FOLDER = pathlib.Path(__file__).parent / "data"

Thing = tuple[str, str, str]
Scene = tuple[tuple[Thing, ...], str]


def scenes() -> list[Scene]:
    """Return unlike scenes, each with the shape to count."""
    draw = random.Random(SEED)
    found: dict[Scene, None] = {}
    while len(found) < NUM_TRAIN + NUM_HELD_OUT:
        things = tuple(
            (draw.choice(SIZES), draw.choice(COLOURS), draw.choice(SHAPES))
            for _ in range(draw.randint(2, MOST_OBJECTS))
        )
        found[things, draw.choice(SHAPES)] = None
    return list(found)


def split(made: Sequence[Scene]) -> tuple[Sequence[Scene], Sequence[Scene]]:
    """Return training and held-out scenes, none in both."""
    return made[:NUM_TRAIN], made[NUM_TRAIN:]


def record(name: str, index: int, scene: Scene) -> dict[str, object]:
    """Return one record: id, messages, answer."""
    things, shape = scene
    told = ", ".join(f"a {' '.join(thing)}" for thing in things)
    question = f"On the table: {told}. How many {shape}s are there? Answer with the number in square brackets, as [2]."
    return {
        "id": f"{name}-{index:04d}",
        "messages": [{"role": "user", "content": question}],
        "answer": str(sum(thing[2] == shape for thing in things)),
    }


def lines(name: str, made: Sequence[Scene]) -> str:
    """Return the records as JSONL."""
    return "".join(json.dumps(record(name, index, scene)) + "\n" for index, scene in enumerate(made))


def main() -> None:
    """Write both files."""
    train, held_out = split(scenes())
    FOLDER.mkdir(exist_ok=True)
    for name, made in (("train", train), ("held-out", held_out)):
        path = FOLDER / f"counting-{name}.jsonl"
        path.write_text(lines(name, made), encoding="utf-8")
        print(f"wrote {len(made)} records to {path.name}")


if __name__ == "__main__":
    main()
