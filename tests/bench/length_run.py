"""Real runs of uneven answers under each `async.onStale`: `python -m tests.bench.length_run` stores their figures.

A small random model, served by vLLM, samples characters nearly evenly until one of a few: lengths are geometric; the
longest of a group is about three times the mean. The learning rate is as good as none, and a group's random numbers are
a function of its prompt: all runs answer the same questions in the same way. The synchronous run trains every answer,
so its mean length is that of what is generated. `length_selection.py` makes the page. Minutes of two cores a run.
"""

import argparse
import dataclasses
import itertools
import json
import pathlib
import statistics
import subprocess
import tempfile
from collections.abc import Mapping, Sequence

from tests.bench import learning_curves, runner

from rljob_testing import models
from rljob_testing.runs import RLJOB

RESULTS = pathlib.Path(__file__).parents[2] / "docs/length_selection.json"
POLICIES = ("Mask", "Drop", "Wait")
STOP = ("a", "e", "i", "o", "u", "y")
PROMPTS, GROUP_SIZE, MAX_TOKENS = 8, 8, 320
TIMEOUT_S = 3600.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Of a run. wall_s: median over its steps; cancelled: share of its answers; length: mean tokens of trained answers;
    left_out: share of these that are too old for the loss.
    """

    policy: str
    bound: int
    num_answers: int
    wall_s: float
    cancelled: float
    length: float
    left_out: float


def manifest(model: pathlib.Path, records: pathlib.Path, *, policy: str, bound: int, steps: int) -> dict[str, object]:
    """Return the manifest of a run. bound: async.maxOffPolicySteps."""
    return {
        "apiVersion": "rljob.dev/v1alpha1", "kind": "RLJob", "metadata": {"name": "lengths"},
        "spec": {
            "maxSteps": steps, "model": {"name": str(model)},
            "data": {
                "template": "raw", "filterGroups": {"enabled": False},
                "train": [{"name": "questions", "path": str(records), "columns": {"id": "id"}, "maxPromptTokens": 32}],
            },
            "algorithm": {"groupSize": GROUP_SIZE, "promptsPerStep": PROMPTS},
            # Where nothing grows old there is no policy.
            "async": {"maxOffPolicySteps": bound, **({"onStale": policy} if bound else {})},
            "rollout": {
                "engine": {"enforceEager": True, "maxModelLen": 512, "maxNumSeqs": 2 * PROMPTS * GROUP_SIZE},
                "sampling": {"maxTokens": MAX_TOKENS, "stop": list(STOP)},
            },
            "verifier": {"rewards": [{"name": "score", "type": "exact"}]},
            "trainer": {
                "optimizer": {"learningRate": "1e-12"}, "deepspeed": {"zeroStage": 0}, "gradientCheckpointing": False,
                "maxTokensPerMicroBatch": 8192,
            },
            "checkpoint": {"everySteps": 1000},
        },
    }  # fmt: skip


def figures(history: Sequence[Mapping[str, object]], *, policy: str, bound: int) -> Figures:
    """Return the figures of a run's history. The first step is not timed: the engine starts in it."""
    steps = [line for line in history if line["kind"] == "step"]
    rows, means, tokens, too_old, ends = (
        [float(str(line[name])) for line in steps]
        for name in ("rows", "response_tokens_mean", "tokens", "tokens_too_old", "finished_at")
    )
    answers = steps[-1]["answers"]
    assert isinstance(answers, dict), "a step's line counts the answers by what became of them"
    return Figures(
        policy=policy,
        bound=bound,
        num_answers=round(sum(rows)),
        wall_s=statistics.median(after - before for before, after in itertools.pairwise(ends)),
        cancelled=answers["cancelled"] / sum(answers.values()),
        length=sum(count * mean for count, mean in zip(rows, means, strict=True)) / sum(rows),
        left_out=sum(too_old) / sum(tokens),
    )


def run(folder: pathlib.Path, *, policy: str, bound: int, steps: int) -> Figures:
    """Run and measure. Raises RuntimeError with what the run printed last, and TimeoutExpired."""
    name = f"{policy}-{bound}"
    job = folder / f"{name}.yaml"
    document = manifest(folder / "model", folder / "questions.jsonl", policy=policy, bound=bound, steps=steps)
    job.write_text(json.dumps(document), encoding="utf-8")
    command = [RLJOB, "run", str(job), "--run-dir", str(folder / name)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=TIMEOUT_S)
    if done.returncode:
        raise RuntimeError(f"{name} ended with {done.returncode}: {done.stdout[-3000:]}")
    lines = (folder / name / "state/history.jsonl").read_text(encoding="utf-8").splitlines()
    return figures([json.loads(line) for line in lines], policy=policy, bound=bound)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all and store."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.length_run", description=__doc__)
    parser.add_argument("--results", type=pathlib.Path, default=RESULTS)
    parser.add_argument("--bound", type=int, default=1, help="async.maxOffPolicySteps")
    parser.add_argument("--steps", type=int, default=24)
    asked = parser.parse_args(arguments)
    runs = [("Mask", 0), *((policy, asked.bound) for policy in POLICIES)]
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        models.make_tiny_llama(folder / "model", scale=0.02)
        records = ({"id": f"q{index}", "prompt": f"Question {index}: ", "answer": "-"} for index in range(1000))
        (folder / "questions.jsonl").write_text("".join(f"{json.dumps(record)}\n" for record in records))
        measured = []
        for policy, bound in runs:
            measured.append(run(folder, policy=policy, bound=bound, steps=asked.steps))
            print(measured[-1], flush=True)
    machine = runner.machine()
    stored = {
        "runs": [dataclasses.asdict(each) for each in measured],
        "machine": f"{machine['cpu']}, {machine['cores']} cores", "commit": learning_curves.commit(),
    }  # fmt: skip
    asked.results.write_text(json.dumps(stored, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
