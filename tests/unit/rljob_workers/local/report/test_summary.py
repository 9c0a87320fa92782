"""Summaries of histories worked by hand. Lines are written here as the coordinator's reference says they look."""

import json
import pathlib

import pytest

from rljob_workers.local.report import summary
from rljob_workers.local.rundir import history


def step_line(step: int, **changes: object) -> dict[str, object]:
    """A step of 10 s: 2 s of waiting, 5 s forward and backward, 3 s optimizer; generation overlaps 4 s of it."""
    line: dict[str, object] = {
        "seq": step, "kind": "step", "at": 0.0, "step": step,
        "started_at": 100.0 * step, "finished_at": 100.0 * step + 10,
        "reward_mean": 0.5, "reward_std": 0.25, "staleness": {"0": 1, "1": 3}, "staleness_token_mean": 0.75,
        "tokens": 40, "tokens_generated": 100 * step, "generate": [[100.0 * step - 8, 100.0 * step + 6]],
        "mixed_version_trajectories": 2, "trajectories": {"accepted": 32 * step, "stale": step},
        "stats": {"wait_s": 2.0, "forward_backward_s": 5.0, "optimizer_s": 3.0, "behavior/abs_diff": 0.02},
    }  # fmt: skip
    return line | changes


def sync_line(version: int, pause_s: float, total_s: float, failure: str = "") -> dict[str, object]:
    return {
        "kind": "weight_sync", "pod": "rollout-0", "version": version, "step": version, "pause_s": pause_s,
        "total_s": total_s, "bytes": 269_000_000, "requests_in_flight": 3, "failure": failure,
    }  # fmt: skip


def parse(*lines: dict[str, object]) -> history.Run:
    return history.parse(json.dumps(line) for line in lines)


def summarized(run: history.Run) -> summary.Summary:
    return summary.summarize(run, wall_s=60.0, peak_rss_bytes={"trainer": 5})


def test_summary_of_two_steps() -> None:
    found = summarized(parse(step_line(1, reward_mean=0.125), step_line(2, reward_mean=0.375)))
    assert (found.steps, found.wall_s) == (2, 60.0)
    assert found.reward_mean == [0.125, 0.375]
    assert found.staleness == summary.StalenessPart(max=1, mean=0.75, histogram={"0": 2, "1": 6})
    assert found.trajectories == summary.TrajectoriesPart(accepted=64, stale=2, infra_failed=0, filtered=0)
    # 2 of 10 seconds of the second step; the first one's waiting is start-up.
    assert found.wait_share.trainer == pytest.approx(0.2)
    # Each step: generation -8..6, training 2..10 (10 s less 2 s of waiting), together 18 s.
    assert found.throughput.generated_tokens_per_s == pytest.approx(200 / 36)
    assert found.throughput.trained_tokens_per_s == pytest.approx(80 / 36)
    assert found.logprob_gap_mean == [0.02, 0.02]
    assert found.peak_rss_bytes == {"trainer": 5}


def test_prefixes_are_counted_over_all_steps_and_by_the_last_line_of_the_engines_counters() -> None:
    lines = [
        step_line(
            step,
            packed_tokens={"computed": 50 * step, "unique": 40 * step, "rows": 200 * step},
            prefix_tokens={"repeated": 1000 * step, "cached": 990 * step},
        )
        for step in (1, 3)
    ]
    found = summarized(parse(*lines)).prefixes
    assert found == summary.PrefixesPart(computed_per_unique_token=1.25, saved_share=0.75, cache_hit_share=0.99)


def test_a_run_in_which_nothing_is_repeated_has_no_shares() -> None:
    nothing = summary.PrefixesPart(computed_per_unique_token=None, saved_share=None, cache_hit_share=None)
    assert summarized(parse(step_line(1))).prefixes == nothing


def test_mean_staleness_weighs_tokens_and_not_steps() -> None:
    run = parse(step_line(1, tokens=10, staleness_token_mean=0.0), step_line(2, tokens=30, staleness_token_mean=2.0))
    assert summarized(run).staleness.mean == pytest.approx(1.5)


def test_weight_updates_take_percentiles_and_leave_failed_ones_out() -> None:
    lines = [sync_line(1, 0.2, 2.0), sync_line(2, 0.4, 3.0), sync_line(3, 0.3, 4.0), sync_line(4, 9.0, 9.0, "digest")]
    assert summarized(parse(*lines)).weight_updates == summary.WeightUpdatesPart(
        count=3, pause_s_p50=0.3, pause_s_max=0.4, sync_s_p50=3.0, bytes_p50=269_000_000
    )


def test_evaluations_are_in_order_of_steps() -> None:
    lines = [
        {"kind": "evaluation", "suite": "held-out", "step": step, "version": step, "accuracy": accuracy, "n": 200}
        for step, accuracy in ((25, 0.5), (0, 0.1))
    ]
    found = summarized(parse(*lines)).evaluation
    assert [(part.suite, part.step, part.accuracy, part.n) for part in found] == [
        ("held-out", 0, 0.1, 200),
        ("held-out", 25, 0.5, 200),
    ]


def test_step_trained_again_after_a_rewind_counts_once_with_its_last_values() -> None:
    run = parse(
        step_line(1, reward_mean=0.1),
        step_line(2, reward_mean=0.2),
        step_line(3, reward_mean=0.3),
        {"kind": "restart", "role": "trainer", "attempt": 2, "step": 3, "resume_step": 1},
        step_line(2, reward_mean=0.2, tokens_generated=350),
    )
    assert [step.step for step in run.steps] == [1, 2]
    assert [step.tokens_generated for step in run.steps] == [100, 250]


def test_line_that_is_still_being_written_is_left_out(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "history.jsonl"
    path.write_text(json.dumps(step_line(1)) + '\n{"kind": "st')
    assert [step.step for step in history.read(path).steps] == [1]


def test_empty_history_has_an_empty_summary(tmp_path: pathlib.Path) -> None:
    found = summarized(history.read(tmp_path / "missing.jsonl"))
    assert (found.steps, found.reward_mean, found.evaluation) == (0, [], [])
    assert found.weight_updates.count == 0
    assert found.weight_updates.pause_s_p50 is None
    assert found.throughput.generated_tokens_per_s == 0.0


def test_rollout_wait_share_comes_from_what_the_runner_observed() -> None:
    run = history.with_wait_shares(parse(step_line(1), step_line(2), step_line(3)), {1: 0.1, 2: 0.3})
    assert summarized(run).wait_share.rollout == pytest.approx(0.2)


def test_overlap_of_training_and_generation() -> None:
    run = parse(step_line(1))
    assert run.training_spans() == [(102.0, 110.0)]
    assert run.generating_spans() == [(92.0, 106.0)]


@pytest.mark.parametrize(("share", "expected"), [(0.5, 2), (0.9, 4), (0.25, 1), (1.0, 4)])
def test_percentiles_are_nearest_rank(share: float, expected: int) -> None:
    assert summary.percentile([4, 1, 3, 2], share) == expected


def test_waiting_for_the_first_batch_is_start_up_and_no_share_of_the_run() -> None:
    slow_start = {"wait_s": 90.0, "forward_backward_s": 8.0}
    found = summarized(parse(step_line(1, stats=slow_start), step_line(2), step_line(3)))
    assert found.wait_share.trainer == pytest.approx(0.2)


def test_tokens_generated_for_evaluations_are_no_tokens_of_a_step() -> None:
    evaluated = {"kind": "evaluation", "suite": "s", "step": 0, "accuracy": 0.0, "n": 8, "samples": 8}
    run = parse(
        evaluated | {"response_tokens": 5.0}, step_line(1, tokens_generated=100), step_line(2, tokens_generated=160)
    )
    assert [step.tokens_generated for step in run.steps] == [60, 60]


def test_a_supervised_step_has_a_loss_and_no_reward() -> None:
    lost = {"policy/loss": 1.5, "wait_s": 2.0}
    supervised = {name: value for name, value in step_line(1, phase="SFT", stats=lost).items() if "reward" not in name}
    run = parse({**supervised, "staleness": {}}, step_line(2, reward_mean=0.375))
    assert summarized(run).reward_mean == [None, 0.375]
    assert ([step.step for step in run.sft_steps], [step.step for step in run.rl_steps]) == ([1], [2])
    assert run.rewards == [0.375]
    assert summarized(run).staleness.mean == 0.75, "examples have no age"
