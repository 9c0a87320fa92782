"""What is said of records that cannot be used names file, line and column, and quotes none of them."""

import json
import logging
import pathlib

import pytest

from rljob_api import errors, process_config
from rljob_api.manifest.data import ColumnsSpec, DataSourceSpec
from rljob_testing import marked
from rljob_testing.marked import GOLD, HIDDEN_TEST, PROMPT
from rljob_testing.sections import section
from rljob_workers.data import records
from rljob_workers.verifier.graders import base, registry

TESTS = {"inputs": [HIDDEN_TEST], "outputs": [HIDDEN_TEST]}
MESSAGE = {"role": "user", "content": PROMPT}

BROKEN: dict[str, object] = {
    "no JSON": PROMPT,
    "a JSON text": json.dumps(PROMPT),
    "cut JSON": f'{{"prompt": "{PROMPT}", ',
    "no answer": {"prompt": PROMPT},
    "no prompt": {"answer": GOLD},
    "a prompt of another kind": {"prompt": {"text": PROMPT}, "answer": GOLD},
    "prompts that are no messages": {"prompt": [PROMPT], "answer": GOLD},
    "a message without a role": {"messages": [{"content": PROMPT}], "answer": GOLD},
    "a message of parts that are no text": {"messages": [{"role": "user", "content": [PROMPT]}], "answer": GOLD},
    "a message without a content": {"messages": [MESSAGE, {"role": "user"}], "answer": GOLD},
    "an answer of another kind": {"prompt": PROMPT, "answer": {"value": GOLD}},
    "answers of another kind": {"prompt": PROMPT, "answer": [[GOLD]]},
    "an id of another kind": {"prompt": PROMPT, "answer": GOLD, "key": [PROMPT]},
    "a code record without tests": {"query_id": "q", "prompt": PROMPT},
}


def source(path: pathlib.Path, record: object, *, drop: bool) -> DataSourceSpec:
    path.write_text(f"{record if isinstance(record, str) else json.dumps(record)}\n", encoding="utf-8")
    columns = section(ColumnsSpec, id="key") if isinstance(record, dict) and "key" in record else ColumnsSpec()
    return section(
        DataSourceSpec,
        name="train", path=str(path), max_prompt_tokens=64, on_invalid_record="Drop" if drop else "Fail",
        columns=columns,
    )  # fmt: skip


@pytest.mark.parametrize("record", BROKEN.values(), ids=BROKEN.keys())
def test_a_record_that_stops_a_job_is_named_and_not_quoted(record: object, tmp_path: pathlib.Path) -> None:
    with pytest.raises(errors.DataError, match=r"train\.jsonl:1: ") as refused:
        records.load_source(source(tmp_path / "train.jsonl", record, drop=False))
    marked.assert_untold(str(refused.value))


@pytest.mark.parametrize("record", BROKEN.values(), ids=BROKEN.keys())
def test_a_record_that_is_dropped_is_named_in_the_log_and_not_quoted(
    record: object, tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        loaded, _ = records.inspect_source(source(tmp_path / "train.jsonl", record, drop=True))
    assert any("dropped a record" in line.getMessage() for line in caplog.records)
    marked.assert_untold(marked.lines_of(caplog.records) + "".join(loaded.dropped))


UNGRADABLE: dict[str, dict[str, object]] = {
    "a gold of another kind": {"answer": {"value": GOLD}},
    "golds of another kind": {"answer": [{"value": GOLD}]},
    "a text without a number": {"answer": GOLD},
    "solutions without an answer": {"query_id": "q", "solutions": [GOLD]},
    "solutions of another kind": {"query_id": "q", "solutions": GOLD},
    "tests that are no JSON": {"query_id": "q", "input_output": HIDDEN_TEST},
    "tests of another kind": {"query_id": "q", "input_output": [HIDDEN_TEST]},
    "inputs of another kind": {"query_id": "q", "input_output": {"inputs": HIDDEN_TEST, "outputs": [HIDDEN_TEST]}},
    "calls whose cases are no JSON": {"query_id": "q", "input_output": {"fn_name": "f", **TESTS}},
    "a function's name of another kind": {"query_id": "q", "input_output": {"fn_name": [HIDDEN_TEST], **TESTS}},
    "a count of another kind": {"query_id": "q", "input_output": {"num_visible": HIDDEN_TEST, **TESTS}},
    "metadata that are no JSON": {"answer": GOLD, "metadata": GOLD},
    "metadata of another kind": {"answer": GOLD, "metadata": [GOLD]},
    "nothing": {},
}


def graders() -> list[base.Grader]:
    rewards = [process_config.GraderConfig(name=kind, type=kind) for kind in sorted(registry.BUILT_IN)]
    return list(registry.build(rewards, registry.BUILT_IN))


@pytest.mark.parametrize("columns", UNGRADABLE.values(), ids=UNGRADABLE.keys())
def test_a_record_that_a_grader_refuses_is_not_quoted(columns: dict[str, object]) -> None:
    refusals = []
    for grader in graders():
        try:
            grader.check({"prompt": PROMPT, "id": "p", **columns})
        except errors.DataError as error:
            refusals.append(str(error))
    assert refusals, "some grader refuses it"
    marked.assert_untold("\n".join(refusals))
