"""`rljob-verifier --check`: what is wrong with rewards and records, before anything starts."""

import json
import pathlib
from collections.abc import Callable, Sequence

import pytest

from rljob_api import process_config
from rljob_api.manifest.data import DataSourceSpec
from rljob_testing import attack_repositories
from rljob_testing.sections import section
from rljob_workers.verifier import check
from rljob_workers.verifier.graders import registry

MakeConfig = Callable[..., process_config.VerifierConfig]
MATH = process_config.GraderConfig(name="maths", type="math")
GYM = process_config.GraderConfig(name="puzzles", type="reasoning_gym")
SIDE_BY_SIDE = (
    process_config.GraderConfig(name="right", type="areal-math", tasks=("math", "stem")),
    process_config.GraderConfig(name="passes", type="areal-code", tasks=("code",)),
)


def source(
    path: pathlib.Path, records: Sequence[dict[str, object]], *, suite: str = "", drop: bool = False
) -> check.Graded:
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    config = section(
        DataSourceSpec,
        name=suite or "train",
        path=str(path),
        max_prompt_tokens=64,
        on_invalid_record="Drop" if drop else "Fail",
    )
    return check.Graded(source=config, suite=suite)


def test_gradable_records_are_no_problem(make_config: MakeConfig, tmp_path: pathlib.Path) -> None:
    data = source(tmp_path / "d.jsonl", [{"prompt": "2+3=", "answer": "5"}, {"prompt": "1+1=", "answer": 2}])
    assert check.findings(make_config(MATH), [data]).problems == []


@pytest.mark.covers("graders 2.2")
def test_record_that_a_reward_cannot_grade_is_named_by_file_and_line(
    make_config: MakeConfig, tmp_path: pathlib.Path
) -> None:
    metadata = {"source_dataset": "countdown"}
    data = source(
        tmp_path / "d.jsonl",
        [{"prompt": "2+3=", "answer": "5"}, {"prompt": "make 5", "answer": "5", "metadata": metadata}],
    )
    first, second = check.findings(make_config(MATH, GYM), [data]).problems
    assert first.startswith(f"{tmp_path}/d.jsonl:1: reward 'puzzles': ")
    assert "needs 'metadata'" in first
    assert second.startswith(f"{tmp_path}/d.jsonl:2: reward 'puzzles': ")
    assert "'countdown', which is refused" in second


def test_record_whose_tests_cannot_be_run_is_named_by_file_and_line(
    make_config: MakeConfig, tmp_path: pathlib.Path
) -> None:
    good = {"prompt": "add", "repository": dict(attack_repositories.REPOSITORY)}
    bad = {"prompt": "add", "repository": {**attack_repositories.REPOSITORY, "tests": ["pkg/sums.py::test_a"]}}
    data = source(tmp_path / "d.jsonl", [good, bad])
    reward = process_config.GraderConfig(name="passes", type="repository-tests")
    (problem,) = check.findings(make_config(reward), [data]).problems
    assert problem.startswith(f"{tmp_path}/d.jsonl:2: reward 'passes': 'repository.tests[0]' is 'pkg/sums.py::test_a'")


def test_rewards_that_cannot_be_built_are_said_before_any_record_is_read(make_config: MakeConfig) -> None:
    unknown = process_config.GraderConfig(name="r", type="maths")
    missing = section(DataSourceSpec, name="train", path="/nonexistent", max_prompt_tokens=64)
    assert check.findings(make_config(unknown), [check.Graded(source=missing)]).problems == [
        f"reward 'r': unknown type 'maths'; expected one of {', '.join(sorted(registry.BUILT_IN))}"
    ]


@pytest.mark.covers("graders 4.3")
def test_golds_that_no_reader_takes_are_counted_by_source_and_reward(
    make_config: MakeConfig, tmp_path: pathlib.Path
) -> None:
    golds = ["5", "x^2+1", "Evelyn", "9^{9^{9^9}}", ["7", "Mary said so"]]
    data = source(tmp_path / "d.jsonl", [{"prompt": f"p{n}", "answer": answer} for n, answer in enumerate(golds)])
    boxed = process_config.GraderConfig(name="box", type="boxed")
    exact = process_config.GraderConfig(name="text", type="exact")
    maths, box = check.findings(make_config(MATH, boxed, exact), [data]).warnings
    assert maths == "source 'train': reward 'maths' cannot parse 3 references; they match only as text"
    assert box.startswith("source 'train': reward 'box' cannot parse 3 references")
    readable = source(tmp_path / "e.jsonl", [{"prompt": "p", "answer": "5"}])
    assert check.findings(make_config(MATH, exact), [readable]).warnings == []


def test_records_of_a_suite_with_rewards_of_its_own_are_checked_against_those_alone(
    make_config: MakeConfig, tmp_path: pathlib.Path
) -> None:
    puzzles = GYM.model_copy(update={"suite": "puzzles"})
    records: list[dict[str, object]] = [{"prompt": "2+3=", "answer": "5"}]
    training = source(tmp_path / "train.jsonl", records)
    plain = source(tmp_path / "plain.jsonl", records, suite="plain")
    own = source(tmp_path / "own.jsonl", records, suite="puzzles")
    (problem,) = check.findings(make_config(MATH, puzzles), [training, plain, own]).problems
    assert problem.startswith(f"{tmp_path}/own.jsonl:1: reward 'puzzles': ")


@pytest.mark.covers("workflows 4")
def test_a_record_of_maths_or_code_is_checked_against_the_reward_of_its_task_alone(
    make_config: MakeConfig, tmp_path: pathlib.Path
) -> None:
    tests = {"inputs": ["1 2"], "outputs": ["3"]}
    data = source(
        tmp_path / "d.jsonl",
        [
            {"query_id": "m", "task": "math", "prompt": "2+3=", "solutions": ["5"]},
            {"query_id": "c", "task": "code", "prompt": "add", "input_output": tests, "solutions": []},
            {"query_id": "bad", "task": "code", "prompt": "add", "input_output": {**tests, "outputs": []}},
            {"query_id": "odd", "task": "poetry", "prompt": "rhyme", "solutions": ["moon"]},
        ],
    )
    bad, odd = check.findings(make_config(*SIDE_BY_SIDE), [data]).problems
    assert bad.startswith(f"{tmp_path}/d.jsonl:3: reward 'passes': 'input_output.outputs' must be a list of texts")
    assert odd == f"{tmp_path}/d.jsonl:4: 'task' must be one of math, stem, code"


@pytest.mark.covers("graders 4.1")
def test_tasks_that_records_do_not_name_are_counted_by_what_they_are_taken_for(
    make_config: MakeConfig, tmp_path: pathlib.Path
) -> None:
    tests = {"inputs": ["1 2"], "outputs": ["3"]}
    records: list[dict[str, object]] = [
        {"query_id": "a", "task": "math", "prompt": "2+3=", "solutions": ["5"]},
        {"query_id": "b", "prompt": "3+3=", "solutions": ["6"]},
        {"query_id": "c", "prompt": "4+3=", "solutions": ["7"]},
        {"query_id": "d", "prompt": "add", "input_output": tests},
    ]
    data = source(tmp_path / "d.jsonl", records)
    assert check.findings(make_config(*SIDE_BY_SIDE), [data]).problems == []
    assert check.findings(make_config(*SIDE_BY_SIDE), [data]).warnings == [
        "source 'train': 2 records name no 'task'; they are graded as math",
        "source 'train': 1 records name no 'task'; they are graded as code",
    ]


@pytest.mark.covers("graders 4.3")
def test_records_that_cannot_be_graded_are_counted_and_left_out_where_their_source_drops_such(
    make_config: MakeConfig, tmp_path: pathlib.Path
) -> None:
    metadata = {"source_dataset": "countdown"}
    refused = {"prompt": "make 5", "answer": "5", "metadata": metadata}
    tests = {"inputs": ["1 2"], "outputs": ["3"]}
    good: dict[str, object] = {"query_id": "c", "task": "code", "prompt": "add", "input_output": tests}
    bad: dict[str, object] = {**good, "query_id": "bad", "input_output": {**tests, "outputs": []}}
    data = source(tmp_path / "d.jsonl", [good, bad], drop=True)
    found = check.findings(make_config(*SIDE_BY_SIDE), [data])
    assert found.problems == []
    (warning,) = found.warnings
    assert warning.startswith(f"source 'train': 1 of 2 records are left out: {tmp_path}/d.jsonl:2: reward 'passes': ")
    none_left = source(tmp_path / "e.jsonl", [refused], drop=True)
    (problem,) = check.findings(make_config(GYM), [none_left]).problems
    assert problem.startswith("source 'train': none of its 1 records can be used: ")


def test_what_is_said_of_golds_is_of_the_records_that_are_kept(make_config: MakeConfig, tmp_path: pathlib.Path) -> None:
    records: list[dict[str, object]] = [
        {"query_id": "m", "task": "math", "prompt": "2+3=", "solutions": ["5"]},
        {"query_id": "odd", "task": "poetry", "prompt": "rhyme", "solutions": ["moon"]},
    ]
    found = check.findings(make_config(*SIDE_BY_SIDE), [source(tmp_path / "d.jsonl", records, drop=True)])
    (warning,) = found.warnings
    assert "1 of 2 records are left out" in warning
