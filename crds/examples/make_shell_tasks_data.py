"""Makes the data of shell-tasks-cpu.yaml: `python crds/examples/make_shell_tasks_data.py`. The same bytes each time.

Each prompt is a terminal's record: three worked tasks, and one to do. Its tests, which the model never sees, pass one
after the other as an answer gets better: the file is there, it has the right word, it is right as a whole. So a small
model that only sometimes writes the right file has something to learn from.
"""

import json
import pathlib
import random
import shlex
from collections.abc import Sequence

SEED = 20261126
NUM_TRAIN = 400
NUM_HELD_OUT = 60
WORDS = ("apple", "bread", "chair", "cloud", "green", "horse", "house", "lemon", "light", "money", "music", "night")
FILES = ("one", "two", "box", "note", "list", "word", "data", "copy")
FOLDER = pathlib.Path(__file__).parent / "data"

# What is asked, the command that does it, the files that are there, and the tests.
Task = tuple[str, str, dict[str, str], list[str]]


def write(word: str, target: str, source: str, other: str) -> Task:
    """Return the task to write a word."""
    del source, other
    return f"Write {word} to {target}", f"echo {word} > {target}", {}, _tests(target, word, f"{word}\n")


def copy(word: str, target: str, source: str, other: str) -> Task:
    """Return the task to copy a file."""
    text = f"{word}\n{other}\n"
    return f"Copy {source} to {target}", f"cp {source} {target}", {source: text}, _tests(target, word, text)


def sort(word: str, target: str, source: str, other: str) -> Task:
    """Return the task to sort a file."""
    first, last = sorted((word, other))
    tests = _tests(target, word, f"{first}\n{last}\n")
    return f"Sort {source} into {target}", f"sort {source} > {target}", {source: f"{last}\n{first}\n"}, tests


def _tests(target: str, word: str, text: str) -> list[str]:
    whole = f"printf %s {shlex.quote(text)} | cmp -s - {target}"
    return [f"test -f {target}", f"grep -qx {word} {target}", whole]


KINDS = (write, copy, sort)
WORKED = (
    write("river", "first", "", ""),
    copy("river", "third", "first", "table"),
    sort("river", "sorted", "third", "table"),
)


def tasks() -> list[Task]:
    """Return unlike tasks, in random order."""
    draw, made = random.Random(SEED), dict[str, Task]()
    while len(made) < NUM_TRAIN + NUM_HELD_OUT:
        (word, other), (source, target) = draw.sample(WORDS, 2), draw.sample(FILES, 2)
        task = draw.choice(KINDS)(word, target, source, other)
        # What is asked and is there makes a task.
        made[json.dumps(task[:3])] = task
    return list(made.values())


def split(made: Sequence[Task]) -> tuple[Sequence[Task], Sequence[Task]]:
    """Return training and held-out tasks, none in both."""
    return made[:NUM_TRAIN], made[NUM_TRAIN:]


def record(name: str, index: int, task: Task) -> dict[str, object]:
    """Return one record: id, prompt, the command that does it, the files of its place, its tests."""
    asked, command, files, tests = task
    worked = "".join(f"# {asked}\n$ {command}\n$ exit\n" for asked, command, _, _ in WORKED)
    return {
        "id": f"{name}-{index:04d}",
        "prompt": f"{worked}# {asked}\n$",
        "answer": command,
        "files": files,
        "tests": tests,
    }


def lines(name: str, made: Sequence[Task]) -> str:
    """Return the records as JSONL."""
    return "".join(json.dumps(record(name, index, task)) + "\n" for index, task in enumerate(made))


def main() -> None:
    """Write both files."""
    train, held_out = split(tasks())
    FOLDER.mkdir(exist_ok=True)
    for name, made in (("train", train), ("held-out", held_out)):
        path = FOLDER / f"shell-tasks-{name}.jsonl"
        path.write_text(lines(name, made), encoding="utf-8")
        print(f"wrote {len(made)} records to {path.name}")


if __name__ == "__main__":
    main()
