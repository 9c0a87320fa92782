"""Whether a teacher reads the tokens that the policy writes, by files as transformers writes them."""

import json
import pathlib
from collections.abc import Callable, Mapping

import pytest

from rljob_api import errors
from rljob_workers.models import vocabulary

Make = Callable[..., pathlib.Path]
BPE = {"a": 0, "b": 1}


@pytest.fixture
def make_folder(tmp_path: pathlib.Path) -> Make:
    def make(name: str, vocab: object, *, added: Mapping[str, int] | None = None, vocab_size: int = 4) -> pathlib.Path:
        folder = tmp_path / name
        folder.mkdir()
        tokens = [{"id": number, "content": text} for text, number in (added or {}).items()]
        document = {"model": {"type": "BPE", "vocab": vocab}, "added_tokens": tokens, "version": name}
        (folder / vocabulary.FILE).write_text(json.dumps(document), encoding="utf-8")
        (folder / "config.json").write_text(json.dumps({"vocab_size": vocab_size}), encoding="utf-8")
        return folder

    return make


def problem(teacher: pathlib.Path, policy: pathlib.Path) -> str:
    try:
        vocabulary.check_teacher("./better", teacher, policy=policy, tokenizer=policy)
    except errors.ManifestError as error:
        (sentence,) = error.problems
        return sentence
    return ""


def test_one_vocabulary_may_come_in_other_files_and_with_a_larger_output(make_folder: Make) -> None:
    policy = make_folder("policy", BPE, added={"<end>": 2}, vocab_size=3)
    teacher = make_folder("teacher", {"b": 1, "<end>": 2, "a": 0}, vocab_size=64)
    assert problem(teacher, policy) == ""


def test_tokens_of_a_unigram_model_are_numbered_by_their_place(make_folder: Make) -> None:
    assert problem(make_folder("teacher", [["a", -1.0], ["b", -2.0]]), make_folder("policy", BPE)) == ""


@pytest.mark.covers("algorithms 6.8")
@pytest.mark.parametrize(
    ("vocab", "added", "said"),
    [
        ({"a": 1, "b": 0}, {}, "(2 tokens, the policy's has 2): 'a' is 1 there and 0 in the policy's"),
        (BPE, {"<end>": 2}, "(3 tokens, the policy's has 2): '<end>' is 2 there and missing in the policy's"),
    ],
)
def test_another_vocabulary_is_refused_with_a_token_that_differs(
    make_folder: Make, vocab: Mapping[str, int], added: Mapping[str, int], said: str
) -> None:
    told = problem(make_folder("teacher", vocab, added=added), make_folder("policy", BPE))
    assert told.startswith("spec.teacher.model is './better', but its vocabulary is another one")
    assert said in told


def test_a_teacher_whose_output_has_fewer_ids_than_the_policy_may_sample_is_refused(make_folder: Make) -> None:
    told = problem(make_folder("teacher", BPE, vocab_size=2), make_folder("policy", BPE, vocab_size=4))
    assert "has 2 ids (vocab_size of config.json), fewer than the policy's 4" in told


@pytest.mark.parametrize("content", [None, "no json", "[]", '{"model": {}}'])
def test_a_folder_without_a_vocabulary_to_read_is_refused_with_what_writes_it(
    make_folder: Make, content: str | None
) -> None:
    teacher = make_folder("teacher", BPE)
    if content is None:
        (teacher / vocabulary.FILE).unlink()
    else:
        (teacher / vocabulary.FILE).write_text(content, encoding="utf-8")
    assert f"{teacher} has no tokenizer.json" in problem(teacher, make_folder("policy", BPE))
