"""Which rows are asked for."""

import pytest

from rljob_api import errors
from rljob_workers.cli import trajectories
from rljob_workers.local.rundir import dumps, group_facts


def row(**changes: object) -> dumps.Row:
    fields: dict[str, object] = {
        "group_id": "g1", "sample_idx": 0, "attempt": 0, "query_id": "p1", "seqlen": 5, "prompt_len": 3,
        "head_version": 1, "tail_version": 1, "version_rle": [[1, 2]], "reward": 1.0, "raw_reward": 1.0,
        "truncated": False, "stop_reason": "stop", "formatted": True, "reason": "ok", "prompt": "", "completion": "",
    }  # fmt: skip
    return dumps.Row.model_validate(fields | changes)


def never(group: str) -> group_facts.Facts:
    raise AssertionError(f"the ledger was asked about {group} without need")


@pytest.mark.parametrize(
    ("text", "inside", "outside"),
    [
        ("1", (1.0, 1.0000001), (0.0, 0.99)),
        ("=0", (0.0,), (1e-3,)),
        (">0.5", (0.51, 7.0), (0.5,)),
        (">= 0.5", (0.5,), (0.49,)),
        ("<0", (-0.1,), (0.0,)),
        ("<=0", (0.0, -3.0), (0.1,)),
        ("0.2..0.8", (0.2, 0.5, 0.8), (0.19, 0.81)),
        ("-1..0", (-1.0, 0.0), (0.5,)),
    ],
)
def test_reward_is_a_number_a_bound_or_a_range(
    text: str, inside: tuple[float, ...], outside: tuple[float, ...]
) -> None:
    test = trajectories.reward_test(text)
    assert all(map(test, inside))
    assert not any(map(test, outside))


@pytest.mark.parametrize("text", ["high", ">", "0..", "..1", "nan", "1 2", "=>1"])
def test_unclear_reward_is_refused_with_what_would_be_right(text: str) -> None:
    with pytest.raises(errors.ManifestError, match=r"--reward is .* but must be a number such as 1"):
        trajectories.reward_test(text)


def test_reasons_are_those_of_verdicts_and_of_drops() -> None:
    assert trajectories.checked_reasons(["no_answer", "stale"]) == {"no_answer", "stale"}
    with pytest.raises(errors.ManifestError, match="'rong'.*wrong.*zero_spread"):
        trajectories.checked_reasons(["rong"])


def test_ledger_is_asked_only_where_the_row_does_not_decide() -> None:
    wanted = trajectories.RowFilter(reasons={"wrong", "ok"})
    assert wanted.matches(row(), never)
    assert not wanted.matches(row(reason="no_answer"), never)
    assert not trajectories.RowFilter(reasons={"stale"}, truncated=True).matches(row(), never)


def test_reason_of_a_drop_is_the_ledgers() -> None:
    wanted = trajectories.RowFilter(reasons={"stale"})
    assert wanted.matches(row(), lambda group: group_facts.Facts(group=group, in_ledger=True, drop_reason="stale"))
    assert not wanted.matches(
        row(), lambda group: group_facts.Facts(group=group, in_ledger=True, drop_reason="rewound")
    )


def test_every_condition_must_hold() -> None:
    wanted = trajectories.RowFilter(reward=trajectories.reward_test("1"), prompt_ids=("p1",), truncated=True)
    assert wanted.matches(row(truncated=True), never)
    assert not wanted.matches(row(), never)
    assert not wanted.matches(row(truncated=True, query_id="p2"), never)
    assert not wanted.matches(row(truncated=True, reward=0.0), never)
