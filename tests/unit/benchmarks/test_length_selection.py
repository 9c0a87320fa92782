"""The simulation of tests/bench/length_selection.py, small: what the default of async.onStale promises."""

import pytest
from tests.bench import length_selection

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
