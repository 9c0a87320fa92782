"""The simulation of tests/bench/length_selection.py, small: what the default of async.onStale promises."""

import dataclasses
import json
import pathlib

import pytest
from tests.bench import length_run, length_selection

from rljob_api.validation import load
from rljob_testing.sections import make_spec


def setting(policy: str, eta: int) -> length_selection.Setting:
    return length_selection.Setting(policy=policy, eta=eta, train=2.0, num_groups=8, group_size=4, num_steps=20)


@pytest.mark.covers("algorithms 2.3")
@pytest.mark.parametrize("eta", [1, 2, 4])
def test_under_the_default_answers_are_trained_whatever_their_length_at_the_speed_of_dropping(eta: int) -> None:
    default = make_spec(max_off_policy_steps=eta).async_.on_stale
    ours = length_selection.simulate(setting(default, eta))
    dropping = length_selection.simulate(setting("Drop", eta))
    assert 0.98 <= ours.length_ratio <= 1.02
    assert ours.dropped == 0.0
    assert ours.oldest_trained <= eta
    assert ours.step_time <= 1.15 * dropping.step_time
    assert dropping.length_ratio < 0.98, "there is something to select by"


def test_waiting_trains_every_token_and_takes_longer() -> None:
    waiting, dropping = (length_selection.simulate(setting(policy, 1)) for policy in ("Wait", "Drop"))
    assert (waiting.length_ratio, waiting.left_out, waiting.dropped) == (1.0, 0.0, 0.0)
    assert waiting.oldest <= 1
    assert waiting.step_time > 1.15 * dropping.step_time


def test_the_same_seed_gives_the_same_run() -> None:
    chosen = length_selection.Setting(policy="Mask", eta=1, train=2.0, num_groups=2, group_size=2, num_steps=4)
    assert length_selection.simulate(chosen, seed=3) == length_selection.simulate(chosen, seed=3)


@pytest.mark.parametrize("policy", length_run.POLICIES)
def test_the_manifest_of_a_real_run_is_one_that_runs(policy: str) -> None:
    path = pathlib.Path("m")
    spec = load.load_manifest(json.dumps(length_run.manifest(path, path, policy=policy, bound=1, steps=2))).spec
    assert spec.async_.on_stale == policy


def test_the_figures_of_a_real_run_weigh_steps_by_their_answers_and_leave_the_first_untimed() -> None:
    """Lengths 10 of 2 answers and 40 of 4 are 180 tokens, of which 45 are too old; 1 of 8 answers was cancelled."""
    lines = [
        {"kind": "step", "rows": 2, "response_tokens_mean": 10.0, "tokens": 20, "tokens_too_old": 0,
         "finished_at": 9.0},
        {"kind": "checkpoint"},
        {"kind": "step", "rows": 4, "response_tokens_mean": 40.0, "tokens": 160, "tokens_too_old": 45,
         "finished_at": 11.5, "answers": {"trained": 6, "stale": 1, "cancelled": 1}},
    ]  # fmt: skip
    assert length_run.figures(lines, policy="Drop", bound=1) == length_run.Figures(
        policy="Drop", bound=1, num_answers=6, wall_s=2.5, cancelled=0.125, length=30.0, left_out=0.25
    )


def test_the_page_has_real_runs_against_the_synchronous_one_and_the_one_that_drops() -> None:
    whole = length_run.Figures(
        policy="Mask", bound=0, num_answers=64, wall_s=3.0, cancelled=0.0, length=40.0, left_out=0.0
    )
    dropping = dataclasses.replace(whole, policy="Drop", bound=1, wall_s=2.0, cancelled=0.2, length=36.0)
    stored = {"runs": [dataclasses.asdict(each) for each in (whole, dropping)], "machine": "m", "commit": "c"}
    text = length_selection.page([], stored)
    assert "| synchronous | 0 | 64 | 3.00 s | 1.50 | 0.0% | 40.0 | 1.000 | 0.0% |" in text
    assert "| `Drop` | 1 | 64 | 2.00 s | 1.00 | 20.0% | 36.0 | 0.900 | 0.0% |" in text
