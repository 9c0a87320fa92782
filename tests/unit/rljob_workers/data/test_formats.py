import pytest

from rljob_api.manifest.data import ColumnsSpec, DataSourceSpec
from rljob_testing.sections import section
from rljob_workers.data import formats, readers

ASKED = [{"role": "system", "content": "Count."}, {"role": "user", "content": "How many?"}]


def config(**changes: object) -> DataSourceSpec:
    return section(DataSourceSpec, name="s", path="/x.jsonl", max_prompt_tokens=9).model_copy(update=changes)


def canonical(columns: dict[str, object], source: DataSourceSpec | None = None) -> dict[str, object]:
    return formats.canonical(readers.RawRecord(line=4, columns=columns), source or config())


@pytest.mark.covers("graders 4.2")
@pytest.mark.parametrize(
    ("columns", "prompt", "answer"),
    [
        pytest.param({"question": "q", "answer": "because #### 4"}, "q", "because #### 4", id="GSM8K as published"),
        pytest.param({"problem": "p", "answer": 142.0}, "p", "142.0", id="a float gold becomes its text"),
        pytest.param({"problem": "p", "answer": ["1", 2]}, "p", ["1", "2"], id="any member of a list will do"),
        pytest.param({"messages": ASKED, "answer": 3}, ASKED, "3", id="a counting set"),
        pytest.param(
            {"query_id": "7", "task": "math", "prompt": "p", "solutions": ["$1$"]}, "p", ["$1$"], id="id2info maths"
        ),
    ],
)
def test_a_family_is_recognised_by_its_columns(columns: dict[str, object], prompt: object, answer: object) -> None:
    found = canonical(columns)
    assert (found["prompt"], found["answer"]) == (prompt, answer)


def test_what_the_manifest_names_wins_over_what_is_recognised() -> None:
    source = config(columns=section(ColumnsSpec, prompt="ask"))
    assert canonical({"ask": "mine", "question": "theirs", "answer": "1"}, source)["prompt"] == "mine"


@pytest.mark.covers("graders 4.1")
def test_records_of_areal_have_the_columns_that_they_imply() -> None:
    code = {"query_id": 7, "prompt": "p", "input_output": "{}", "scores": [1, 0]}
    found = canonical(code)
    assert (found["problem_id"], found["base_score"]) == ("7", 0.5)
    assert "problem_id" not in canonical({"query_id": "7", "prompt": "p", "solutions": ["1"]})


def test_a_code_record_may_have_no_answer() -> None:
    found = canonical({"query_id": "c", "prompt": "p", "input_output": "{}"}, config(format="code"))
    assert (found["answer"], found["id"]) == ("", "c")


@pytest.mark.covers("graders 4.2")
@pytest.mark.parametrize("solutions", [{}, {"solutions": []}], ids=["without solutions", "with none, as AReaL's"])
def test_a_file_may_hold_records_of_maths_and_of_code(solutions: dict[str, object]) -> None:
    code = canonical({"query_id": "c", "task": "code", "prompt": "p", "input_output": "{}", **solutions})
    maths = canonical({"query_id": "m", "task": "math", "prompt": "p", "solutions": ["1"]})
    assert [(found["id"], found["answer"]) for found in (code, maths)] == [("c", ""), ("m", ["1"])]


def test_a_record_of_code_without_its_tests_is_refused() -> None:
    with pytest.raises(ValueError, match="needs the column 'input_output'; its columns: prompt, query_id"):
        canonical({"query_id": "c", "prompt": "p"}, config(format="code"))


@pytest.mark.parametrize("family", ["clevr", "dialogue"])
def test_the_prompt_of_a_conversation_is_its_messages(family: str) -> None:
    assert canonical({"messages": ASKED, "answer": "1"}, config(format=family))["prompt"] == ASKED
    with pytest.raises(ValueError, match="prompt column 'messages' is a str, not a list of messages"):
        canonical({"messages": "hello", "answer": "1"}, config(format=family))


def test_a_record_with_a_repository_needs_no_gold() -> None:
    assert canonical({"prompt": "add", "repository": {}}, config())["answer"] == ""


def test_a_dialogue_needs_no_gold() -> None:
    assert canonical({"messages": ASKED}, config(format="dialogue"))["answer"] == ""
    with pytest.raises(ValueError, match="no answer column 'answer'"):
        canonical({"messages": ASKED}, config(format="clevr"))


def test_parts_of_text_are_one_text_and_what_a_template_reads_beside_it_stays() -> None:
    parts = [{"type": "text", "text": "How "}, {"type": "text", "text": "many?"}]
    found = canonical({"messages": [{"role": "user", "name": "eve", "content": parts}], "answer": "1"})
    assert found["prompt"] == [{"role": "user", "name": "eve", "content": "How many?"}]


@pytest.mark.parametrize(
    ("message", "sentence"),
    [
        ("hello", r"messages\[1\] is a str, not a message: it needs 'role' and 'content'"),
        ({"content": "x"}, r"messages\[1\] is .* not a message"),
        ({"role": "user"}, r"messages\[1\].content is NoneType, not a text"),
        ({"role": "user", "content": [{"type": "image"}]}, r"messages\[1\].content\[0\] is of type 'image'; only"),
        ({"role": "user", "content": ["text"]}, r"messages\[1\].content\[0\] is of type None; only"),
    ],
)
def test_a_message_that_cannot_be_read_is_named(message: object, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        canonical({"messages": [ASKED[0], message], "answer": "1"})


def test_the_query_id_is_the_id_and_must_not_hold_an_at_sign() -> None:
    assert canonical({"query_id": 12, "prompt": "p", "solutions": ["1"]})["id"] == "12"
    with pytest.raises(ValueError, match="'@'"):
        canonical({"query_id": "a@b", "prompt": "p", "solutions": ["1"]})


@pytest.mark.parametrize("value", [None, "", 1.5, True])
def test_a_named_id_is_a_text_or_an_integer(value: object) -> None:
    with pytest.raises(ValueError, match="id column 'key'"):
        canonical({"key": value, "prompt": "p", "answer": "1"}, config(columns=section(ColumnsSpec, id="key")))


def test_a_generated_task_with_many_right_answers_has_no_gold() -> None:
    found = canonical({"question": "q", "answer": None, "metadata": {}}, config(path="", reasoning_gym="jugs"))
    assert found["answer"] is None
