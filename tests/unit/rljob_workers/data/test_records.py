import json
import pathlib
from collections.abc import Callable

import pytest

from rljob_api import errors
from rljob_api.manifest.data import ColumnsSpec, DataSourceSpec, ReasoningGymSpec
from rljob_testing.sections import section
from rljob_workers.data import records

Write = Callable[..., DataSourceSpec]


@pytest.fixture
def write(tmp_path: pathlib.Path) -> Write:
    """Return a writer of sources: records as objects or as raw lines."""

    def make(
        *lines: object, name: str = "train.jsonl", drop: bool = False, columns: ColumnsSpec | None = None
    ) -> DataSourceSpec:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
        path.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
        return source(path, drop=drop, columns=columns)

    return make


def source(path: pathlib.Path, *, drop: bool = False, columns: ColumnsSpec | None = None) -> DataSourceSpec:
    return section(
        DataSourceSpec,
        name="train", path=str(path), max_prompt_tokens=64, on_invalid_record="Drop" if drop else "Fail",
        columns=columns or ColumnsSpec(),
    )  # fmt: skip


def record(prompt_id: str, **more: object) -> dict[str, object]:
    return {"id": prompt_id, "prompt": f"{prompt_id}=", "answer": "1", **more}


def problems(config: DataSourceSpec) -> list[str]:
    return [str(problem).removeprefix(f"{config.path}:") for problem in records.inspect_source(config)[1]]


def test_records_keep_their_order_and_their_own_columns(write: Write) -> None:
    loaded = records.load_source(write(record("b", level=3), record("a")))
    assert loaded.prompt_ids == ("b", "a")
    assert loaded.records[0].columns == {"id": "b", "prompt": "b=", "answer": "1", "level": 3}
    assert loaded.records[0].source == "train"
    assert loaded.place(1).endswith("train.jsonl:2")


def test_blank_lines_count_as_lines_but_are_no_records(write: Write) -> None:
    loaded = records.load_source(write(record("a"), "", record("b")))
    assert loaded.lines == (1, 3)


def test_without_an_id_the_line_number_is_the_id(write: Write) -> None:
    lines = [{"prompt": "x", "answer": "1"}, {"prompt": "y", "answer": "2"}]
    assert records.load_source(write(*lines)).prompt_ids == ("1", "2")


def test_named_columns_become_canonical(write: Write) -> None:
    columns = section(ColumnsSpec, prompt="q", answer="gold", id="key")
    loaded = records.load_source(write({"q": "1+1", "gold": 2, "key": 7}, columns=columns))
    assert loaded.records[0].columns == {"q": "1+1", "gold": 2, "key": 7, "prompt": "1+1", "answer": "2", "id": "7"}


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("{broken", "1: the line is not JSON"),
        ("[1]", "1: the line is a JSON list, not an object"),
        ({"id": "a", "prompt": "x"}, "1: the record has no answer column 'answer'; its columns: id, prompt"),
        ({"id": "a", "answer": "x"}, "1: the record has no prompt column 'prompt'; its columns: answer, id"),
        ({"prompt": " ", "answer": "1"}, "1: prompt column 'prompt' is an empty str"),
        ({"prompt": "x", "answer": ""}, "1: answer column 'answer' is empty"),
        ({"prompt": "x", "answer": []}, "1: answer column 'answer' is an empty list"),
        ({"prompt": "x", "answer": ["1", ""]}, "1: answer column 'answer' is empty"),
        ({"prompt": "x", "answer": None}, "1: answer column 'answer' holds NoneType"),
        ({"prompt": "x", "answer": True}, "1: answer column 'answer' holds bool"),
    ],
)
def test_a_bad_record_is_named_with_its_line(write: Write, line: object, sentence: str) -> None:
    assert problems(write(line))[0].startswith(sentence)


@pytest.mark.covers("graders 4.3")
def test_a_duplicate_id_is_an_error_that_names_both_lines(write: Write) -> None:
    assert problems(write(record("a"), record("b"), record("a"))) == ["3: id 'a' was already used on line 1"]


def test_every_problem_is_reported_at_once(write: Write) -> None:
    config = write("{", record("a"), {"prompt": "x"})
    with pytest.raises(errors.DataError) as refusal:
        records.load_source(config)
    assert [line.split(":")[1] for line in str(refusal.value).splitlines()] == ["1", "3"]


@pytest.mark.covers("graders 4.3")
def test_invalid_records_may_be_dropped_and_are_counted(write: Write) -> None:
    loaded = records.load_source(write("{", record("a"), record("a"), {"prompt": "x"}, drop=True))
    assert loaded.prompt_ids == ("a",)
    assert (loaded.num_read, sum(loaded.dropped.values())) == (4, 3)


def test_a_source_without_a_usable_record_is_an_error_even_when_dropping(write: Write) -> None:
    config = write("{", drop=True)
    assert [str(problem) for problem in records.inspect_source(config)[1]] == [
        f"{config.path}: source 'train' holds no usable record"
    ]
    empty = write()
    assert "holds no usable record" in str(records.inspect_source(empty)[1][0])


def test_a_missing_file_is_named(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "gone.jsonl"
    assert [str(problem) for problem in records.check_sources([source(path)])[0]] == [
        f"{path}: the data file does not exist"
    ]


def test_an_unknown_file_format_names_the_known_ones(write: Write) -> None:
    (problem,) = records.inspect_source(write(record("a"), name="data.csv"))[1]
    assert "unknown data format '.csv'; expected one of .jsonl, .parquet" in problem.text


def test_two_sources_of_one_name_are_refused(write: Write) -> None:
    config = write(record("a"))
    assert [str(problem) for problem in records.check_sources([config, config])[0]] == [
        "data: two sources are named 'train'"
    ]


def test_a_folder_is_read_by_split_in_the_order_of_file_names(write: Write, tmp_path: pathlib.Path) -> None:
    write({"prompt": "x", "answer": "1"}, name="set/train-00001.jsonl")
    write({"prompt": "y", "answer": "1"}, name="set/train-00000.jsonl")
    write({"prompt": "z", "answer": "1"}, name="set/test-00000.jsonl")
    loaded = records.load_source(source(tmp_path / "set"))
    assert loaded.prompt_ids == ("train-00000.jsonl:1", "train-00001.jsonl:1")
    (problem,) = records.inspect_source(source(tmp_path / "set").model_copy(update={"split": "validation"}))[1]
    assert "no .jsonl or .parquet file of split 'validation'" in problem.text


def test_parquet_is_read(tmp_path: pathlib.Path) -> None:
    pyarrow = pytest.importorskip("pyarrow", reason="parquet needs pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet", reason="parquet needs pyarrow")
    path = tmp_path / "train.parquet"
    parquet.write_table(pyarrow.table({"id": ["a", "b"], "prompt": ["x", "y"], "answer": [1.5, 2.0]}), path)
    loaded = records.load_source(source(path))
    assert [loaded.records[i].columns["answer"] for i in range(2)] == ["1.5", "2.0"]


def test_a_file_that_is_no_parquet_is_refused(write: Write) -> None:
    (problem,) = records.inspect_source(write("text", name="train.parquet"))[1]
    assert "not a readable parquet file" in problem.text


def gym(name: str) -> DataSourceSpec:
    task = section(ReasoningGymSpec, name=name, size=3, config={"seed": 5})
    return section(DataSourceSpec, name="gym", reasoning_gym=task)


def test_tasks_are_generated_the_same_way_each_time_with_what_their_scorer_needs() -> None:
    pytest.importorskip("reasoning_gym", reason="generated tasks need reasoning-gym")
    first, second = records.load_source(gym("chain_sum")), records.load_source(gym("chain_sum"))
    assert first.records == second.records
    columns = first.records[0].columns
    assert columns["prompt"] == columns["question"]
    metadata = columns["metadata"]
    assert isinstance(metadata, dict)
    assert metadata["source_dataset"] == "chain_sum"
    json.dumps(dict(columns))


def test_an_unknown_generator_is_named() -> None:
    pytest.importorskip("reasoning_gym", reason="generated tasks need reasoning-gym")
    (problem,) = records.inspect_source(gym("no_such_task"))[1]
    assert "reasoning_gym cannot make 'no_such_task'" in problem.text
