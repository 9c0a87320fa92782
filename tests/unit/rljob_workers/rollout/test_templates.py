import hashlib
import pathlib

import pytest

from rljob_api import errors, types
from rljob_workers.rollout import prompts

QUESTION = "What is 6 times 7?"


@pytest.mark.covers("workflows 8.1")
@pytest.mark.parametrize(
    ("template", "characters", "digest"),
    [
        ("qwen_math", 168, "aacbea9498bdce2ec530bd23c0f595aa430e2b402b77dec20f1e939364edd2ec"),
        ("r1", 457, "c68c1a4570c01733c96718b81472bd250a96272ea8eef56bb841989b91f626cd"),
        ("raw", 18, "388ba6637d7cc48d0b13a6fc92f5e4b38e183ef36f9290313c4245354fb2d7e6"),
    ],
)
def test_rendered_prompt_has_the_published_length_and_digest(template: str, characters: int, digest: str) -> None:
    prompt = prompts.render(template, QUESTION)
    assert (len(prompt), hashlib.sha256(prompt.encode()).hexdigest()) == (characters, digest)


@pytest.mark.covers("workflows 8.1")
def test_a_question_with_capital_q_braces_and_blanks_is_inserted_unchanged() -> None:
    question = "  Q {x} Q \n"
    assert prompts.render("raw", question) == question
    assert f"\nUser: {question}\nAssistant: <think>" in prompts.render("r1", question)


def test_an_unknown_template_is_refused_with_the_known_ones() -> None:
    with pytest.raises(errors.ManifestError, match="spec.data.template is 'alpaca'.*chat, qwen_math, r1, raw"):
        prompts.check("alpaca")


CONFIGURED = types.Sampling(stop=("\n",), stop_token_ids=(9,), include_stop=False)


@pytest.mark.covers("workflows 8.2")
@pytest.mark.parametrize(
    ("template", "stop", "ids", "include"),
    [
        ("qwen_math", (), (), False),
        ("r1", ("</answer>",), (), True),
        ("raw", ("\n",), (9,), False),
        ("chat", ("\n",), (9, 2, 0), False),
    ],
)
def test_stop_rules_of_each_template(template: str, stop: tuple[str], ids: tuple[int], include: bool) -> None:
    ruled = prompts.with_stop_rules(template, CONFIGURED, eos_ids=(2, 0))
    assert (ruled.stop, ruled.stop_token_ids, ruled.include_stop) == (stop, ids, include)


@pytest.mark.covers("workflows 1.1", "workflows 12")
def test_adding_stop_ids_makes_a_new_object() -> None:
    prompts.with_stop_rules("chat", CONFIGURED, eos_ids=(2,))
    assert CONFIGURED.stop_token_ids == (9,)


def test_ignoring_eos_adds_no_stop_ids() -> None:
    sampling = types.Sampling(ignore_eos=True)
    assert prompts.with_stop_rules("chat", sampling, eos_ids=(2,)) == sampling


RECORD = types.PromptRecord(prompt_id="p", source="s", columns={"prompt": "hi", "level": 3})


def load(folder: pathlib.Path, body: str, *, name: str) -> prompts.Render:
    path = folder / f"{name}.py"
    path.write_text(body)
    found = prompts.load_template(f"{name}:ask", file=str(path))
    assert found is not None
    return found


@pytest.mark.covers("workflows 8.1")
def test_a_function_of_the_users_maps_a_record_to_a_text_or_to_ids(tmp_path: pathlib.Path) -> None:
    text = load(tmp_path, 'def ask(record):\n    return f\'{record["level"]}: {record["prompt"]}\'\n', name="own_text")
    assert prompts.rendered(text, RECORD) == "3: hi"
    ids = load(tmp_path, "def ask(record):\n    return [record['level'], 7]\n", name="own_ids")
    assert prompts.rendered(ids, RECORD) == (3, 7)


@pytest.mark.covers("workflows 8.1")
def test_what_a_users_function_may_not_return_or_raise_is_an_error_of_the_record() -> None:
    for made in (None, "", [], [1, "2"], [True], [-1]):
        with pytest.raises(errors.DataError, match="record p of s became .*must become a text or a list of token ids"):
            prompts.rendered(lambda record, made=made: made, RECORD)  # type: ignore[misc]  # wrong on purpose
    with pytest.raises(errors.DataError, match=r"spec.data.template: record p of s: KeyError at test_templates.py:"):
        prompts.rendered(lambda record: str(record["answer"]), RECORD)


def test_a_template_that_is_no_function_is_refused(tmp_path: pathlib.Path) -> None:
    with pytest.raises(errors.ManifestError, match="is 'own_int:ask', which is int and not a function"):
        load(tmp_path, "ask = 3\n", name="own_int")


def test_templates_of_ours_need_no_file() -> None:
    assert prompts.load_template("qwen_math", file="") is None
