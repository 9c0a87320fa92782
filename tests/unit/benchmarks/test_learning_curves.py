"""The grid of learning curves: which cells, with which settings, and the figures that are read off a curve."""

import pathlib
import subprocess

import pytest

from bench import answers, curves
from rljob_api import resolve
from rljob_testing import examples
from rljob_workers.local import prepare

CELL = curves.Cell(seed=0, lag=1, estimator="grpo", loss="decoupled", steps=4)
WHOLE = curves.grid(estimators=curves.ESTIMATORS, lags=curves.LAGS, losses=curves.LOSSES, seeds=(0,), steps=25)


def make_run(cell: curves.Cell = CELL, rewards: tuple[float, ...] = (0.0, 0.25, 0.5, 0.75)) -> curves.Run:
    points = tuple(curves.Point(reward=reward, wall_s=2.0, staleness=1.0) for reward in rewards)
    return curves.Run(
        cell=cell, curve=points, held_out=0.5, commit="c0ffee", machine="a CPU, 2 cores, 8 GiB",
        time="2026-01-02T03:04:05+00:00",
    )  # fmt: skip


def step_line(step: int, *, reward: float, finished_at: float) -> dict[str, object]:
    return {
        "kind": "step", "step": step, "reward_mean": reward, "finished_at": finished_at, "staleness_mean": 0.5,
        "generate": [[12.0, 13.0], [10.0, 14.0]],
    }  # fmt: skip


def test_the_grid_has_every_combination_once_and_goes_seed_by_seed() -> None:
    cells = curves.grid(estimators=("grpo", "ppo"), lags=(0, 4), losses=("coupled",), seeds=(1, 2), steps=9)
    assert [cell.seed for cell in cells] == [1] * 4 + [2] * 4
    assert len({cell.name for cell in cells}) == len(set(cells)) == 8


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"steps": 2}, "steps is 2, which must be from 3 to 200"),
        ({"steps": 201}, "steps is 201"),
        ({"estimators": ("gpro",)}, "estimator 'gpro' is not one of grpo, drgrpo, rloo, ppo"),
        ({"losses": ("both",)}, "loss 'both' is not one of decoupled, coupled"),
        ({"lags": (0, -1)}, "lag -1 is below 0"),
    ],
)
def test_what_the_grid_cannot_have_is_refused_by_name(changes: dict[str, object], message: str) -> None:
    asked: dict[str, object] = {
        "estimators": ("grpo",),
        "lags": (0,),
        "losses": ("coupled",),
        "seeds": (0,),
        "steps": 9,
    }
    with pytest.raises(ValueError, match=message):
        curves.grid(**(asked | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize("cell", WHOLE, ids=lambda cell: cell.name)
def test_every_cell_of_the_grid_is_a_manifest_without_warning_and_has_what_its_name_says(cell: curves.Cell) -> None:
    manifest = prepare.read_manifest(examples.EXAMPLES / "addition-cpu.yaml", curves.settings(cell))
    spec = manifest.job.spec
    assert resolve.warnings(manifest.job) == []
    assert (spec.algorithm.advantage_estimator, spec.async_.max_off_policy_steps) == (cell.estimator, cell.lag)
    assert spec.algorithm.loss.proximal == {"decoupled": "Recompute", "coupled": "Behavior"}[cell.loss]
    assert spec.max_steps == 25


def test_cells_that_were_run_are_left_out_and_the_others_keep_their_order() -> None:
    cells = curves.grid(estimators=("grpo", "rloo", "ppo"), lags=(1,), losses=("decoupled",), seeds=(0,), steps=4)
    assert curves.missing(cells, [make_run(cells[1])]) == [cells[0], cells[2]]
    longer = curves.grid(estimators=("rloo",), lags=(1,), losses=("decoupled",), seeds=(0,), steps=5)
    assert curves.missing(longer, [make_run(cells[1])]) == longer, "more steps are another run"


def test_a_run_comes_back_from_its_line() -> None:
    assert curves.from_line(curves.to_line(make_run())) == make_run()


def test_a_cell_that_failed_is_told_and_leaves_no_line_and_the_others_still_run(tmp_path: pathlib.Path) -> None:
    cells = curves.grid(estimators=("grpo", "rloo", "ppo"), lags=(1,), losses=("decoupled",), seeds=(0,), steps=4)
    results = tmp_path / "results.jsonl"

    def run(cell: curves.Cell) -> curves.Run:
        if cell.estimator == "rloo":
            raise subprocess.CalledProcessError(1, "rljob")
        return make_run(cell)

    failed = curves.fill(cells, results, run=run)
    assert [(cell.estimator, str(error)) for cell, error in failed] == [
        ("rloo", "Command 'rljob' returned non-zero exit status 1.")
    ]
    found = [curves.from_line(line) for line in results.read_text().splitlines()]
    assert [run.cell.estimator for run in found] == ["grpo", "ppo"]
    assert curves.missing(cells, found) == [cells[1]]


def test_a_curve_begins_with_the_first_sample_and_takes_the_last_of_repeated_steps() -> None:
    history = [
        step_line(1, reward=0.25, finished_at=15.0),
        {"kind": "version", "step": 1},
        step_line(2, reward=0.0, finished_at=17.0),
        step_line(2, reward=0.75, finished_at=21.0),
    ]
    assert [(point.reward, point.wall_s) for point in curves.curve(history)] == [(0.25, 5.0), (0.75, 6.0)]


def test_a_history_without_steps_or_evaluation_is_refused() -> None:
    with pytest.raises(ValueError, match="no step"):
        curves.curve([{"kind": "version"}])
    with pytest.raises(ValueError, match="no evaluation"):
        curves.held_out([])
    assert curves.held_out([{"kind": "evaluation", "accuracy": 0.25}, {"kind": "evaluation", "accuracy": 0.5}]) == 0.5


def test_the_target_is_reached_where_three_steps_have_it_on_average() -> None:
    assert curves.steps_to_target([0.9, 0.0, 0.3, 0.6, 0.6]) == 5
    assert curves.steps_to_target([0.5, 0.5, 0.5]) == 3
    assert curves.steps_to_target([0.9, 0.9]) is None


def test_the_line_of_the_picture_is_the_mean_of_seeds_and_of_up_to_three_steps() -> None:
    runs = [make_run(rewards=(0.0, 0.0, 0.5, 1.0)), make_run(rewards=(0.5, 1.0, 0.5))]
    assert curves.mean_curve(runs) == pytest.approx([0.25, 0.375, 1.25 / 3])


def test_the_page_has_a_row_a_series_with_its_seeds_together() -> None:
    other = curves.Cell(seed=1, lag=1, estimator="grpo", loss="decoupled", steps=4)
    ppo = curves.Cell(seed=0, lag=0, estimator="ppo", loss="coupled", steps=4)
    text = curves.page([make_run(ppo), make_run(other, (0.5, 0.5, 0.5, 0.5)), make_run()], figure="f.svg")
    rows = [line for line in text.splitlines() if line.startswith(("| grpo", "| ppo"))]
    # 0.25 and 0.5 over the first three, 0.375 and 0.5 over all four; reached at steps 4 and 3.
    assert rows == [
        "| grpo | 1 | decoupled | 4 | 2 | 0.38 | 0.44 | 0.38 to 0.50 | 3.5 | 0.50 | 1.0 |",
        "| ppo | 0 | coupled | 4 | 1 | 0.25 | 0.38 | 0.38 to 0.38 | 4 | 0.50 | 1.0 |",
    ]
    assert "(f.svg)" in text
    assert text.count("- a CPU, 2 cores, 8 GiB; commit c0ffee; 2026-01-02.") == 1


def test_the_picture_has_a_panel_for_each_estimator_that_was_run() -> None:
    ppo = curves.Cell(seed=0, lag=0, estimator="ppo", loss="coupled", steps=4)
    drawn = curves.svg([make_run(), make_run(ppo)])
    assert drawn == curves.svg([make_run(), make_run(ppo)]), "equal results draw equal pictures"
    assert drawn.count('id="axes_') == 2


def test_the_page_in_the_documentation_is_what_its_results_make() -> None:
    results = examples.ROOT / "docs/learning_curves.jsonl"
    lines = results.read_text(encoding="utf-8").splitlines() if results.exists() else []
    page = results.with_suffix(".md")
    if lines:
        runs = [curves.from_line(line) for line in lines]
        made = curves.page(runs, figure="learning_curves.svg", answers=answers.lines(runs))
        assert page.read_text(encoding="utf-8") == made, "run python -m tests.bench.learning_curves --max-runs 0"
    else:
        assert not page.exists(), "a page without results"
