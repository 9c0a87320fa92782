import pytest

from rljob_api import roles
from rljob_workers.data import formats, readers


def config(**changes: object) -> roles.DataSourceConfig:
    return roles.DataSourceConfig(name="s", path="/x.jsonl", max_prompt_tokens=9).model_copy(update=changes)


def canonical(columns: dict[str, object], source: roles.DataSourceConfig | None = None) -> dict[str, object]:
    return formats.canonical(readers.RawRecord(line=4, columns=columns), source or config())


@pytest.mark.parametrize(
    ("columns", "prompt", "answer"),
    [
        pytest.param({"question": "q", "answer": "because #### 4"}, "q", "because #### 4", id="GSM8K as published"),
        pytest.param({"problem": "p", "answer": 142.0}, "p", "142.0", id="a float gold becomes its text"),
        pytest.param({"problem": "p", "answer": ["1", 2]}, "p", ["1", "2"], id="any member of a list will do"),
        pytest.param({"messages": [{"role": "user"}], "answer": 3}, [{"role": "user"}], "3", id="a counting set"),
        pytest.param(
            {"query_id": "7", "task": "math", "prompt": "p", "solutions": ["$1$"]}, "p", ["$1$"], id="id2info maths"
        ),
    ],
)
def test_a_family_is_recognised_by_its_columns(columns: dict[str, object], prompt: object, answer: object) -> None:
    found = canonical(columns)
    assert (found["prompt"], found["answer"]) == (prompt, answer)


def test_what_the_manifest_names_wins_over_what_is_recognised() -> None:
    source = config(columns=roles.ColumnsConfig(prompt="ask"))
    assert canonical({"ask": "mine", "question": "theirs", "answer": "1"}, source)["prompt"] == "mine"


def test_a_code_record_may_have_no_answer() -> None:
    found = canonical({"query_id": "c", "prompt": "p", "input_output": "{}"}, config(format="code"))
    assert (found["answer"], found["id"]) == ("", "c")


def test_the_query_id_is_the_id_and_must_not_hold_an_at_sign() -> None:
    assert canonical({"query_id": 12, "prompt": "p", "solutions": ["1"]})["id"] == "12"
    with pytest.raises(ValueError, match="'@'"):
        canonical({"query_id": "a@b", "prompt": "p", "solutions": ["1"]})


@pytest.mark.parametrize("value", [None, "", 1.5, True])
def test_a_named_id_is_a_text_or_an_integer(value: object) -> None:
    with pytest.raises(ValueError, match="id column 'key'"):
        canonical({"key": value, "prompt": "p", "answer": "1"}, config(columns=roles.ColumnsConfig(id="key")))


def test_a_generated_task_with_many_right_answers_has_no_gold() -> None:
    found = canonical({"question": "q", "answer": None, "metadata": {}}, config(path="", reasoning_gym="jugs"))
    assert found["answer"] is None
