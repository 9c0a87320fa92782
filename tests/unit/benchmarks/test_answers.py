"""What is read off runs of learning curves: gains, and differences of pairs."""

import dataclasses

import pytest

from bench import answers, curves


def run(*rewards: float, held_out: float = 0.5, **cell: object) -> curves.Run:
    whole = {"seed": 0, "lag": 0, "estimator": "grpo", "loss": "decoupled", "steps": len(rewards)} | cell
    points = tuple(curves.Point(reward=reward, wall_s=1.0, staleness=0.0) for reward in rewards)
    return curves.Run(
        cell=curves.Cell(**whole), curve=points, held_out=held_out, commit="c", machine="m", time="2026-01-02"
    )  # type: ignore[arg-type]  # fields of a cell


def test_gain_is_the_mean_of_the_last_five_steps_less_that_of_the_first_three() -> None:
    found = run(0.1, 0.2, 0.3, 0.9, 0.4, 0.5, 0.6, 0.5, 0.5)
    assert curves.last_reward(found) == pytest.approx(0.5)
    assert answers.gain(found) == pytest.approx(0.3)


def test_pairs_are_alike_but_for_what_is_named() -> None:
    base = run(0.5, lag=0, seed=1)
    late = run(0.4, lag=4, seed=1)
    runs = [base, late, run(0.3, lag=4, seed=2), run(0.2, lag=4, seed=1, loss="coupled"), run(0.1, lag=1, seed=1)]
    assert answers.pairs(runs, base={"lag": 0}, other={"lag": 4}) == [(base, late)]


def test_a_difference_is_that_of_the_other_run_less_the_base() -> None:
    pairs = [(run(0.0), run(0.1)), (run(0.0), run(0.3))]
    found = answers.difference(pairs, curves.last_reward)
    assert (found.mean, found.error) == (pytest.approx(0.2), pytest.approx(0.1))


def test_difference_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="no pair"):
        answers.difference([], curves.last_reward)


def test_the_sections_count_who_learnt_and_compare_what_is_there() -> None:
    learnt, not_learnt = run(0.1, 0.1, 0.1, 0.5, 0.5, 0.5, 0.5, 0.5), run(*[0.2] * 8, lag=1)
    other = dataclasses.replace(not_learnt, cell=dataclasses.replace(not_learnt.cell, estimator="ppo"))
    lines = answers.lines([learnt, not_learnt, other])
    assert "| grpo | 2 | 1 | 0.20 | 0.00 |" in lines
    assert "| ppo | 1 | 0 | 0.00 | 0.00 |" in lines
    assert "| lag 1 instead of 0, decoupled | 1 | (-0.300) | (+0.000) |" in lines
    assert not [line for line in lines if line.startswith(("| lag 4", "| coupled"))]
    assert lines[-2:] == [
        "Of held-out accuracy, then:",
        "- lag 1 with the decoupled loss has one pair of runs, which does not tell.",
    ]


def test_without_a_pair_the_sections_say_so() -> None:
    assert answers.lines([run(0.1, 0.1, 0.1)])[-1] == "- there is no pair of runs to tell."
