"""The coordinator's history.jsonl as this package reads it. The only file here that knows the names of its keys.

A step that was trained again after a trainer rewind counts once: its last line is the surviving history. Cumulative
counters of the file become differences between surviving steps.
"""

import dataclasses
import json
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rljob_api import enums, learning
from rljob_workers.local.rundir import intervals

# Phases of a step in the order in which they happen, and the trainer's statistic of each.
PHASES: Mapping[str, enums.StepStat] = {
    "wait": enums.StepStat.WAIT_S,
    "proximal": enums.StepStat.PROXIMAL_S,
    "forward_backward": enums.StepStat.FORWARD_BACKWARD_S,
    "optimizer": enums.StepStat.OPTIMIZER_S,
    "publish": enums.StepStat.PUBLISH_S,
    "checkpoint": enums.StepStat.CHECKPOINT_S,
}

# A parsed JSON object; its values have no static types.
_Line = Mapping[str, Any]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step of the surviving history. Times are unix seconds, phases seconds, the gap nats.

    reward_mean, reward_std: of all answers that were graded for it, also of groups that `data.filterGroups` left out;
    trained_reward_mean: of those that it trained. None of a supervised step.

    staleness: consumed groups by age in steps; staleness_token_mean: over tokens; generating: spans in which groups of
    this step were generated; tokens_generated: for training, by all rollouts, since the step before;
    packed_tokens: of the micro-batches, as computed, unique (the least) and rows (each on its own);
    rollout_wait_share: 0..1, which the runner observes (`with_wait_shares`), None where it did not; stats: all
    statistics of the trainer.
    """

    step: int
    started_at: float
    finished_at: float
    reward_mean: float | None
    reward_std: float = 0.0
    trained_reward_mean: float | None = None
    staleness: Mapping[int, int] = dataclasses.field(default_factory=dict)
    staleness_token_mean: float = 0.0
    tokens_trained: int = 0
    tokens_generated: int = 0
    phases_s: Mapping[str, float] = dataclasses.field(default_factory=dict)
    generating: Sequence[intervals.Span] = ()
    mixed_version_trajectories: int = 0
    packed_tokens: Mapping[str, int] = dataclasses.field(default_factory=dict)
    rollout_wait_share: float | None = None
    stats: Mapping[str, float] = dataclasses.field(default_factory=dict)

    @property
    def wait_s(self) -> float:
        """Return the seconds that the trainer waited for the batch."""
        return self.phases_s.get("wait", 0.0)

    @property
    def logprob_gap(self) -> float | None:
        """Return the gap of engine and trainer under the same weights, nats."""
        return self.stats.get(enums.StepStat.LOGPROB_ABS_DIFF)

    @property
    def logprob_gap_all(self) -> float | None:
        """Return the gap over all sampled tokens, of whatever version, nats."""
        return self.stats.get(enums.StepStat.BEHAVIOR_ABS_DIFF)

    @property
    def total_s(self) -> float:
        return sum(self.phases_s.values())

    @property
    def wait_share(self) -> float:
        """Return the share of the step that the trainer waited, 0..1."""
        return self.wait_s / self.total_s if self.total_s > 0 else 0.0

    @property
    def training(self) -> intervals.Span:
        """Return when the trainer computed: the end of the step, without the waiting before it."""
        return max(self.started_at, self.finished_at - (self.total_s - self.wait_s)), self.finished_at


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """One suite on one version. accuracy: share with score exactly 1."""

    suite: str
    step: int
    accuracy: float
    n: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Sync:
    """One weight version applied by one rollout; seconds and bytes."""

    pod: str
    version: int
    pause_s: float
    total_s: float
    num_bytes: int
    requests_in_flight: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """All that the history shows, in order. trajectories: cumulative counts by outcome; answers, answer_tokens: of
    answers and of their sampled tokens by `enums.AnswerFate`; prefix_tokens: of prompts, those that earlier calls to
    an engine began with (`repeated`), and those that its prefix cache had (`cached`).
    """

    steps: Sequence[Step] = ()
    evaluations: Sequence[Evaluation] = ()
    syncs: Sequence[Sync] = ()
    checkpoints: Sequence[int] = ()
    trajectories: Mapping[str, int] = dataclasses.field(default_factory=dict)
    answers: Mapping[str, int] = dataclasses.field(default_factory=dict)
    answer_tokens: Mapping[str, int] = dataclasses.field(default_factory=dict)
    prefix_tokens: Mapping[str, int] = dataclasses.field(default_factory=dict)

    @property
    def rl_steps(self) -> Sequence[Step]:
        """Return the steps that were trained on the policy's own answers, which alone have rewards."""
        return [step for step in self.steps if step.reward_mean is not None]

    @property
    def sft_steps(self) -> Sequence[Step]:
        """Return the supervised steps."""
        return [step for step in self.steps if step.reward_mean is None]

    @property
    def rewards(self) -> list[float]:
        """Return the mean reward of each step that has one."""
        return [step.reward_mean for step in self.steps if step.reward_mean is not None]

    def training_spans(self) -> list[intervals.Span]:
        return intervals.union(step.training for step in self.steps)

    def generating_spans(self) -> list[intervals.Span]:
        """Return when at least one group that was trained on was being generated."""
        return intervals.union(span for step in self.steps for span in step.generating)


def with_wait_shares(run: Run, shares: Mapping[int, float]) -> Run:
    """Return the run with the rollouts' wait shares by step filled in."""
    steps = [dataclasses.replace(step, rollout_wait_share=shares.get(step.step)) for step in run.steps]
    return dataclasses.replace(run, steps=steps)


def read(path: pathlib.Path) -> Run:
    """Return the run that a history file reports on; an empty one if there is no file yet."""
    return parse(path.read_text(encoding="utf-8").splitlines()) if path.exists() else Run()


def step_ends(path: pathlib.Path) -> dict[int, float]:
    """Return when each step of the surviving history was finished, unix seconds, reading a line at a time."""
    ends: dict[int, float] = {}
    if not path.exists():
        return ends
    with path.open(encoding="utf-8") as file:
        for line in _objects(file):
            if line.get("kind") == "step":
                ends[line["step"]] = line["finished_at"]
            elif line.get("kind") == "restart" and line.get("role") == enums.Role.TRAINER:
                ends = {step: at for step, at in ends.items() if step <= line["resume_step"]}
    return ends


def parse(lines: Iterable[str]) -> Run:
    """Return the surviving history. A last line that is still being written is left out."""
    steps: dict[int, _Line] = {}
    evaluated_tokens = 0
    evaluations: dict[tuple[str, int], Evaluation] = {}
    syncs: list[Sync] = []
    checkpoints: set[int] = set()
    for line in _objects(lines):
        kind = line.get("kind")
        if kind == "step":
            # The file's counter includes what was generated for evaluations.
            steps[line["step"]] = {**line, "tokens_generated": line.get("tokens_generated", 0) - evaluated_tokens}
        elif kind == "restart" and line.get("role") == enums.Role.TRAINER:
            steps = {step: record for step, record in steps.items() if step <= line["resume_step"]}
        elif kind == "evaluation":
            evaluations[line["suite"], line["step"]] = _evaluation(line)
            evaluated_tokens += round(line.get("response_tokens", 0.0) * line.get("samples", line["n"]))
        elif kind == "weight_sync" and not line.get("failure"):
            syncs.append(_sync(line))
        elif kind == "checkpoint":
            checkpoints.add(line["step"])
    survivors = [steps[step] for step in sorted(steps)]
    last = survivors[-1] if survivors else {}
    return Run(
        steps=_steps(survivors),
        evaluations=sorted(evaluations.values(), key=lambda result: (result.step, result.suite)),
        syncs=syncs,
        checkpoints=sorted(checkpoints),
        trajectories=last.get("trajectories", {}),
        answers=last.get("answers", {}),
        answer_tokens=last.get("answer_tokens", {}),
        prefix_tokens=last.get("prefix_tokens", {}),
    )


def _objects(lines: Iterable[str]) -> Iterable[_Line]:
    for line in lines:
        try:
            yield json.loads(line)
        except json.JSONDecodeError:
            # The writer has not finished this line; the next reading has it.
            return


def _steps(lines: Sequence[_Line]) -> list[Step]:
    generated_before = [0, *(line.get("tokens_generated", 0) for line in lines)]
    return [_step(line, before) for line, before in zip(lines, generated_before, strict=False)]


def _step(line: _Line, generated_before: int) -> Step:
    stats = line.get("stats", {})
    supervised = line.get("phase") == enums.TrainingPhase.SFT
    mean, deviation = (None, 0.0) if supervised else learning.reward_of(line)
    return Step(
        step=line["step"],
        started_at=line["started_at"],
        finished_at=line["finished_at"],
        reward_mean=mean,
        reward_std=deviation,
        trained_reward_mean=None if supervised else line["reward_mean"],
        staleness={int(age): count for age, count in line.get("staleness", {}).items()},
        staleness_token_mean=line.get("staleness_token_mean", 0.0),
        tokens_trained=line.get("tokens", 0),
        tokens_generated=max(0, line.get("tokens_generated", 0) - generated_before),
        phases_s={phase: float(stats[stat]) for phase, stat in PHASES.items() if stat in stats},
        generating=tuple((begin, end) for begin, end in line.get("generate", ())),
        mixed_version_trajectories=line.get("mixed_version_trajectories", 0),
        packed_tokens=line.get("packed_tokens", {}),
        stats=stats,
    )


def _evaluation(line: _Line) -> Evaluation:
    return Evaluation(suite=line["suite"], step=line["step"], accuracy=line["accuracy"], n=line["n"])


def _sync(line: _Line) -> Sync:
    return Sync(
        pod=line["pod"],
        version=line["version"],
        pause_s=line["pause_s"],
        total_s=line["total_s"],
        num_bytes=line["bytes"],
        requests_in_flight=line.get("requests_in_flight", 0),
    )
