"""What `rljob run` refuses: exit code 2, a sentence with field, value and remedy, and nothing started or written."""

import json
import pathlib

import pytest

from rljob_testing import runs

pytestmark = pytest.mark.slow

FIELDS = {
    "a field that does not exist is answered with the one probably meant": (
        {"algorithm__groupsize": 8},
        ["spec.algorithm.groupsize", "groupSize"],
    ),
    "a name of another system is answered with ours": (
        {"algorithm__num_generations": 8},
        ["num_generations", "algorithm.groupSize"],
    ),
    "samples that cannot be divided among trainer processes": (
        {"algorithm__promptsPerStep": 3, "algorithm__groupSize": 3, "trainer__processesPerNode": 2},
        ["promptsPerStep x groupSize = 9", "2 trainer processes"],
    ),
    "prompts and answers that do not fit the context": (
        {"rollout__sampling": {"maxTokens": 90}},
        ["maxModelLen", "96", "90"],
    ),
    "a reward that does not exist": (
        {"verifier__rewards": [{"name": "r", "type": "exactly"}]},
        ["spec.verifier.rewards", "exactly", "exact"],
    ),
    "a learning rate that is no number": (
        {"trainer__optimizer__learningRate": "fast"},
        ["spec.trainer.optimizer.learningRate", "fast", "1e-6"],
    ),
    "a field that nothing serves yet": (
        {"model__lora": {"dropout": "0.1"}},
        ["spec.model.lora.dropout is not supported yet"],
    ),
    "a model that is not there": (
        {"model__name": "/no/such/model"},
        ["spec.model.name", "/no/such/model"],
    ),
}


@pytest.mark.parametrize("case", FIELDS, ids=lambda case: case.replace(" ", "-"))
def test_refused_field(rljob: runs.Runs, case: str) -> None:
    changes, words = FIELDS[case]
    code, output = rljob.run(rljob.manifest(**changes))
    refused(rljob, code, output, words)


def records(*rows: dict[str, str]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


RECORDS = {
    "a record without its answer column is named by its line": (
        records({"id": "a", "prompt": "p", "answer": "x"}, {"id": "b", "prompt": "p"}),
        [":2", "answer"],
    ),
    "two records of one id are named by both lines": (
        records({"id": "a", "prompt": "p", "answer": "x"}, {"id": "a", "prompt": "q", "answer": "y"}),
        ["'a'", "1", "2"],
    ),
    "a line that is no JSON is named": ("{not json}\n", [":1"]),
    "a file without records": ("", ["no usable record"]),
}


@pytest.mark.parametrize("case", RECORDS, ids=lambda case: case.replace(" ", "-"))
def test_refused_data(rljob: runs.Runs, tmp_path: pathlib.Path, case: str) -> None:
    text, words = RECORDS[case]
    data = tmp_path / "bad.jsonl"
    data.write_text(text)
    source = {"name": "letters", "path": str(data), "columns": {"id": "id"}, "maxPromptTokens": 64}
    code, output = rljob.run(rljob.manifest(data__train=[source], evaluation__suites=[]))
    refused(rljob, code, output, ["bad.jsonl", *words])


def test_refused_missing_file(rljob: runs.Runs) -> None:
    source = {"name": "letters", "path": "/no/such/file.jsonl", "maxPromptTokens": 64}
    code, output = rljob.run(rljob.manifest(data__train=[source], evaluation__suites=[]))
    refused(rljob, code, output, ["/no/such/file.jsonl"])


def test_run_directory_of_another_job_is_refused_not_overwritten(rljob: runs.Runs) -> None:
    folder = rljob.folder / "run"
    folder.mkdir()
    (folder / "job.json").write_text(json.dumps({"name": "other", "uid": "u", "spec": {}, "finished": False}))
    before = (folder / "job.json").read_bytes()
    code, output = rljob.run(rljob.manifest())
    assert (code, (folder / "job.json").read_bytes()) == (2, before), output
    assert [path.name for path in folder.iterdir()] == ["job.json"]
    assert "other" in output or "--run-dir" in output


def refused(rljob: runs.Runs, code: int, output: str, words: list[str]) -> None:
    assert code == 2, output
    for word in words:
        assert word in output, f"{word!r} is not in:\n{output}"
    assert not (rljob.folder / "run/state").exists()
