"""Makes the code records of areal-math-code-cpu.yaml: `python crds/examples/make_code_tasks_data.py`; the same bytes
always.

Tiny Python tasks in the form of AReaL's metadata files: query_id, task, prompt, and tests as JSON in `input_output`.
Half of them ask for a program that reads an integer, half for a function, which `fn_name` names.
"""

import json
import pathlib
import random
from collections.abc import Sequence

SEED = 20260104
NUM_HELD_OUT = 8
NUM_CASES = 3
NUMBERS = range(2, 10)
GIVEN = range(1, 100)
WORDS = ("ab", "tick", "no", "ha", "la", "so")
# By kind; a kind that is in FUNCTIONS is also the name of the function.
STATEMENTS = {
    "plus": "Write a Python program that reads an integer and prints the integer plus {number}.",
    "times": "Write a Python program that reads an integer and prints {number} times the integer.",
    "add": "Write a Python function add(n) that returns the integer n plus {number}.",
    "repeat": "Write a Python function repeat(text) that returns the text {number} times in a row.",
}
FUNCTIONS = ("add", "repeat")
FORM = " Put the code between ```python and ```."
FOLDER = pathlib.Path(__file__).parent / "data"

Task = tuple[str, int]


def tasks() -> list[Task]:
    """Return each kind with each number once, in random order."""
    made = [(kind, number) for kind in STATEMENTS for number in NUMBERS]
    random.Random(SEED).shuffle(made)
    return made


def split(made: Sequence[Task]) -> tuple[Sequence[Task], Sequence[Task]]:
    """Return training and held-out tasks, none in both."""
    return made[NUM_HELD_OUT:], made[:NUM_HELD_OUT]


def cases(task: Task) -> list[tuple[str, str]]:
    """Return inputs and expected outputs as JSON; that of an integer is also what a program reads and prints."""
    kind, number = task
    draw = random.Random(f"{SEED} {kind} {number}")
    given: Sequence[int | str] = draw.sample(WORDS if kind == "repeat" else GIVEN, NUM_CASES)
    return [(json.dumps(value), json.dumps(_result(kind, number, value))) for value in given]


def _result(kind: str, number: int, value: int | str) -> int | str:
    return value * number if isinstance(value, str) or kind == "times" else value + number


def record(name: str, index: int, task: Task) -> dict[str, str]:
    """Return one record: query_id, task, prompt, input_output."""
    kind, number = task
    made = cases(task)
    tests: dict[str, object] = {"inputs": [text for text, _ in made], "outputs": [text for _, text in made]}
    if kind in FUNCTIONS:
        tests["fn_name"] = kind
    return {
        "query_id": f"code-{name}-{index:02d}",
        "task": "code",
        "prompt": STATEMENTS[kind].format(number=number) + FORM,
        "input_output": json.dumps(tests),
    }


def lines(name: str, made: Sequence[Task]) -> str:
    """Return the records as JSONL."""
    return "".join(json.dumps(record(name, index, task)) + "\n" for index, task in enumerate(made))


def main() -> None:
    """Write both files."""
    train, held_out = split(tasks())
    FOLDER.mkdir(exist_ok=True)
    for name, made in (("train", train), ("held-out", held_out)):
        path = FOLDER / f"code-tasks-{name}.jsonl"
        path.write_text(lines(name, made), encoding="utf-8")
        print(f"wrote {len(made)} records to {path.name}")


if __name__ == "__main__":
    main()
