import dataclasses
import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_api import enums, errors, types
from rljob_testing import makers


@pytest.mark.covers("workflows 1.3")
def test_row_knows_where_its_prompt_ends_and_how_many_tokens_were_sampled() -> None:
    row = makers.make_trajectory(prompt=(1, 2, 3), completion=(4, 5))
    assert (row.prompt_len, row.num_sampled) == (3, 2)


@pytest.mark.covers("algorithms 1", "workflows 1.3")
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"logprobs": types.floats([0, 0, 0, -1])}, "logprobs has 4 entries for 5 tokens"),
        ({"loss_mask": types.mask([0, 0, 0, 0, 0])}, "no sampled token"),
        ({"loss_mask": types.mask([0, 0, 0, 1, 2])}, "other than 0 and 1"),
        ({"loss_mask": types.mask([1, 1, 1, 1, 1])}, "no prompt token"),
        ({"logprobs": types.floats([0, 0, 0, -1, float("nan")])}, "is not a log-probability"),
        ({"logprobs": types.floats([0, 0, 0, -1, float("-inf")])}, "is not a log-probability"),
        ({"logprobs": types.floats([0, 0, 0, -1, 0.01])}, "is not a log-probability"),
        ({"logprobs": types.floats([0, 0, 0, -1, -9999.0])}, "is not a log-probability"),
        ({"logprobs": types.floats([0, 0, -1, -1, -1])}, "was not sampled but has a logprob"),
        ({"versions": types.ints([-1, -1, -1, 4, 3])}, "follows version 4"),
        ({"versions": types.ints([-1, -1, -1, -1, 0])}, "follows version 0"),
        ({"turn_ids": types.ints([-1, -1, -1, 1, 0])}, "follows turn 1"),
        ({"reward": float("inf")}, "not finite"),
        ({"turn_rewards": (float("nan"),)}, "not all finite"),
        ({"turn_ids": types.ints([-1, -1, -1, 0, 1]), "turn_rewards": (1.0,)}, "turn 1 has no reward among 1"),
        ({"turn_rewards": (0.0, 0.5)}, "turn 1 has reward 0.5, but no sampled token"),
    ],
)
def test_row_that_breaks_a_rule_is_refused_at_construction(change: dict[str, object], message: str) -> None:
    with pytest.raises(errors.WireError, match=message):
        dataclasses.replace(makers.make_trajectory(), **change)  # type: ignore[arg-type]  # wrong on purpose


@pytest.mark.covers("algorithms 1")
def test_logprob_above_zero_by_rounding_only_is_accepted() -> None:
    assert makers.make_trajectory(logprobs=[1e-5, 0.0]).num_sampled == 2


def test_infra_failure_cannot_carry_a_reward() -> None:
    with pytest.raises(errors.WireError, match="cannot have reward 0.0"):
        types.Verdict(reward=0.0, reason=enums.VerdictReason.INFRA_FAILURE, outcome=enums.VerifyOutcome.INFRA_ERROR)


def test_graded_verdict_cannot_lack_a_reward() -> None:
    with pytest.raises(errors.WireError, match="cannot have reward None"):
        types.Verdict(reward=None, reason=enums.VerdictReason.WRONG, outcome=enums.VerifyOutcome.FAIL)


@st.composite
def rows(draw: st.DrawFn) -> dict[str, Any]:
    """Return the arrays of a row: an allowed one, or one with a value somewhere that breaks a rule."""
    flags = [0, *draw(st.lists(st.integers(0, 1), min_size=1, max_size=12)), 1]
    version = turn = 0
    arrays: dict[str, list[Any]] = {"logprobs": [], "versions": [], "turn_ids": []}
    for flag in flags:
        version, turn = version + draw(st.integers(0, 1)), turn + draw(st.integers(0, 1))
        arrays["logprobs"].append(-0.5 * flag)
        arrays["versions"].append(version if flag else types.NO_VERSION)
        arrays["turn_ids"].append(turn if flag else types.NO_TURN)
    if draw(st.booleans()):
        place = draw(st.integers(0, len(flags) - 1))
        wrong = st.sampled_from(["logprobs", "versions", "turn_ids"])
        arrays[draw(wrong)][place] = draw(st.sampled_from([0, -1, -9999, 1, 3]))
    return {
        "tokens": types.ints(range(len(flags))),
        "loss_mask": types.mask(flags),
        "logprobs": types.floats(arrays["logprobs"]),
        "versions": types.ints(arrays["versions"]),
        "turn_ids": types.ints(arrays["turn_ids"]),
    }


def breaks_a_rule(row: dict[str, Any]) -> bool:
    """The rules of a row's tokens, one token at a time."""
    version = turn = 0
    for flag, logprob, one, other in zip(
        row["loss_mask"], row["logprobs"], row["versions"], row["turn_ids"], strict=True
    ):
        if not flag:
            if (logprob, one, other) != (0.0, types.NO_VERSION, types.NO_TURN):
                return True
        elif not -9999.0 != logprob <= 1e-4 or one < version or other < turn:
            return True
        else:
            version, turn = one, other
    return False


@given(rows())
def test_whole_runs_of_tokens_are_judged_as_tokens_one_by_one_are(row: dict[str, Any]) -> None:
    template = makers.make_trajectory()
    if breaks_a_rule(row):
        with pytest.raises(errors.WireError):
            dataclasses.replace(template, **row)
        return
    made = dataclasses.replace(template, **row)
    sampled = [version for version, flag in zip(row["versions"], row["loss_mask"], strict=True) if flag]
    assert [version for version, count in made.version_runs() for _ in range(count)] == sampled
    assert all(before[0] != after[0] for before, after in itertools.pairwise(made.version_runs()))
