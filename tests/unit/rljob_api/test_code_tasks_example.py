import json
import re

import pytest

from rljob_testing import examples
from rljob_workers.verifier.graders.code import cases

FORM = " Put the code between ```python and ```."


def records(name: str) -> list[dict[str, object]]:
    text = (examples.EXAMPLES / "data" / f"code-tasks-{name}.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


def asked_for(statement: str, given: str) -> str:
    """Return the output that a statement asks for, read from its words."""
    value = json.loads(given)
    if plus := re.search(r"integer (?:n )?plus (\d+)\.$", statement):
        return str(value + int(plus[1]))
    if product := re.search(r"prints (\d+) times the integer\.$", statement):
        return str(value * int(product[1]))
    repeated = re.search(r"returns the text (\d+) times in a row\.$", statement)
    assert repeated is not None, statement
    return json.dumps("".join([value] * int(repeated[1])))


def test_committed_data_are_what_the_generator_makes() -> None:
    made = examples.generator("make_code_tasks_data")
    for name, tasks in zip(("train", "held-out"), made.split(made.tasks()), strict=True):
        committed = (examples.EXAMPLES / "data" / f"code-tasks-{name}.jsonl").read_text()
        assert committed == made.lines(name, tasks), "run `python crds/examples/make_code_tasks_data.py` and commit"


def test_no_held_out_task_is_trained_on() -> None:
    train, held_out = ({record["prompt"] for record in records(name)} for name in ("train", "held-out"))
    assert (len(train), len(held_out)) == (24, 8)
    assert not train & held_out


@pytest.mark.parametrize("name", ["train", "held-out"])
def test_every_output_is_what_the_words_of_the_task_ask_for(name: str) -> None:
    for record in records(name):
        statement = str(record["prompt"]).removesuffix(FORM)
        tests = cases.tests_of(record)
        assert len(set(tests.inputs)) == 3
        assert [asked_for(statement, given) for given in tests.inputs] == list(tests.outputs)


@pytest.mark.parametrize("name", ["train", "held-out"])
def test_programs_and_functions_are_asked_for_and_a_function_by_the_name_that_is_called(name: str) -> None:
    called = {}
    for record in records(name):
        assert record["task"] == "code"
        fn_name = cases.tests_of(record).fn_name
        asked = re.search(r"function (\w+)\(", str(record["prompt"]))
        assert (asked[1] if asked else "") == fn_name
        called[fn_name] = True
    assert {"", "add", "repeat"} == set(called)
