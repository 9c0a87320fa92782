import json
import re
import types

import pytest

from rljob_testing import examples

EXAMPLES = examples.EXAMPLES


@pytest.fixture
def generator() -> types.ModuleType:
    return examples.generator("make_word_sums_data")


def records(name: str) -> list[dict[str, str]]:
    return [json.loads(line) for line in (EXAMPLES / "data" / f"word-sums-{name}.jsonl").read_text().splitlines()]


def numbers(question: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", question)))


def test_committed_data_are_what_the_generator_makes(generator: types.ModuleType) -> None:
    for name, pairs in zip(("train", "held-out"), generator.split(generator.sums()), strict=True):
        committed = (EXAMPLES / "data" / f"word-sums-{name}.jsonl").read_text()
        assert committed == generator.lines(name, pairs), "run `python crds/examples/make_word_sums_data.py`"


def test_no_held_out_sum_is_trained_on() -> None:
    train, held_out = ({numbers(record["question"]) for record in records(name)} for name in ("train", "held-out"))
    assert (len(train), len(held_out)) == (320, 64)
    assert not train & held_out


def test_every_answer_ends_with_the_sum() -> None:
    for record in [*records("train"), *records("held-out")]:
        assert record["result"] == str(sum(numbers(record["question"])))
        assert record["answer"].endswith(f"\n#### {record['result']}")
        assert record["task"] == "math"
