"""The sides that the learning bench compares: what of the manifest they change, and how old their samples are."""

import dataclasses
import itertools
from collections.abc import Iterable, Mapping

import yaml

from rljob_testing import examples

Changes = Mapping[str, object]
# Of every side.
GROUP_SIZE, PROMPTS_PER_STEP, LEARNING_RATE = 8, 16, "2e-4"
GROUPS = ("peer", "staleness", "recipes")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """A setting. `lag`: every sample is of the version so many steps back, and async.maxOffPolicySteps allows it.

    algorithm: changes to spec.algorithm. what: for the page. group: the table that it is in; ours with the defaults are
    in that of the peer too. is_peer: TRL's trainer.
    """

    lag: int
    what: str
    algorithm: Changes = dataclasses.field(default_factory=dict)
    group: str = "staleness"
    is_peer: bool = False

    def is_in(self, group: str) -> bool:
        """Return whether the table of this group has a row for it."""
        return self.group == group or (group == "peer" and not self.algorithm)

    @property
    def is_default(self) -> bool:
        """Return whether this is what a manifest without `spec.algorithm` does, with old samples."""
        return self.lag > 0 and not self.algorithm


def _loss(**loss: object) -> Changes:
    return {"loss": loss}


_TRUNCATE = {"level": "Token", "mode": "Truncate", "high": "2"}
_OLD: Mapping[str, tuple[str, Changes]] = {
    "recompute": ("decoupled: `proximal: Recompute`, weights truncated at 2", _loss(proximal="Recompute")),
    "loglinear": ("A-3PO: `proximal: LogLinear`", _loss(proximal="LogLinear")),
    "clip higher": ("the defaults, `clipHigh: 0.28`", _loss(proximal="Behavior", clipLow="0.2", clipHigh="0.28")),
    "dual clip": ("the defaults, `dualClip: 3`", _loss(proximal="Behavior", dualClip="3")),
    "truncate 1": (
        "decoupled, weights truncated at 1.001: old samples only ever count less",
        _loss(rolloutCorrection={**_TRUNCATE, "high": "1.001"}),
    ),
    "unweighted": (
        "decoupled without weights: old samples count like new ones",
        _loss(rolloutCorrection={"mode": "Mask", "high": "1000", "weighting": "None"}),
    ),
    "m2po": (
        "M2PO: `m2Threshold: 0.04`, weights not truncated",
        _loss(m2Threshold="0.04", rolloutCorrection={"mode": "None"}),
    ),
    "sequence mask": (
        "decoupled, rows whose mean ratio is out of 0.8 to 1.25 rejected",
        _loss(
            rolloutCorrection={
                **_TRUNCATE,
                "reject": {"level": "Sequence", "metric": "Ratio", "agg": "Mean", "low": "0.8", "high": "1.25"},
            }
        ),
    ),
    "negative mask": (
        "decoupled, DeepSeek-V3.2's mask: rows with a negative advantage whose mean k1 is above 0.1 rejected",
        _loss(
            rolloutCorrection={
                **_TRUNCATE,
                "reject": {"level": "Sequence", "metric": "K1", "agg": "Mean", "high": "0.1", "advantages": "Negative"},
            }
        ),
    ),
    "cispo": (
        "CISPO around the sampling policy: `clipLow: 1`, `clipHigh: 4`",
        _loss(type="cispo", proximal="Behavior", clipLow="1", clipHigh="4"),
    ),
}
# What of an example manifest is a side: its algorithm, without the shaping that needs answers as long as that task's.
_NOT_COMPARED = ("rewards",)


def _recipe(file: str, **changes: Mapping[str, object]) -> Changes:
    """Return the algorithm of a recipe; `changes` are to its sections, for what a small model needs otherwise."""
    document = yaml.safe_load((examples.EXAMPLES / "recipes" / f"{file}-cpu.yaml").read_text(encoding="utf-8"))
    algorithm = {name: value for name, value in document["spec"]["algorithm"].items() if name not in _NOT_COMPARED}
    return algorithm | {name: algorithm[name] | dict(change) for name, change in changes.items()}


_RECIPES: Mapping[str, tuple[str, Changes]] = {
    "GRPO": ("group mean and standard deviation, answers count alike, PPO's band", _recipe("grpo")),
    "Dr. GRPO": ("without the standard deviation, a constant denominator", _recipe("drgrpo")),
    "DAPO": ("a higher upper bound, tokens count alike; not its filter and length penalty", _recipe("dapo")),
    "RLOO": ("leave-one-out mean", _recipe("rloo")),
    "REINFORCE++": ("rewards whitened over the batch", _recipe("reinforcepp")),
    "PPO": ("a critic at rate 1e-3, lambda 0.95", _recipe("ppo", critic={"learningRate": "1e-3"})),
    "GSPO": (
        "ratios of whole rows, bounds 100 times the paper's, since small models move further",
        _recipe("gspo", loss={"clipLow": "3e-2", "clipHigh": "4e-2"}),
    ),
    "CISPO": ("clipped weights, every token keeps its gradient", _recipe("cispo")),
}
# Whoever changes a default deletes the stored runs of the sides that are "the defaults", so that they are run again.
PEER = "TRL"
SIDES: Mapping[str, Side] = {
    PEER: Side(lag=0, what="TRL's `GRPOTrainer`, synchronous, as it comes", group="peer", is_peer=True),
    **{
        f"lag {lag}": Side(
            lag=lag, what="the defaults, so `proximal: Behavior`" if lag else "synchronous, the defaults"
        )
        for lag in (0, 1, 2, 4)
    },
    **{f"{name} at lag 4": Side(lag=4, what=what, algorithm=changes) for name, (what, changes) in _OLD.items()},
    **{name: Side(lag=0, what=what, algorithm=changes, group="recipes") for name, (what, changes) in _RECIPES.items()},
}
# What each group is compared with.
BASES: Mapping[str, str] = {"peer": PEER, "staleness": "lag 0", "recipes": "GRPO"}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Cell:
    """One run: of a task by a side, with the prompts and the noise of a seed."""

    seed: int
    task: str
    side: str
    steps: int


def manifest(cell: Cell, *, model: str, max_tokens: int, learning_rate: str = LEARNING_RATE) -> dict[str, object]:
    """Return the manifest of a cell: that of all of them with the changes of its side."""
    side = SIDES[cell.side]
    return {
        "apiVersion": "rljob.dev/v1alpha1", "kind": "RLJob", "metadata": {"name": "learning"},
        "spec": {
            "maxSteps": cell.steps, "seed": cell.seed,
            "model": {"name": model},
            "data": {
                "template": "raw", "train": [{"name": "d", "path": "d.jsonl", "maxPromptTokens": 64}],
                "filterGroups": {"enabled": False},
            },
            "algorithm": {"groupSize": GROUP_SIZE, "promptsPerStep": PROMPTS_PER_STEP, **side.algorithm},
            "async": {"maxOffPolicySteps": side.lag},
            "rollout": {"sampling": {"maxTokens": max_tokens}},
            "verifier": {"rewards": [{"name": "score", "type": "exact"}]},
            "trainer": {
                "dtype": "float32", "optimizer": {"learningRate": learning_rate}, "deepspeed": {"zeroStage": 0},
                "gradientCheckpointing": False, "maxTokensPerMicroBatch": 4096,
            },
        },
    }  # fmt: skip


def grid(
    *, tasks: Iterable[str], sides: Iterable[str], seeds: Iterable[int], steps: int, known_tasks: Iterable[str]
) -> list[Cell]:
    """Return all cells, seed after seed, so that what was stopped early has whole seeds. Raises ValueError."""
    chosen = (list(seeds), list(tasks), list(sides))
    for name, names, known in (("task", chosen[1], list(known_tasks)), ("side", chosen[2], list(SIDES))):
        if unknown := [each for each in names if each not in known]:
            raise ValueError(f"{name} {unknown[0]!r} is not one of {', '.join(known)}")
    if steps < 1:
        raise ValueError(f"steps is {steps}, which must be at least 1")
    return [Cell(seed=seed, task=task, side=side, steps=steps) for seed, task, side in itertools.product(*chosen)]
