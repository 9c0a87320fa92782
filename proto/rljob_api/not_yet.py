"""What the schema already has and no process serves yet: one table, and a refusal for each such value."""

import dataclasses
from collections.abc import Callable, Iterator

from rljob_api import fields, sentences
from rljob_api.job import JobSpec
from rljob_api.spec.algorithm import NormalizeSpec


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Unserved:
    """One path below spec, which of its values are served, and what works instead."""

    path: str
    served: Callable[[object], bool]
    works: str


def _unset(value: object) -> bool:
    return value is None


def _empty(value: object) -> bool:
    return not value


def _one_row(value: object) -> bool:
    """One row per episode; a row per turn and rewards shaped by the workflow are not served."""
    config = value if isinstance(value, dict) else {}
    return config.get("layout", "concat") == "concat" and not {"rewardScale", "rewardBias", "legacyFeedback"} & {
        *config
    }


def _over_the_batch(value: object) -> bool:
    """Groups may be cut over ranks; statistics of their tokens are not served."""
    return value is None or (isinstance(value, NormalizeSpec) and "group" not in (value.mean, value.std))


def _among(*names: str | None) -> Callable[[object], bool]:
    return lambda value: value in names


NOT_YET: tuple[Unserved, ...] = (
    Unserved(path="queue", served=_unset, works="start without a queue"),
    Unserved(path="gang", served=_among(None, "none"), works="none"),
    Unserved(path="resumeFrom", served=_unset, works="a restarted run goes on from its own checkpoint"),
    Unserved(path="model.source", served=_unset, works="a hub id, a folder or a builtin model in spec.model.name"),
    Unserved(path="model.lora", served=_unset, works="training all weights"),
    Unserved(path="data.template", served=_among("chat", "qwen_math", "r1", "no"), works="chat, qwen_math, r1, no"),
    Unserved(path="data.train[].format", served=_among("auto", "math", "gsm8k"), works="auto, math, gsm8k"),
    Unserved(path="evaluation.suites[].format", served=_among("auto", "math", "gsm8k"), works="auto, math, gsm8k"),
    Unserved(path="workflow.config", served=_one_row, works="layout concat without rewardScale, rewardBias"),
    Unserved(
        path="algorithm.advantageEstimator",
        served=_among("grpo", "drgrpo", "rloo", "liteppo", "reinforcepp", "reinforceppBaseline"),
        works="grpo, drgrpo, rloo, liteppo, reinforcepp, reinforceppBaseline",
    ),
    Unserved(path="algorithm.normalizeAdvantage", served=_over_the_batch, works="levels batch and none"),
    Unserved(path="algorithm.gae.lambda", served=_unset, works="estimators without a critic"),
    Unserved(path="algorithm.gae.unit", served=_among(None, "token"), works="token"),
    Unserved(path="algorithm.gae.bootstrapTruncated", served=_unset, works="estimators without a critic"),
    Unserved(path="algorithm.critic", served=_unset, works="estimators without a critic"),
    Unserved(path="async.onStale", served=_among(None, "drop"), works="drop"),
    Unserved(path="rollout.autoscaling", served=_unset, works="a fixed number of replicas"),
    Unserved(
        path="verifier.rewards[].type",
        served=_among(
            "exact", "math", "reasoning_gym", "gsm8k", "clevr_count_70k", "areal-math", "boxed", "answer_tag"
        ),
        works="exact, math, reasoning_gym, gsm8k, clevr_count_70k, areal-math, boxed, answer_tag",
    ),
    Unserved(path="verifier.isolation", served=_among("sandbox", "none"), works="sandbox, none"),
    Unserved(path="observability.traces", served=_empty, works="logs and metrics"),
)


def problems(spec: JobSpec) -> list[str]:
    """Return a sentence for every value that was written and is not served yet."""
    return [sentence for row in NOT_YET for sentence in _problems(row, spec)]


def _problems(row: Unserved, spec: JobSpec) -> Iterator[str]:
    for path, value in fields.values_at(spec, row.path):
        if not row.served(value):
            yield f"not supported yet: spec.{path} = {sentences.show(value)} (what works today: {row.works})"
