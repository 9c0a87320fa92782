"""Makes the data of reverse-text-cpu.yaml: `python make_reverse_text_data.py`. The same bytes each time.

texts/train.jsonl: texts for the environment reverse-text, in place of the data set of the hub: a few letters, each a
token of its own for the small model. examples.jsonl: conversations from which it first learns the form of an answer,
on other texts.
"""

import json
import pathlib
import random
from collections.abc import Sequence

SEED = 20261128
LETTERS = "abcdefghijklmnoprstuvw"
LENGTHS = (3, 4, 5)
NUM_TEXTS, NUM_EXAMPLES = 400, 256
# The environment's own words (reverse_text 0.1.0), which come before each of its texts.
SYSTEM = "Reverse the text character-by-character. Put your answer in <reversed_text> tags."
FOLDER = pathlib.Path(__file__).parent


def texts() -> list[str]:
    """Return texts without repeats, in random order."""
    draw, distinct = random.Random(SEED), dict[str, None]()
    while len(distinct) < NUM_TEXTS + NUM_EXAMPLES:
        distinct[" ".join(draw.choices(LETTERS, k=draw.choice(LENGTHS)))] = None
    return list(distinct)


def example(text: str) -> dict[str, object]:
    """Return a conversation with the right answer."""
    messages = (("system", SYSTEM), ("user", text), ("assistant", f"<reversed_text>{text[::-1]}</reversed_text>"))
    return {"messages": [{"role": role, "content": content} for role, content in messages]}


def main() -> None:
    """Write both files."""
    distinct = texts()
    (FOLDER / "texts").mkdir(exist_ok=True)
    write(FOLDER / "texts/train.jsonl", [{"prompt": text} for text in distinct[:NUM_TEXTS]])
    write(FOLDER / "examples.jsonl", [example(text) for text in distinct[NUM_TEXTS:]])


def write(path: pathlib.Path, records: Sequence[dict[str, object]]) -> None:
    """Write one object a line."""
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")


if __name__ == "__main__":
    main()
