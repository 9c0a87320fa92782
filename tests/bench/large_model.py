"""`python -m tests.bench.large_model --hidden 4096 --layers 13 --trains adapter --folder DIR`: a run of a large model.

A model of random weights is written to DIR in files of 1 GiB, trained by the real command with real vLLM and DeepSpeed
on this machine's CPU, served and exported; meanwhile the memory of each of its processes is watched. Prints one line of
JSON for docs/large_models.jsonl, with which a test compares what `rljob plan` says. `--trains all` makes one step of
all weights with ZeRO 3, optimizer and parameters in host memory; `adapter` makes two of an adapter. DIR is removed at
the end; a model that is there already, DIR/model, is taken.
"""

import argparse
import dataclasses
import json
import os
import pathlib
import shutil
import subprocess
import sys
from collections.abc import Mapping

import xxhash
from tests.bench import memory_watch

from rljob_testing import large_models, runs
from rljob_workers.runtime import machine
from rljob_workers.weights import image, safetensors_file

STEPS = {"adapter": 2, "all": 1}
_LIMIT_S = 7200.0
_PARITY = """def parity(completion_ids, **row):
    return float(sum(completion_ids) % 2)
"""


class FailedRunError(Exception):
    """The run did not do what it was to do."""


def manifest(folder: pathlib.Path, trains: str) -> Mapping[str, object]:
    """Return a job whose answers are rewarded at random, so that each group is trained on."""
    model: dict[str, object] = {"name": str(folder / "model")}
    deepspeed: dict[str, object] = {"zeroStage": 0}
    if trains == "adapter":
        model["lora"] = {"rank": 8}
    else:
        deepspeed = {"zeroStage": 3, "offloadOptimizer": True, "offloadParameters": True}
    return {
        "apiVersion": "rljob.dev/v1alpha1",
        "kind": "RLJob",
        "metadata": {"name": "large"},
        "spec": {
            "maxSteps": STEPS[trains],
            # The machine may have other work.
            "startupDeadlineSeconds": 86_400,
            "seed": 3,
            "model": model,
            "data": {
                "template": "raw",
                "train": [{"name": "questions", "path": str(folder / "train.jsonl"), "maxPromptTokens": 64}],
                "filterGroups": {"enabled": False},
            },
            "algorithm": {"groupSize": 8, "promptsPerStep": 2},
            "async": {"maxOffPolicySteps": 0},
            "rollout": {
                "engine": {"enforceEager": True, "maxModelLen": 96, "maxNumSeqs": 16},
                "sampling": {"maxTokens": 2},
            },
            "verifier": {"rewards": [{"name": "parity", "type": "parity:parity"}]},
            "workflow": {"type": "rlvr", "code": {"path": "parity.py"}},
            "trainer": {
                "optimizer": {"learningRate": "1e-3"},
                "deepspeed": deepspeed,
                "maxTokensPerMicroBatch": 1024,
            },
            "checkpoint": {"everySteps": 1000, "saveOptimizer": False},
            "observability": {"trajectoryDump": "None"},
            "failurePolicy": {"stall": {"timeoutSeconds": 86_400}},
            "evaluation": {"everySteps": 0},
        },
    }


def run(folder: pathlib.Path, width: large_models.Width, trains: str) -> dict[str, object]:
    """Make the model, run the job, and return what it took. Raises FailedRunError."""
    model = folder / "model"
    if not model.exists():
        large_models.make(model, width)
    layout = image.layout_from_safetensors(model, "bfloat16")
    rows = [{"prompt": f"Question {index:03d}: ", "answer": "x"} for index in range(16)]
    (folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "parity.py").write_text(_PARITY)
    job = folder / "job.json"
    job.write_text(json.dumps(manifest(folder, trains)))
    run_dir = folder / "run"
    command = [runs.RLJOB, "run", str(job), "--run-dir", str(run_dir), "--skip-check"]
    environment = {**os.environ, "RLJOB_CACHE_DIR": str(folder / "cache")}
    with (folder / "output.log").open("w") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, env=environment, start_new_session=True)
    with memory_watch.watch(process.pid) as usage:
        code = process.wait(timeout=_LIMIT_S)
    if code != 0:
        raise FailedRunError((folder / "output.log").read_text()[-4000:])
    summary = json.loads((run_dir / "summary.json").read_text())
    return {
        "trains": trains,
        "hidden": width.hidden,
        "layers": width.layers,
        "weights_bytes": sum(spec.length for spec in layout.tensors),
        "steps": STEPS[trains],
        "computes_in_fp32": machine.dtype_for_this_cpu("bfloat16") == "float32",
        "changed_in_export": changed_tensors(model, run_dir / "export"),
        "tensors": len(layout.tensors),
        "updates": summary["weight_updates"],
        "wall_s": round(summary["wall_s"], 1),
        "memory": {
            **{kind: dataclasses.asdict(peak) for kind, peak in sorted(usage.roles.items())},
            "all": dataclasses.asdict(usage.all),
        },
        "machine_used_before": usage.machine_used_before,
        "machine_used": usage.machine_used,
    }


def changed_tensors(model: pathlib.Path, export: pathlib.Path) -> int:
    """Return how many tensors of an exported model differ from those of the model files. Raises FailedRunError where
    it does not have the same ones.
    """
    before, after = (
        {
            entry.name: xxhash.xxh3_128_digest(data)
            for path in safetensors_file.paths(folder)
            for entry, data in safetensors_file.mapped(path)
        }
        for folder in (model, export)
    )
    if before.keys() != after.keys():
        raise FailedRunError(f"the export has other tensors: {sorted(before.keys() ^ after.keys())[:5]}")
    return sum(after[name] != digest for name, digest in before.items())


def main() -> int:
    """Return 0 if the run did all that."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hidden", type=int, required=True)
    parser.add_argument("--layers", type=int, required=True)
    parser.add_argument("--trains", choices=sorted(STEPS), required=True)
    parser.add_argument("--folder", type=pathlib.Path, required=True, help="removed at the end")
    arguments = parser.parse_args()
    folder = arguments.folder.absolute()
    width = large_models.Width(hidden=arguments.hidden, layers=arguments.layers)
    try:
        print(json.dumps(run(folder, width, arguments.trains)))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
