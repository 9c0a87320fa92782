"""Options of rewards are refused when the manifest is read, by path, value and what would be right."""

from collections.abc import Callable

import pytest

from rljob_api.manifest import reward_options
from rljob_api.manifest.job import RLJob
from rljob_api.validation import rules

MakeJob = Callable[..., RLJob]


def problems(make_job: MakeJob, type_: str, config: dict[str, object]) -> list[str]:
    job = make_job({"verifier.rewards": [{"name": "r", "type": type_, "config": config}]})
    return [sentence for sentence in rules.problems(job.spec) if "rewards[0].config" in sentence]


@pytest.mark.covers("graders 1")
@pytest.mark.parametrize(
    ("type_", "config", "said"),
    [
        ("gsm8k", {"method": "other"}, "config.method is 'other', but input should be 'strict', 'flexible' or 'math_v"),
        ("gsm8k", {"formatScore": 2}, "config.formatScore is 2, but input should be less than or equal to 1"),
        ("gsm8k", {"precision": 0}, "config.precision is 0, but"),
        ("math", {"boxed": True}, "config.boxed is true, but math has no such option; it has boxedOnly"),
        ("boxed", {"tagRule": "loose"}, "but boxed has no such option; it has verifierVersion"),
        ("boxed", {"verifierVersion": "slow"}, "config.verifierVersion is 'slow'"),
        ("clevr_count_70k", {"answerFormat": "braces"}, "config.answerFormat is 'braces'"),
        ("areal-math", {"solution": "x.jsonl"}, "it has solutionPath"),
        (
            "repository-tests",
            {"timeout": 5},
            "config.timeout is 5, but repository-tests has no such option; it has none",
        ),
        ("exact", {"ignoreCase": [1]}, "config.ignoreCase is [1]"),
        ("my_code:reward", {"weights": {"a": True}}, "config.weights is"),
        ("my_code:reward", {"weights": {"a": "1"}}, "config.weights is"),
    ],
)
def test_wrong_option_is_refused_with_what_would_be_right(
    make_job: MakeJob, type_: str, config: dict[str, object], said: str
) -> None:
    (sentence,) = problems(make_job, type_, config)
    assert sentence.startswith("spec.verifier.rewards[0].config.")
    assert said in sentence


@pytest.mark.covers("graders 1")
@pytest.mark.parametrize(
    ("type_", "config"),
    [
        ("gsm8k", {"method": "math_verify", "precision": 9, "formatScore": 0.1}),
        ("clevr_count_70k", {"answerFormat": "hashes", "method": "flexible"}),
        ("answer_tag", {"verifierVersion": "math_verify", "tagRule": "loose"}),
        ("reasoning_gym", {"datasets": ["chain_sum"], "binary": True}),
        ("my_code:reward", {"weights": {"a": 0.5, "b": -1}, "anything": {"else": [1]}}),
    ],
)
def test_options_of_the_reference_are_accepted(make_job: MakeJob, type_: str, config: dict[str, object]) -> None:
    assert problems(make_job, type_, config) == []


@pytest.mark.covers("graders 1")
def test_options_without_a_value_are_the_defaults_of_the_reference() -> None:
    # A judge has no URL by default.
    kinds = {type_: kind for type_, kind in reward_options.OPTIONS.items() if type_ != reward_options.JUDGE}
    defaults = {type_: kind().model_dump(by_alias=True) for type_, kind in kinds.items()}
    assert defaults["gsm8k"] == {"method": "strict", "formatScore": 0.0, "precision": 6}
    assert defaults["clevr_count_70k"] == {"answerFormat": "brackets", "method": "strict"}
    assert defaults["boxed"] == {"verifierVersion": "fast"}
    assert defaults["answer_tag"] == {"verifierVersion": "fast", "tagRule": "exact"}
    assert defaults["areal-math"] == defaults["areal-code"] == {"solutionPath": ""}
