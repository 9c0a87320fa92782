"""How fast does a student learn from a trained model? `python -m tests.bench.distillation --out build/distillation`

    for each seed: GRPO on the addition task, and distillation from what it exports, each by its example

So each student has a teacher of its own, since one teacher is easier to learn from than the next. Prints held-out
accuracy before and after, and seconds of the steps, of both. Ends with 1 where students miss a bar in the mean: two
points below the teacher, in a quarter of the time. A run takes minutes on two cores; started again, it continues.
"""

import argparse
import dataclasses
import json
import pathlib
import statistics
import sys
from collections.abc import Mapping, Sequence

import yaml
from tests.bench import sft_before_rl

from rljob_testing import examples

MAX_BEHIND = 0.02
"""How far below their teachers students may end in the mean, as a share of the held-out questions."""
MAX_SHARE = 0.25
"""How much of GRPO's time they may take in the mean."""


@dataclasses.dataclass(frozen=True, slots=True)
class Result:
    """Held-out accuracy before and after, and seconds from the first answer's beginning to the last update."""

    before: float
    after: float
    wall_s: float


def result(run_dir: pathlib.Path, accuracies: Mapping[int, float]) -> Result:
    """Return what a finished run came to. Raises ValueError for one without steps."""
    lines = map(json.loads, (run_dir / "state/history.jsonl").read_text(encoding="utf-8").splitlines())
    steps = [line for line in lines if line["kind"] == "step"]
    if not steps:
        raise ValueError(f"{run_dir} has no steps")
    began = min(start for line in steps for start, _ in line["generate"])
    wall_s = max(line["finished_at"] for line in steps) - began
    return Result(before=accuracies[0], after=accuracies[max(accuracies)], wall_s=wall_s)


def distilling_manifest(path: pathlib.Path, teacher: pathlib.Path) -> pathlib.Path:
    """Write the example with this teacher."""
    document = yaml.safe_load((examples.EXAMPLES / "addition-distill-cpu.yaml").read_text(encoding="utf-8"))
    spec = document["spec"]
    spec["teacher"]["model"] = str(teacher)
    for source in (*spec["data"]["train"], *spec["evaluation"]["suites"]):
        source["path"] = str(examples.EXAMPLES / source["path"])
    path.write_text(json.dumps(document), encoding="utf-8")
    return path


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """What all seeds came to in the mean. behind: below the teacher, a share of the questions; share: of its time."""

    behind: float
    share: float

    @property
    def is_reached(self) -> bool:
        """Return whether students are near enough to their teachers, early enough."""
        # Accuracies are multiples of one question; sums of them are not exact.
        return round(self.behind, 6) <= MAX_BEHIND and self.share <= MAX_SHARE


def outcome(teachers: Sequence[Result], students: Sequence[Result]) -> Outcome:
    """Return the means of the seeds."""
    pairs = list(zip(teachers, students, strict=True))
    return Outcome(
        behind=statistics.fmean(teacher.after - student.after for teacher, student in pairs),
        share=statistics.fmean(student.wall_s / teacher.wall_s for teacher, student in pairs),
    )


def page(teachers: Sequence[Result], students: Sequence[Result]) -> str:
    """Return the table of both sides, a line per seed."""
    rows = [
        "| seed | before | GRPO, the teacher: after | seconds | distillation: after | seconds | share of GRPO's |",
        "|---|---|---|---|---|---|---|",
    ]
    for seed, (one, other) in enumerate(zip(teachers, students, strict=True)):
        rows.append(
            f"| {seed} | {one.before:.1%} | {one.after:.1%} | {one.wall_s:.0f} | {other.after:.1%} | {other.wall_s:.0f}"
            f" | {other.wall_s / one.wall_s:.2f} |"
        )
    mean = outcome(teachers, students)
    points = 100 * mean.behind
    verdict = (
        f"mean: {abs(points):.1f} points {'below' if points >= 0 else 'above'} the teacher (bar: {100 * MAX_BEHIND:.1f}"
        f" below) in {mean.share:.2f} of its time (bar: {MAX_SHARE})"
    )
    return "\n".join([*rows, "", verdict])


def main() -> int:
    """Run both sides, print the page and return 0 where the bar is reached."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, required=True, help="folder of the runs")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, help="of distillation; default: the example's")
    parser.add_argument("--learning-rate", default="", help="of distillation; default: the example's")
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    plain = examples.EXAMPLES / "addition-cpu.yaml"

    def run(name: str, manifest: pathlib.Path, settings: Mapping[str, object]) -> Result:
        return result(asked.out / name, sft_before_rl.run(asked.out, name, manifest, settings))

    own: dict[str, object] = {"trainer.optimizer.learningRate": asked.learning_rate} if asked.learning_rate else {}
    own |= {"maxSteps": asked.steps} if asked.steps else {}
    teachers, students = [], []
    for seed in range(asked.seeds):
        teachers.append(run(f"grpo-{seed}", plain, {"seed": seed}))
        export = asked.out.resolve() / f"grpo-{seed}/export"
        manifest = distilling_manifest(asked.out / f"distill-{seed}.yaml", export)
        students.append(run(f"distilled-{seed}", manifest, {"seed": seed, **own}))
        print(page(teachers, students), flush=True)
    return 0 if outcome(teachers, students).is_reached else 1


if __name__ == "__main__":
    sys.exit(main())
