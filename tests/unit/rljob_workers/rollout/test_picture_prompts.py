"""Prompts with pictures: the chat template's text, with a picture's token as often as the model reads it."""

import pathlib

import pytest

from rljob_api import errors, types
from rljob_testing import models
from rljob_workers.models import vision
from rljob_workers.rollout import tokenizer

TOKEN, COUNT = 3, 4


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> tokenizer.PromptTokenizer:
    folder: pathlib.Path = tmp_path_factory.mktemp("tokens")
    models.make_tiny_tokenizer(folder, models.PICTURE_TOKEN)
    shown = vision.PictureTokens(token_id=TOKEN, count=COUNT)
    return tokenizer.PromptTokenizer(folder, template="chat", picture_tokens=shown)


def record(prompt: object, *pictures: bytes) -> types.PromptRecord:
    return types.PromptRecord(prompt_id="a", source="train", columns={"prompt": prompt}, pictures=pictures)


def test_each_mark_becomes_as_many_tokens_as_the_model_reads(tokens: tokenizer.PromptTokenizer) -> None:
    ids = tokens.prompt_ids(record("see <image> and <image>?", b"1", b"2"))
    shown = models.PICTURE_TOKEN * COUNT
    assert tokens.decode_exact(ids) == f"<|im_start|>user\nsee {shown} and {shown}?<|im_end|>\n<|im_start|>assistant\n"
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "<image>?"}]
    assert list(tokens.prompt_ids(record(messages, b"1"))).count(TOKEN) == COUNT


def test_a_prompt_without_pictures_is_as_it_was(tokens: tokenizer.PromptTokenizer) -> None:
    text = tokens.decode_exact(tokens.prompt_ids(record("what is <image>?")))
    assert text == "<|im_start|>user\nwhat is <image>?<|im_end|>\n<|im_start|>assistant\n"


def test_a_question_that_spells_the_token_is_refused(tokens: tokenizer.PromptTokenizer) -> None:
    with pytest.raises(errors.DataError, match="record a of train: the prompt has 2 times the token"):
        tokens.prompt_ids(record(f"<image> {models.PICTURE_TOKEN}", b"1"))
