import json
import random

import pytest

from rljob_api.manifest.data import ColumnsSpec, DataSourceSpec
from rljob_testing import examples
from rljob_testing.sections import section
from rljob_workers.data import pictures, records

NAMES = ("train", "held-out")


def lines(name: str) -> list[str]:
    path = examples.EXAMPLES / "data" / f"counting-pictures-{name}.jsonl"
    return path.read_text(encoding="utf-8").splitlines(keepends=True)


def test_committed_data_are_what_the_generator_makes() -> None:
    make = examples.generator("make_picture_data")
    rng = random.Random(make.SEED)
    for name, count in zip(NAMES, (make.NUM_TRAIN, make.NUM_HELD_OUT), strict=True):
        again = make.lines(make.records(name, count, rng))
        assert "".join(lines(name)) == again, "run `python crds/examples/make_picture_data.py` and commit"


def test_no_held_out_picture_is_trained_on() -> None:
    train, held_out = ({json.loads(line)["images"][0] for line in lines(name)} for name in NAMES)
    assert (len(train), len(held_out)) == (320, 64)
    assert not train & held_out


@pytest.mark.parametrize("name", NAMES)
def test_records_are_read_with_a_picture_each(name: str) -> None:
    path = examples.EXAMPLES / "data" / f"counting-pictures-{name}.jsonl"
    columns = ColumnsSpec(prompt="messages", id="id", images="images")
    loaded = records.load_source(
        section(DataSourceSpec, name=name, path=str(path), max_prompt_tokens=96, columns=columns)
    )
    assert {len(record.pictures) for record in loaded.records} == {1}
    assert {pictures.decode(record.pictures[0], "a test").size for record in loaded.records} == {(64, 64)}
    answers = [str(record.columns["answer"]) for record in loaded.records]
    # Each number is about as frequent as the others: who always says the same is right a fifth of the time.
    assert max(map(answers.count, set(answers))) < 0.35 * len(answers)
