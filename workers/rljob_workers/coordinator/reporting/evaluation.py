"""When to evaluate, and what the scores of an evaluation are. Pure; the ledger keeps who is under way.

An evaluation runs wholly on one version and is labelled with its step. Scores are raw rewards; accuracy is the share of
samples with a score of exactly 1. A suite with missing items has no metrics: never a zero.
"""

import dataclasses
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import cast

from rljob_api import types
from rljob_api.manifest.data import EvaluationSpec
from rljob_api.wire import codec
from rljob_workers.coordinator.ledger import evaluations
from rljob_workers.coordinator.policy import prompts, submission
from rljob_workers.data import records


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """A loaded suite."""

    source: records.LoadedSource
    samples_per_prompt: int


def is_due(
    config: EvaluationSpec, *, after_step: int, step: int, last_step: int, is_first: bool = False, sft_steps: int = 0
) -> bool:
    """Return whether publishing a version of `step`, the version before being of `after_step`, makes an evaluation
    due. is_first: it is what a fork begins with. What the supervised steps, `sft_steps` of them, lead to is evaluated.
    """
    if not config.suites:
        return False
    if is_first and config.before_training:
        return True
    if step >= last_step > 0 or (sft_steps and min(after_step, step - 1) < sft_steps <= step):
        return True
    every = config.every_steps
    return every > 0 and step > 0 and step // every > min(after_step, step - 1) // every


def due_before_training(config: EvaluationSpec) -> bool:
    """Return whether the weights that training begins with are evaluated."""
    return bool(config.suites) and config.before_training


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A rollout as far as it may evaluate. `holds`: it has groups of an evaluation."""

    token: str
    pod: str
    version: int
    holds: bool = False


def members(
    servers: Sequence[Server], *, version: int, fraction: float, waiting: int, training_ended: bool
) -> frozenset[str]:
    """Return the tokens of the rollouts that serve `version` until its evaluation ends; the others train.

    ceil(fraction * waiting * rollouts), at least one: where evaluations take longer than the steps between them, more
    rollouts evaluate, until none waits. After the last step all do. Who holds groups stays; who serves the version
    comes before who serves an older one, and last who would have to go back.
    """
    share = 1.0 if training_ended else fraction * max(1, waiting)
    count = min(len(servers), max(1, math.ceil(share * len(servers) - 1e-9)))
    ordered = sorted(
        servers, key=lambda server: (not server.holds, server.version != version, server.version > version, server.pod)
    )
    return frozenset(server.token for place, server in enumerate(ordered) if place < count or server.holds)


def refs(suites: Sequence[Suite], *, step: int) -> list[prompts.PromptRef]:
    """Return all prompts of an evaluation, in file order, suite after suite. `step` stands for the epoch in their
    seeds.
    """
    return [
        prompts.PromptRef(source=suite.source.name, index=index, prompt_id=record.prompt_id, epoch=step, position=index)
        for suite in suites
        for index, record in enumerate(suite.source.records)
    ]


def suite_result(items: Sequence[evaluations.Item], *, elapsed_s: float) -> dict[str, object]:
    """Return a suite's metrics: accuracy, score, avg_at_k, pass_at_k, n, samples, truncated, response_tokens,
    formatted. pass_at: pass@k for k = 1, 2, ... up to the samples of a prompt.
    """
    groups = [_answers(codec.decode(types.PromptGroup, item.payload)) for item in items if item.payload is not None]
    missing = len(items) - len(groups)
    if missing or not groups:
        return {"accuracy": None, "n": len(groups), "missing": missing, "elapsed_s": elapsed_s}
    answers = [answer for group in groups for answer in group]
    accuracy = statistics.fmean(answer.score == 1.0 for answer in answers)
    right = [(sum(answer.score == 1.0 for answer in group), len(group)) for group in groups]
    pass_at = [
        statistics.fmean(pass_at_k(num_right=c, num_samples=n, k=k) for c, n in right)
        for k in range(1, min(n for _, n in right) + 1)
    ]
    return {
        "accuracy": accuracy,
        "score": statistics.fmean(answer.score for answer in answers),
        "avg_at_k": accuracy,
        "pass_at_k": statistics.fmean(c > 0 for c, _ in right),
        "pass_at": pass_at,
        "rm_win_rate": statistics.fmean(answer.score > 0.5 for answer in answers),
        "n": len(groups),
        "samples": len(answers),
        "missing": 0,
        "truncated": statistics.fmean(answer.truncated for answer in answers),
        "formatted": statistics.fmean(answer.formatted for answer in answers),
        "response_tokens": statistics.fmean(answer.num_tokens for answer in answers),
        "elapsed_s": elapsed_s,
    }


def pass_at_k(*, num_right: int, num_samples: int, k: int) -> float:
    """Return the unbiased estimate of pass@k for a prompt: 1 - C(n - c, k) / C(n, k), with c of n samples right.

    The share of all choices of k samples that hold a right one. Source: arXiv:2107.03374, equation 1.
    """
    return 1.0 - math.comb(num_samples - num_right, k) / math.comb(num_samples, k)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Answer:
    """One sample of a prompt: the raw reward that decides, and what all its rows generated together."""

    score: float
    formatted: bool
    truncated: bool
    num_tokens: int


def _answers(group: types.PromptGroup) -> list[_Answer]:
    return [_answer(rows) for _, rows in sorted(submission.members_of(group.trajectories).items())]


def _answer(rows: Sequence[types.Trajectory]) -> _Answer:
    # With a row per turn the first right one decides, else the last.
    deciding = next((row for row in rows if row.raw_reward), rows[-1])
    return _Answer(
        score=deciding.raw_reward,
        formatted=deciding.verdict.formatted,
        truncated=rows[-1].truncated,
        num_tokens=sum(row.num_sampled for row in rows),
    )


_NAMED = {
    "accuracy": "accuracy",
    "score": "score",
    "rm_win_rate": "rm_win_rate",
    "eval_count": "n",
    "elapse": "elapsed_s",
    "response_tok_len": "response_tokens",
    "formatted": "formatted",
    "truncated": "truncated",
}


def metrics(results: Mapping[str, Mapping[str, object]]) -> dict[str, float]:
    """Return the metrics of an evaluation under their published names, eval/{suite}/... and eval/average/...

    A suite without results has none. avg@n for the n samples of a prompt, and pass@k for every k up to n, are there
    only where n is more than one.
    Source of the names: Oat's evaluation; docs/design/workflows.md#s-11.
    """
    named: dict[str, float] = {}
    for suite, result in results.items():
        if result.get("accuracy") is None:
            continue
        named |= {f"eval/{suite}/{name}": float(str(result[key])) for name, key in _NAMED.items()}
        k = int(str(result["samples"])) // int(str(result["n"]))
        if k > 1:
            named[f"eval/{suite}/avg@{k}"] = float(str(result["avg_at_k"]))
            # Results of an earlier release have the last one alone.
            pass_at = cast(Sequence[float], result.get("pass_at", ()))
            named |= {f"eval/{suite}/pass@{chosen}": value for chosen, value in enumerate(pass_at, start=1)}
            named[f"eval/{suite}/pass@{k}"] = float(str(result["pass_at_k"]))
    means = average(results)
    if means:
        means["response_tok_len"] = means.pop("response_tokens")
    return named | {f"eval/average/{name}": value for name, value in means.items()}


def average(results: Mapping[str, Mapping[str, object]]) -> dict[str, float]:
    """Return the unweighted means over suites of accuracy, score and response_tokens, of suites that have them."""
    scored = [result for result in results.values() if result.get("accuracy") is not None]
    keys = ("accuracy", "score", "response_tokens")
    return {key: statistics.fmean(float(str(result[key])) for result in scored) for key in keys} if scored else {}


def responses(
    suite: Suite, items: Sequence[evaluations.Item], *, version: int, generator: str
) -> list[dict[str, object]]:
    """Return the records of eval_results/{step}_{suite}.json, one per sample.

    Texts are as sent and as sampled, special tokens kept; `extracted` is what the grader took as the answer.
    """
    lines: list[dict[str, object]] = []
    for item in items:
        record = suite.source.records[item.index]
        rows = [] if item.payload is None else codec.decode(types.PromptGroup, item.payload).trajectories
        lines += [_response(suite, record, row, version=version, generator=generator) for row in rows]
    return lines


def _response(
    suite: Suite, record: types.PromptRecord, row: types.Trajectory, *, version: int, generator: str
) -> dict[str, object]:
    column = suite.source.prompt_column
    return {
        "id": record.prompt_id,
        column: record.columns["prompt"],
        f"format_{column}": row.prompt_text,
        "output": row.output_text,
        "extracted": row.verdict.extracted,
        "scores": row.raw_reward,
        "reference": record.columns.get("answer"),
        "generator": generator,
        "formatted": row.verdict.formatted,
        "reason": str(row.verdict.reason),
        "truncated": row.truncated,
        "response_tok_len": row.num_sampled,
        "version": version,
    }
