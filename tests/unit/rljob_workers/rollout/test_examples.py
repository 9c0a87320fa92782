"""What a rollout makes of an example: its tokens, where its answer ends, and what cannot be learned."""

import pathlib

import pytest

from rljob_api import errors, types
from rljob_testing import models
from rljob_workers.rollout import examples, tokenizer

SAMPLING = types.Sampling(max_tokens=8)
QUESTION = "2 + 2 ="


def record(**columns: object) -> types.PromptRecord:
    return types.PromptRecord(prompt_id="p", source="answers", columns=columns)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    made = tmp_path_factory.mktemp("model")
    models.make_tiny_tokenizer(made)
    return made


def make(folder: pathlib.Path, template: str = "raw") -> tokenizer.PromptTokenizer:
    return tokenizer.PromptTokenizer(folder, template=template)


def spelled(tokens: tokenizer.PromptTokenizer, ids: tuple[object, ...]) -> list[str]:
    return [tokens.decode_exact(part) for part in ids]  # type: ignore[arg-type]


def test_an_answer_ends_with_the_first_stop_or_without_one_with_the_end_token(folder: pathlib.Path) -> None:
    tokens = make(folder)
    stopped = types.Sampling(max_tokens=8, stop=("\n", "."))
    assert spelled(tokens, tokens.example_ids(record(prompt=QUESTION, answer="4"), stopped)) == [QUESTION, "4\n"]
    assert spelled(tokens, tokens.example_ids(record(prompt=QUESTION, answer="4."), stopped)) == [QUESTION, "4."]
    prompt, answer = tokens.example_ids(record(prompt=QUESTION, answer="4"), SAMPLING)
    assert prompt == tokens.prompt_ids(record(prompt=QUESTION))
    assert answer == (*tokens.encode_more("4"), tokens.eos_ids[0])


def test_the_chat_template_closes_an_answer_as_the_policy_does(folder: pathlib.Path) -> None:
    tokens = make(folder, "chat")
    prompt, answer = tokens.example_ids(record(prompt=QUESTION, answer="4"), SAMPLING)
    assert prompt == tokens.chat_ids([{"role": "user", "content": QUESTION}])
    assert answer == (*tokens.encode_more("4"), tokens.eos_ids[0]), "not what the template puts between turns"


def test_a_conversation_that_ends_with_an_answer_is_an_example_of_it(folder: pathlib.Path) -> None:
    tokens = make(folder, "chat")
    messages = [{"role": "user", "content": QUESTION}, {"role": "assistant", "content": "4"}]
    asked = record(prompt=messages[:1], answer="4")
    assert tokens.example_ids(record(prompt=messages, answer=""), SAMPLING) == tokens.example_ids(asked, SAMPLING)


def test_texts_that_were_sampled_are_not_rendered_again(folder: pathlib.Path) -> None:
    tokens = make(folder, "chat")
    prompt, answer = tokens.example_ids(record(prompt=QUESTION, answer="4\n", rendered=True), SAMPLING)
    assert spelled(tokens, (prompt, answer)) == [QUESTION, "4\n"]


@pytest.mark.parametrize(
    "columns",
    [
        {"prompt": QUESTION, "answer": None},
        {"prompt": QUESTION, "answer": []},
        {"prompt": [{"role": "user", "content": QUESTION}], "answer": ""},
    ],
)
def test_a_record_without_an_answer_is_no_example(columns: dict[str, object]) -> None:
    with pytest.raises(errors.DataError, match="record p of answers has no prompt with an answer to learn"):
        examples.of_record(record(**columns))


def test_of_several_answers_the_first_is_learned() -> None:
    assert examples.of_record(record(prompt=QUESTION, answer=["4", "four"])).answer == "4"


def test_a_row_trains_the_answer_alone() -> None:
    row = examples.row((5, 6), (7, 8, 9), version=3)
    assert (list(row.loss_mask), list(row.versions)) == ([0, 0, 1, 1, 1], [-1, -1, 3, 3, 3])
    assert (row.prompt_len, row.num_sampled, row.verdict.grader) == (2, 3, "example")


def test_an_answer_longer_than_an_answer_may_be_is_left_out() -> None:
    assert examples.too_long(record(), 8, SAMPLING) == ""
    assert "an answer of 9 tokens, but rollout.sampling.maxTokens is 8" in examples.too_long(record(), 9, SAMPLING)
