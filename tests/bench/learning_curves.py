"""Learning curves of few-shot addition: `python -m tests.bench.learning_curves --seeds 0,1,2 --steps 25`.

Runs the cells of the grid that the results file lacks, one after the other, appends a line after each, and makes the
page and the picture from all lines. May be stopped and started again: a cell that was not finished is run again. A cell
takes minutes on two cores; --max-runs bounds a call. Exit 0: all that was asked for is there; 1: a cell failed.
"""

import argparse
import datetime
import json
import pathlib
import shutil
import subprocess
import sys
from collections.abc import Sequence

from tests.bench import answers, curves, runner

from rljob_testing.runs import RLJOB

ROOT = pathlib.Path(__file__).parents[2]
MANIFEST = ROOT / "crds/examples/addition-cpu.yaml"
RESULTS = ROOT / "docs/learning_curves.jsonl"
# Far above what a cell of MAX_STEPS takes on two cores.
TIMEOUT_S = 7200.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what is missing, then make the page."""
    asked = _parser().parse_args(arguments)
    try:
        cells = curves.grid(
            estimators=asked.estimators.split(","),
            lags=map(int, asked.lags.split(",")),
            losses=asked.losses.split(","),
            seeds=map(int, asked.seeds.split(",")),
            steps=asked.steps,
        )
    except ValueError as error:
        _parser().error(str(error))
    waiting = curves.missing(cells, read(asked.results))
    print(f"{len(cells) - len(waiting)} of {len(cells)} cells are there", flush=True)
    failed = curves.fill(waiting[: asked.max_runs], asked.results, run=lambda cell: run_cell(cell, asked.out.resolve()))
    for cell, error in failed:
        print(f"{cell.name} failed: {error}", flush=True)
    render(asked.results)
    return 1 if failed else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.learning_curves", description=__doc__)
    parser.add_argument("--estimators", default=",".join(curves.ESTIMATORS))
    parser.add_argument("--lags", default=",".join(map(str, curves.LAGS)), help="values of async.maxOffPolicySteps")
    parser.add_argument("--losses", default=",".join(curves.LOSSES))
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--steps", type=int, default=25, help=f"optimizer steps a run, at most {curves.MAX_STEPS}")
    parser.add_argument("--max-runs", type=int, default=None, help="how many cells to run in this call; 0: only render")
    parser.add_argument("--results", type=pathlib.Path, default=RESULTS, help="lines of finished runs")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "build/curves", help="logs, and runs under way")
    return parser


def read(results: pathlib.Path) -> list[curves.Run]:
    """Return the runs of the file, none if there is no file yet."""
    lines = results.read_text(encoding="utf-8").splitlines() if results.exists() else []
    return [curves.from_line(line) for line in lines]


def run_cell(cell: curves.Cell, out: pathlib.Path) -> curves.Run:
    """Run a cell in a new folder, which goes when it has ended well. Raises CalledProcessError and TimeoutExpired."""
    folder, log = out / cell.name, out / f"{cell.name}.log"
    shutil.rmtree(folder, ignore_errors=True)
    out.mkdir(parents=True, exist_ok=True)
    command = [RLJOB, "run", str(MANIFEST)]
    command += ["--run-dir", str(folder), "--seed", str(cell.seed)]
    command += [part for setting in curves.settings(cell) for part in ("--set", setting)]
    print("+", " ".join(command), flush=True)
    with log.open("w", encoding="utf-8") as output:
        subprocess.run(command, check=True, stdout=output, stderr=subprocess.STDOUT, timeout=TIMEOUT_S)
    history = [json.loads(line) for line in (folder / "state/history.jsonl").read_text(encoding="utf-8").splitlines()]
    machine, points = runner.machine(), curves.curve(history)
    if len(points) != cell.steps:
        raise ValueError(f"{len(points)} of {cell.steps} steps are in the history; see {log}")
    run = curves.Run(
        cell=cell,
        curve=points,
        held_out=curves.held_out(history),
        commit=commit(),
        machine=f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_gib']} GiB",
        time=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    )
    # A checkpoint and an export of 2 GB.
    shutil.rmtree(folder)
    print(f"{cell.name}: held out {run.held_out:.2f}", flush=True)
    return run


def commit() -> str:
    """Return the commit that runs, marked if code or manifests differ from it; results and page do not count."""
    revision = ["git", "rev-parse", "--short=12", "HEAD"]
    changes = ["git", "status", "--porcelain", "--", "proto", "workers", "crds"]
    found = [
        subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
        for command in (revision, changes)
    ]
    return found[0] + (" with changes" if found[1] else "")


def render(results: pathlib.Path) -> None:
    """Write page and picture alongside the results, if there are any."""
    if runs := read(results):
        figure = results.with_suffix(".svg")
        figure.write_text(curves.svg(runs), encoding="utf-8")
        page = curves.page(runs, figure=figure.name, answers=answers.lines(runs))
        results.with_suffix(".md").write_text(page, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
