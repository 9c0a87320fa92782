"""Does a start on the policy's own right answers help? `python -m tests.bench.sft_before_rl --out build/sft`

    a run of RL --> its right answers --> 500 examples
    for each seed: RL alone, and supervised steps on these examples with the same RL after them

Both sides sample the same number of answers in RL. Prints held-out accuracy of both, before, between and after. A run
takes minutes on two cores.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from rljob_testing import examples, runs

NUM_EXAMPLES, PER_STEP = 500, 50
SUPERVISED = NUM_EXAMPLES // PER_STEP
HARVEST_SEED = 1000


def accuracies(run_dir: pathlib.Path) -> dict[int, float]:
    """Return held-out accuracy by step."""
    lines = map(json.loads, (run_dir / "state/history.jsonl").read_text(encoding="utf-8").splitlines())
    return {line["step"]: line["accuracy"] for line in lines if line["kind"] == "evaluation"}


def run(folder: pathlib.Path, name: str, manifest: pathlib.Path, settings: Mapping[str, object]) -> dict[int, float]:
    """Run a manifest, or continue it, and return its accuracies. Raises CalledProcessError."""
    command = [runs.RLJOB, "run", str(manifest), "--run-dir", str(folder / name)]
    command += [part for path, value in settings.items() for part in ("--set", f"spec.{path}={value}")]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return accuracies(folder / name)


def harvest(folder: pathlib.Path, *, steps: int) -> pathlib.Path:
    """Return a file with right answers of a run of RL, the newest first. Raises ValueError if there are too few."""
    settings = {"maxSteps": steps, "seed": HARVEST_SEED, "observability.trajectoryDump": "All"}
    run(folder, "harvest", examples.EXAMPLES / "addition-cpu.yaml", settings)
    command = [runs.RLJOB, "trajectories", "--run-dir", str(folder / "harvest"), "--examples", "--reward", "1"]
    found = subprocess.run([*command, "--limit", str(NUM_EXAMPLES)], check=True, capture_output=True, text=True).stdout
    if len(found.splitlines()) < NUM_EXAMPLES:
        raise ValueError(f"{len(found.splitlines())} right answers are fewer than {NUM_EXAMPLES}: raise --steps")
    path = folder / "right.jsonl"
    path.write_text(found, encoding="utf-8")
    return path


def supervised_manifest(folder: pathlib.Path, right: pathlib.Path) -> pathlib.Path:
    """Write the example with supervised steps on `right`."""
    document = _example()
    for source in document["spec"]["data"]["train"]:
        if source.get("phase") == "SFT":
            source["path"] = str(right.resolve())
    return _written(folder / "sft.yaml", document)


def plain_manifest(folder: pathlib.Path) -> pathlib.Path:
    """Write the same example without its supervised steps, so that RL is the same on both sides."""
    document = _example()
    spec = document["spec"]
    del spec["sft"]
    spec["data"]["train"] = [source for source in spec["data"]["train"] if source.get("phase") != "SFT"]
    return _written(folder / "alone.yaml", document)


def _example() -> dict[str, Any]:
    """Return the manifest of both, readable from any folder."""
    text = (examples.EXAMPLES / "addition-sft-cpu.yaml").read_text(encoding="utf-8")
    document: dict[str, Any] = yaml.safe_load(text)
    for source in (*document["spec"]["data"]["train"], *document["spec"]["evaluation"]["suites"]):
        source["path"] = str(examples.EXAMPLES / source["path"])
    return document


def _written(path: pathlib.Path, document: Mapping[str, object]) -> pathlib.Path:
    path.write_text(json.dumps(document), encoding="utf-8")
    return path


def page(alone: Sequence[Mapping[int, float]], after: Sequence[Mapping[int, float]], *, steps: int) -> str:
    """Return the table of both sides, a line per seed."""
    rows = [
        "| seed | RL alone: before | after | SFT, then RL: before | after SFT | after RL |",
        "|---|---|---|---|---|---|",
    ]
    for seed, (one, other) in enumerate(zip(alone, after, strict=True)):
        values = (one[0], one[steps], other[0], other[SUPERVISED], other[SUPERVISED + steps])
        rows.append(f"| {seed} | " + " | ".join(f"{value:.1%}" for value in values) + " |")
    means = [
        statistics.fmean(values)
        for values in ([one[steps] for one in alone], [other[SUPERVISED + steps] for other in after])
    ]
    return "\n".join([*rows, "", f"mean after {steps} steps of RL: alone {means[0]:.1%}, after SFT {means[1]:.1%}"])


def main() -> None:
    """Run both sides and print the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--out", type=pathlib.Path, required=True, help="folder of the runs; started again, it continues"
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=30, help="of RL")
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    manifest = supervised_manifest(asked.out, harvest(asked.out, steps=asked.steps))
    plain = plain_manifest(asked.out)
    alone, after = [], []
    for seed in range(asked.seeds):
        alone.append(run(asked.out, f"alone-{seed}", plain, {"seed": seed, "maxSteps": asked.steps}))
        after.append(run(asked.out, f"sft-{seed}", manifest, {"seed": seed, "maxSteps": SUPERVISED + asked.steps}))
        print(page(alone, after, steps=asked.steps), flush=True)


if __name__ == "__main__":
    main()
