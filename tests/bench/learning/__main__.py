"""`python -m tests.bench.learning --seeds 0,1,2,3,4`: run what docs/learning.jsonl lacks, then write docs/learning.md.

One core, seconds a run, one after the other; --max-runs bounds a call, and 0 only writes the page. May be stopped and
started again at any time.
"""

import argparse
import dataclasses
import datetime
import pathlib
from collections.abc import Sequence

from tests.bench import learning_curves, runner
from tests.bench.learning import page, results, sides

ROOT = pathlib.Path(__file__).parents[3]
RESULTS = ROOT / "docs/learning.jsonl"
STEPS = 40


def main(arguments: Sequence[str] | None = None) -> int:
    """Run and write."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.learning", description=__doc__)
    parser.add_argument("--tasks", default=",".join(page.TASKS))
    parser.add_argument("--sides", default=",".join(sides.SIDES))
    parser.add_argument("--trl", default="", help="Python of an environment with TRL (row C14 makes one); none: no TRL")
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--max-runs", type=int, default=None)
    parser.add_argument("--results", type=pathlib.Path, default=RESULTS, help="lines of finished runs")
    parser.add_argument("--cache", type=pathlib.Path, default=ROOT / "build/learning", help="holds the base model")
    options = parser.parse_args(arguments)
    try:
        cells = sides.grid(
            tasks=options.tasks.split(","), sides=options.sides.split(","), seeds=map(int, options.seeds.split(",")),
            steps=options.steps, known_tasks=page.TASKS,
        )  # fmt: skip
    except ValueError as error:
        parser.error(str(error))
    if options.max_runs != 0:
        # A side of one turn a row.
        cells = [
            cell for cell in cells if not sides.SIDES[cell.side].is_peer or (options.trl and cell.task != "guessing")
        ]
        run(cells, options.results, options.cache, most=options.max_runs, trl=options.trl)
    write(options.results)
    return 0


def run(cells: Sequence[sides.Cell], path: pathlib.Path, cache: pathlib.Path, *, most: int | None, trl: str) -> None:
    """Run the missing cells and append a line after each."""
    # Heavy, and not needed to write the page.
    from tests.bench.learning import base_model, peer, tasks, training

    from rljob_testing import learning

    made = {name: make() for name, make in tasks.MAKERS.items()}
    with learning.only_rank() as folder:
        base = base_model.ensure(cache, list(made.values()))
        digest = base_model.digest(base)
        waiting = results.missing(cells, results.read(path), base=digest)
        print(f"{len(waiting)} of {len(cells)} runs are missing", flush=True)
        machine = runner.machine()
        for cell in waiting[:most]:
            if sides.SIDES[cell.side].is_peer:
                outcome = peer.train(cell, made[cell.task], base, folder, [trl, str(peer.PROGRAM)])
            else:
                outcome = training.train(cell, made[cell.task], base, folder)
            line = results.Run(
                cell=cell, **dataclasses.asdict(outcome), base=digest, commit=learning_curves.commit(),
                machine=f"{machine['cpu']}, {machine['cores']} cores",
                time=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            )  # fmt: skip
            with path.open("a", encoding="utf-8") as lines:
                lines.write(results.to_line(line))
            print(f"{cell}: {line.first_reward:.2f} to {line.held_out:.2f} in {line.cpu_s:.0f} s", flush=True)


def write(path: pathlib.Path) -> None:
    """Write the page beside the results, if there are any."""
    if runs := results.read(path):
        path.with_suffix(".md").write_text(page.text(runs), encoding="utf-8")


if __name__ == "__main__":
    raise SystemExit(main())
