import json
import re

from rljob_testing import examples


def records(name: str) -> list[dict[str, object]]:
    text = (examples.EXAMPLES / "data" / f"counting-{name}.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


def question(record: dict[str, object]) -> str:
    messages = record["messages"]
    assert isinstance(messages, list)
    return str(messages[0]["content"])


def test_committed_data_are_what_the_generator_makes() -> None:
    made = examples.generator("make_counting_data")
    for name, scenes in zip(("train", "held-out"), made.split(made.scenes()), strict=True):
        committed = (examples.EXAMPLES / "data" / f"counting-{name}.jsonl").read_text()
        assert committed == made.lines(name, scenes), "run `python crds/examples/make_counting_data.py` and commit"


def test_no_held_out_scene_is_trained_on() -> None:
    train, held_out = ({question(record) for record in records(name)} for name in ("train", "held-out"))
    assert (len(train), len(held_out)) == (320, 64)
    assert not train & held_out


def test_every_answer_is_the_count_of_the_things_asked_for() -> None:
    for record in [*records("train"), *records("held-out")]:
        told, asked = question(record).split(". How many ")
        (shape,) = re.findall(r"^(\w+)s are there", asked)
        assert record["answer"] == str(len(re.findall(rf"\b{shape}\b", told)))
