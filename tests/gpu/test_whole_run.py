"""`rljob run` on one GPU, which engine and trainer share: a job that learns, and one of a published shape for speed."""

import json
import pathlib
import statistics
import subprocess
import sys
from typing import Any

import pytest

from rljob_testing import examples, gpu

pytestmark = [*gpu.NEEDS_GPU, pytest.mark.timeout(3000)]
ADDITION = examples.EXAMPLES / "addition-cpu.yaml"
RLJOB = str(pathlib.Path(sys.executable).with_name("rljob"))
# The engine takes its share of the GPU's memory when it starts, and the trainer lives in the rest.
ON_ONE_GPU = {"device": "cpu" if gpu.REHEARSAL else "cuda", "rollout.engine.enforceEager": gpu.REHEARSAL} | (
    {} if gpu.REHEARSAL else {"rollout.engine.gpuMemoryUtilization": '"0.4"'}
)


def run(folder: pathlib.Path, changes: dict[str, object]) -> dict[str, Any]:
    """Run the addition example with changes and return its summary; its output goes where pytest -s shows it."""
    command = [RLJOB, "run", str(ADDITION), "--run-dir", str(folder)]
    for path, value in {**ON_ONE_GPU, **changes}.items():
        written = str(value).lower() if isinstance(value, bool) else value
        command += ["--set", f"spec.{path}={written}"]
    print("+", " ".join(command), flush=True)
    ended = subprocess.run(command, check=False)
    tails = {path.name: path.read_text()[-1500:] for path in sorted((folder / "logs").glob("*"))}
    assert ended.returncode == 0, f"exit code {ended.returncode}; the ends of the logs: {json.dumps(tails, indent=1)}"
    summary: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    return summary


def test_few_shot_addition_is_learned(tmp_path: pathlib.Path, figures: gpu.Figures) -> None:
    summary = run(tmp_path / "run", {"maxSteps": 2 if gpu.REHEARSAL else 40})
    figures.add("addition: seconds of the run", summary["wall_s"], "s")
    figures.add("addition: output tokens of the rollout", summary["throughput"]["generated_tokens_per_s"], "tok/s")
    figures.add("addition: share of the trainer's time that it waits", summary["wait_share"]["trainer"], "share")
    gaps = [gap for gap in summary["logprob_gap_mean"] if gap is not None]
    figures.add("addition: gap of log-probabilities, engine to trainer", statistics.median(gaps), "nats", most=0.05)
    before, after = (
        next(row["accuracy"] for row in reversed(summary["evaluation"]) if row["step"] == step)
        for step in (0, summary["steps"])
    )
    figures.add("addition: held-out accuracy before", before, "share")
    figures.add("addition: held-out accuracy after", after, "share")
    for index, reward in enumerate(summary["reward_mean"], start=1):
        figures.add(f"addition: mean reward, step {index}", reward, "")
    assert summary["staleness"]["max"] <= 1
    assert summary["trajectories"]["infra_failed"] == 0
    if not gpu.REHEARSAL:
        # Two cores lift it by 0.2 to 0.6 in as many steps (docs/learning_curves.md).
        assert after >= before + 0.1


def test_a_model_of_half_a_billion_parameters_for_speed(tmp_path: pathlib.Path, figures: gpu.Figures) -> None:
    model = gpu.random_model(tmp_path / "model", "Qwen2.5-0.5B")
    length = 16 if gpu.REHEARSAL else 512
    summary = run(
        tmp_path / "run",
        {
            "model.name": model,
            "maxSteps": 1 if gpu.REHEARSAL else 10,
            "evaluation.suites": "[]",
            "evaluation.beforeTraining": False,
            "rollout.sampling.maxTokens": length,
            "rollout.sampling.ignoreEos": True,
            "rollout.sampling.stop": "[]",
            "rollout.engine.maxModelLen": 512 if gpu.REHEARSAL else 1024,
            "rollout.engine.maxNumSeqs": 16 if gpu.REHEARSAL else 128,
            "data.train": json.dumps(
                [
                    {
                        "name": "addition",
                        "path": "data/addition-train.jsonl",
                        "columns": {"id": "id"},
                        "maxPromptTokens": 400,
                    }
                ]
            ),
            "trainer.maxTokensPerMicroBatch": 16384,
            "trainer.gradientCheckpointing": True,
            "trainer.optimizer.learningRate": '"1e-6"',
        },
    )
    figures.add("Qwen2.5-0.5B, one GPU: seconds a step", summary["wall_s"] / summary["steps"], "s")
    figures.add("Qwen2.5-0.5B, one GPU: output tokens", summary["throughput"]["generated_tokens_per_s"], "tok/s")
    figures.add("Qwen2.5-0.5B, one GPU: weight updates", summary["weight_updates"]["count"], "")
    assert summary["steps"] == (1 if gpu.REHEARSAL else 10)
