"""An answer in parts: what is asked again, and the whole that it becomes."""

import dataclasses
from collections.abc import Sequence

import pytest

from rljob_api import types
from rljob_workers.rollout import generation, request_gate

REQUEST = generation.GenerationRequest(
    rid="r", input_ids=(1, 2), sampling=types.Sampling(max_tokens=5, min_tokens=3), seed=7
)


def part(*ids: int, version: int = 0, stop: str = generation.INTERRUPT) -> generation.GenerationResult:
    return generation.GenerationResult(
        output_ids=ids, logprobs=tuple(-float(token) for token in ids), versions=(version,) * len(ids),
        stop_reason=stop, latency_s=2.0, ttft_s=0.5 if ids else 0.0, itl_s=(1.0,) * (len(ids) - 1),
    )  # fmt: skip


def test_a_request_that_goes_on_tells_of_the_tokens_before_it_too() -> None:
    told: list[Sequence[int]] = []
    rest = request_gate.remaining_request(
        dataclasses.replace(REQUEST, on_tokens=told.append), [part(3, 4), part(), part(5)]
    )
    assert rest is not None
    assert rest.on_tokens is not None
    rest.on_tokens((6,))
    assert told == [(3, 4, 5, 6)]


def test_before_any_part_the_request_is_asked_as_it_is() -> None:
    assert request_gate.remaining_request(REQUEST, []) is REQUEST


def test_input_and_tokens_so_far_are_sent_with_the_rest_of_the_budget_under_another_id_and_seed() -> None:
    rest = request_gate.remaining_request(REQUEST, [part(3, 4), part(), part(5)])
    assert rest is not None
    assert (rest.input_ids, rest.sampling.max_tokens, rest.sampling.min_tokens) == ((1, 2, 3, 4, 5), 2, 0)
    other = request_gate.remaining_request(REQUEST, [part(3, 4)])
    assert other is not None
    assert len({REQUEST.rid, rest.rid, other.rid}) == len({REQUEST.seed, rest.seed, other.seed}) == 3
    assert REQUEST.sampling == types.Sampling(max_tokens=5, min_tokens=3)


def test_nothing_is_asked_once_the_budget_is_used_up() -> None:
    assert request_gate.remaining_request(REQUEST, [part(3, 4, 5), part(6, 7)]) is None


@pytest.mark.covers("workflows 1.2")
def test_two_interruptions_make_the_plain_concatenation_with_each_tokens_version() -> None:
    whole = request_gate.join_parts([part(3, 4), part(5, version=1), part(6, 7, version=2, stop="stop")])
    assert whole.output_ids == (3, 4, 5, 6, 7)
    assert whole.logprobs == (-3.0, -4.0, -5.0, -6.0, -7.0)
    assert whole.versions == (0, 0, 1, 2, 2)
    assert generation.checked(whole).stop_reason == "stop"
    # Tokens come 0.5 s and 1.5 s into a part of 2 s.
    assert (whole.latency_s, whole.ttft_s, whole.itl_s) == (6.0, 0.5, (1.0, 1.0, 2.0, 1.0))


def test_prompt_tokens_of_all_parts_are_counted_as_they_were_asked() -> None:
    parts = [
        dataclasses.replace(part(3, 4), repeated_tokens=16, cached_tokens=16),
        dataclasses.replace(part(5, stop="stop"), repeated_tokens=32, cached_tokens=0),
    ]
    whole = request_gate.join_parts(parts)
    assert (whole.repeated_tokens, whole.cached_tokens) == (48, 16)


def test_a_part_without_times_leaves_the_whole_without_times() -> None:
    untimed = dataclasses.replace(part(5, 6), itl_s=())
    assert request_gate.join_parts([part(3, 4), untimed, part(7, stop="stop")]).itl_s == ()


@pytest.mark.covers("workflows 1.2")
def test_an_interruption_before_the_first_token_is_an_empty_part_and_no_error() -> None:
    whole = request_gate.join_parts([part(), part(3, stop="length")])
    assert (generation.checked(whole).output_ids, whole.ttft_s) == ((3,), 2.5)


@pytest.mark.parametrize("last", [generation.INTERRUPT, "length"])
def test_an_answer_that_used_up_its_budget_ended_by_length(last: str) -> None:
    for parts in ([part(3, 4, 5), part(6, 7, stop=last)], [part(3, 4, 5, 6, 7, stop=last)]):
        assert request_gate.join_parts(parts).stop_reason == "length"
