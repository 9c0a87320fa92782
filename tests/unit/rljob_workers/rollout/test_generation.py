import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_api import errors, types
from rljob_workers.rollout import generation


def result(**changes: object) -> generation.GenerationResult:
    fields: dict[str, object] = {
        "output_ids": (4, 5),
        "logprobs": (-0.5, -1.0),
        "versions": (3, 4),
        "stop_reason": "stop",
    }
    return generation.GenerationResult(**(fields | changes))  # type: ignore[arg-type]


@pytest.mark.covers("workflows 1.2")
def test_a_result_that_keeps_the_contract_passes_unchanged() -> None:
    assert generation.checked(result()) == result()


@pytest.mark.covers("workflows 1.2", "workflows 1.3")
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"logprobs": (-0.5,)}, "2 tokens, 1 logprobs, 2 versions"),
        ({"versions": (3,)}, "2 tokens, 2 logprobs, 1 versions"),
        ({"logprobs": (-0.5, math.nan)}, "logprob nan of token 1"),
        ({"logprobs": (-math.inf, -0.5)}, "logprob -inf of token 0"),
        ({"logprobs": (-0.5, None)}, "logprob None of token 1"),
        ({"logprobs": (True, -0.5)}, "logprob True of token 0"),
        ({"logprobs": (-0.5, -9999.0)}, "logprob -9999.0 of token 1"),
        ({"logprobs": (0.5, -0.5)}, "logprob 0.5 of token 0"),
        ({"versions": (4, 3)}, "version 3 of token 1 follows version 4"),
        ({"versions": (-1, 3)}, "version -1 of token 0"),
        ({"stop_reason": "abort"}, "ended by 'abort'"),
        ({"output_ids": (), "logprobs": (), "versions": ()}, "no token"),
    ],
)
def test_a_result_that_breaks_a_rule_is_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(errors.EngineError, match=message):
        generation.checked(result(**changes))


@pytest.mark.covers("algorithms 8", "workflows 1.1")
@given(st.integers(0, 2**64 - 1), st.integers(0, 512), st.integers(0, 9))
def test_seeds_are_pure_63_bit_and_differ_between_members(seed: int, member: int, attempt: int) -> None:
    value = generation.derived_seed(seed, member, attempt)
    assert value == generation.derived_seed(seed, member, attempt)
    assert 0 <= value < 2**63
    assert value != generation.derived_seed(seed, member + 1, attempt)


def test_parts_of_a_seed_do_not_run_together() -> None:
    assert generation.derived_seed(1, 23) != generation.derived_seed(12, 3)


@pytest.mark.covers("workflows 1.1")
def test_budget_of_a_call_is_what_the_context_leaves() -> None:
    sampling = types.Sampling(max_tokens=100)
    assert generation.within_context(sampling, prompt_len=200, max_model_len=256).max_tokens == 56
    assert generation.within_context(sampling, prompt_len=20, max_model_len=256).max_tokens == 100


@pytest.mark.covers("workflows 1.1")
def test_a_prompt_that_fills_the_context_is_the_callers_error() -> None:
    with pytest.raises(errors.EpisodeError, match="256 tokens leaves no room in a context of 256"):
        generation.within_context(types.Sampling(), prompt_len=256, max_model_len=256)


def test_times_of_tokens_become_the_gaps_between_them() -> None:
    assert generation.gaps_s([10.0, 10.5, 12.5]) == (0.5, 2.0)
    assert generation.gaps_s([10.0]) == generation.gaps_s([]) == ()
    assert generation.gaps_s([10.0, 9.5]) == (0.0,), "two clocks may disagree where an answer was interrupted"
