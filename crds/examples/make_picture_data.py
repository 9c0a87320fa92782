"""Makes the data of counting-pictures-cpu.yaml: `python crds/examples/make_picture_data.py`; the same bytes always.

Counting tasks in the form of clevr_count_70k: a picture with shapes on it, a question, and the count as answer.
Pictures are of 64 x 64 points and stand in the records, as data: addresses of PNG files.
"""

import base64
import io
import json
import pathlib
import random
from collections.abc import Sequence

from PIL import Image, ImageDraw

SEED = 20261128
NUM_TRAIN = 320
NUM_HELD_OUT = 64
# Of the shape that is asked for, each number as often as the others; and of other shapes.
FEWEST, MOST, MOST_OTHERS = 1, 5, 3
# The picture is this many cells wide and high; a shape lies in a cell of its own, somewhere in it.
CELLS, CELL = 4, 16
SIZE = CELLS * CELL
SHAPES = ("circle", "square", "triangle")
COLOURS = ((200, 40, 40), (40, 90, 200), (40, 150, 60), (120, 120, 120))
GROUND = (255, 255, 255)
FOLDER = pathlib.Path(__file__).parent / "data"

# By cell, row by row: the shape's name, or "" for none.
Cells = tuple[str, ...]


def draw(rng: random.Random, cells: Cells) -> Image.Image:
    """Return a picture of the shapes; size, place in the cell and colour are drawn."""
    picture = Image.new("RGB", (SIZE, SIZE), GROUND)
    pen = ImageDraw.Draw(picture)
    for index, shape in enumerate(cells):
        if not shape:
            continue
        width = rng.randint(9, 13)
        left = index % CELLS * CELL + rng.randint(1, CELL - 2 - width)
        top = index // CELLS * CELL + rng.randint(1, CELL - 2 - width)
        box = (left, top, left + width, top + width)
        colour = rng.choice(COLOURS)
        if shape == "circle":
            pen.ellipse(box, fill=colour)
        elif shape == "square":
            pen.rectangle(box, fill=colour)
        else:
            pen.polygon([(left, top + width), (left + width, top + width), (left + width // 2, top)], fill=colour)
    return picture


def scene(rng: random.Random, shape: str) -> Cells:
    """Return cells with FEWEST to MOST times `shape`, and with others."""
    others = [other for other in SHAPES if other != shape]
    shapes = [shape] * rng.randint(FEWEST, MOST)
    shapes += [rng.choice(others) for _ in range(rng.randint(0, MOST_OTHERS))]
    cells = shapes + [""] * (CELLS**2 - len(shapes))
    rng.shuffle(cells)
    return tuple(cells)


def question(shape: str) -> str:
    """Return what is asked; `<image>` is where the picture stands."""
    return f"<image>How many {shape}s are in the picture? Answer with the number in square brackets, as [2]."


def address(picture: Image.Image) -> str:
    """Return the picture as a data: address."""
    file = io.BytesIO()
    picture.quantize(16).save(file, format="PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


def records(name: str, count: int, rng: random.Random) -> list[dict[str, object]]:
    """Return records: id, messages, images, answer."""
    made: list[dict[str, object]] = []
    for index in range(count):
        shape = rng.choice(SHAPES)
        cells = scene(rng, shape)
        made.append(
            {
                "id": f"{name}-{index:04d}",
                "messages": [{"role": "user", "content": question(shape)}],
                "images": [address(draw(rng, cells))],
                "answer": str(cells.count(shape)),
            }
        )
    return made


def lines(made: Sequence[dict[str, object]]) -> str:
    """Return the records as JSONL."""
    return "".join(json.dumps(record) + "\n" for record in made)


def main() -> None:
    """Write both files."""
    rng = random.Random(SEED)
    FOLDER.mkdir(exist_ok=True)
    for name, count in (("train", NUM_TRAIN), ("held-out", NUM_HELD_OUT)):
        path = FOLDER / f"counting-pictures-{name}.jsonl"
        path.write_text(lines(records(name, count, rng)), encoding="utf-8")
        print(f"wrote {count} records to {path.name}")


if __name__ == "__main__":
    main()
