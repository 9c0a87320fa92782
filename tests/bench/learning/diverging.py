"""Two runs, one with a learning rate 20 times too high: `python -m tests.bench.learning.diverging FOLDER`.

Prints what the coordinator would read of each step, a JSON line a step: `rate` and the fields of `learning.Point`.
Half a minute of one core, half of it for the base model, which is left in FOLDER.
"""

import dataclasses
import functools
import json
import pathlib
import sys

from tests.bench.learning import base_model, sides, tasks, training

from rljob_api import learning as judged
from rljob_testing import learning

CELL = sides.Cell(seed=0, task="addition", side="lag 4", steps=10)
BASE_STEPS = 300
TOO_HIGH = 20


def main(cache: pathlib.Path) -> None:
    """Run both."""
    task = tasks.addition()
    with learning.only_rank() as folder:
        base = base_model.ensure(cache, [task], steps=BASE_STEPS)
        for factor in (1, TOO_HIGH):
            rate = f"{factor * float(sides.LEARNING_RATE):g}"
            training.train(CELL, task, base, folder, learning_rate=rate, after_step=functools.partial(_print, factor))


def _print(factor: int, point: judged.Point) -> None:
    print(json.dumps({"rate": factor, **dataclasses.asdict(point)}), flush=True)


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
