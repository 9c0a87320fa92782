"""C-14: 25 GRPO steps on few-shot addition, 16 prompts x 8 samples: TRL's GRPOTrainer against `rljob run`.

Both sides use the same model folder, prompts, learning rate, number of samples and answer length. A pair is one seed;
the side that starts is drawn from it. TRL lives in an environment of its own under `--out`. Figures: wall seconds per
step (first step left out on both sides: it compiles and warms caches), and seconds from the first step's start to the
first time that the mean over three steps reaches 0.5. Samples that are a step old teach a little less per step, so our
side continues for up to 40 steps towards that reward; a peer that has not reached it after 25 counts as if it just had,
which is in its favour. The curves of both are in the row's parameters and, over time, in `c14.svg`.
"""

import json
import math
import pathlib
import random
import shutil
import statistics
import subprocess
import sys
from collections.abc import Sequence

from tests.bench import comparison, runner

from rljob_testing.runs import RLJOB

ROOT = pathlib.Path(__file__).parents[3]
MANIFEST = ROOT / "crds/examples/addition-cpu.yaml"
TRAIN = ROOT / "crds/examples/data/addition-train.jsonl"
STEPS = 25
# Of our side, for the time to the reward alone.
MOST_STEPS = 40
TARGET = 0.5
WINDOW = 3
TRL = ("trl==1.16.0", "torch==2.13.0", "transformers==5.19.0", "accelerate", "datasets")


def measure(size: str, out: pathlib.Path) -> Sequence[runner.Measured]:
    """Run one seed (smoke: 5 steps) or three (full: 25 steps) and return wall per step and time to reward."""
    seeds, steps, most = ([0, 1, 2], STEPS, MOST_STEPS) if size == "full" else ([0], 5, 5)
    python = trl_environment(out / "trl-env")
    rate = learning_rate()
    walls, times, curves, notes = [], [], {}, []
    for seed in seeds:
        sides = ["ours", "peer"]
        random.Random(seed).shuffle(sides)
        runs = {
            side: run_ours(out, seed, most) if side == "ours" else run_trl(out, python, seed, steps, rate)
            for side in sides
        }
        walls.append(runner.Pair(per_step(runs["ours"][:steps]), per_step(runs["peer"]), sides[0]))
        times.append(runner.Pair(time_to(runs["ours"]), min(time_to(runs["peer"]), wall(runs["peer"])), sides[0]))
        if math.isinf(time_to(runs["peer"])):
            notes.append(f"seed {seed}: the peer did not reach {TARGET}; its {steps} steps count")
        curves[seed] = runs
        (out / "c14.svg").write_text(comparison.svg(curves, window=WINDOW, target=TARGET), encoding="utf-8")
    params = {"seeds": seeds, "steps": steps, "most_steps": most, "learning_rate": rate, "curves": curves}
    step = runner.Measured(row="C14", title="addition: wall per step", unit="s", pairs=walls, params=params)
    # A seed in which our side fails to learn may not fall out of the median.
    missed = [seed for seed, pair in zip(seeds, times, strict=True) if math.isinf(pair.ours)]
    reward = runner.Measured(
        row="C14-reward",
        title=f"addition: seconds to mean reward {TARGET}",
        unit="s",
        pairs=[] if missed else times,
        params=params,
        notes=notes,
        reason=f"seeds {missed} did not reach {TARGET} in {most} steps of ours: {times}" if missed else "",
    )
    return [step, reward]


def learning_rate() -> float:
    """Return the example's learning rate."""
    import yaml

    return float(yaml.safe_load(MANIFEST.read_text())["spec"]["trainer"]["optimizer"]["learningRate"])


def per_step(run: list[dict[str, float]]) -> float:
    """Return mean wall seconds per step without the first."""
    return statistics.fmean(row["wall_s"] for row in run[1:])


def wall(run: list[dict[str, float]]) -> float:
    """Return the wall seconds of all steps."""
    return math.fsum(row["wall_s"] for row in run)


def time_to(run: list[dict[str, float]]) -> float:
    """Return seconds until the mean reward of WINDOW steps reaches TARGET, infinity if it never does."""
    elapsed = 0.0
    for index, row in enumerate(run):
        elapsed += row["wall_s"]
        window = [earlier["reward"] for earlier in run[max(0, index - WINDOW + 1) : index + 1]]
        if len(window) == WINDOW and statistics.fmean(window) >= TARGET:
            return elapsed
    return math.inf


def trl_environment(folder: pathlib.Path) -> pathlib.Path:
    """Install TRL into an environment of its own and return its Python."""
    python = folder / "bin/python"
    if not python.exists():
        uv = str(pathlib.Path(sys.executable).with_name("uv"))
        subprocess.run([uv, "venv", "-q", "--python", "3.11", str(folder)], check=True)
        subprocess.run([uv, "pip", "install", "-q", "--python", str(python), *TRL], check=True)
    return python


def run_ours(out: pathlib.Path, seed: int, steps: int) -> list[dict[str, float]]:
    """Run the example without evaluation and return wall seconds and reward per step."""
    run_dir = out / f"ours-{seed}"
    shutil.rmtree(run_dir, ignore_errors=True)
    # Without the filter a step is of as many samples as the other side's, each learned from once.
    settings = [
        f"maxSteps={steps}", "evaluation.suites=[]", "checkpoint.everySteps=1000", "data.filterGroups.enabled=false",
        "async.maxOffPolicySteps=1", "algorithm.epochs=1",
    ]  # fmt: skip
    command = [RLJOB, "run", str(MANIFEST), "--run-dir", str(run_dir), "--seed", str(seed)]
    for setting in settings:
        command += ["--set", f"spec.{setting}"]
    print("+", " ".join(command), flush=True)
    with (out / f"ours-{seed}.log").open("w") as log:
        subprocess.run(command, check=True, stdout=log, stderr=subprocess.STDOUT, timeout=3600)
    lines = [json.loads(line) for line in (run_dir / "state/history.jsonl").read_text().splitlines()]
    rows = [line for line in lines if line["kind"] == "step"]
    starts = [started_at(lines), *(row["finished_at"] for row in rows)]
    return [
        {"wall_s": row["finished_at"] - before, "reward": row["reward_mean"]}
        for before, row in zip(starts, rows, strict=False)
    ]


def started_at(lines: list[dict[str, object]]) -> float:
    """Return when the first sample began to be generated: the first step's wall counts from there."""
    first = next(line for line in lines if line["kind"] == "step")
    intervals = first["generate"]
    assert isinstance(intervals, list)
    return float(min(start for start, _ in intervals))


def run_trl(out: pathlib.Path, python: pathlib.Path, seed: int, steps: int, rate: float) -> list[dict[str, float]]:
    """Run TRL's trainer and return wall seconds and reward per step."""
    result = out / f"trl-{seed}.json"
    script = pathlib.Path(__file__).with_name("trl_addition.py")
    command = [str(python), str(script), str(model_folder()), str(TRAIN), str(result), str(seed), str(steps), str(rate)]
    print("+", " ".join(command), flush=True)
    with (out / f"trl-{seed}.log").open("w") as log:
        subprocess.run(command, check=True, stdout=log, stderr=subprocess.STDOUT, timeout=7200)
    return list(json.loads(result.read_text())["steps"])


def model_folder() -> pathlib.Path:
    """Return the folder of the built-in model, made if need be."""
    from rljob_api import process_config
    from rljob_workers.models import builtin

    cache = pathlib.Path.home() / ".cache/rljob/models"
    return builtin.ensure_model(process_config.ModelFiles(name="builtin:smollm2-135m-instruct", cache_dir=str(cache)))
