"""When to evaluate, and what the scores of an evaluation are. Pure; the ledger keeps who is under way.

An evaluation runs wholly on one version and is labelled with its step. Scores are raw rewards; accuracy is the share of
samples with a score of exactly 1. A suite with missing items has no metrics: never a zero.
"""

import dataclasses
import statistics
from collections.abc import Mapping, Sequence

from rljob_api import codec, roles, types
from rljob_workers.coordinator import tasks
from rljob_workers.coordinator.transitions import evaluations
from rljob_workers.data import records


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """A loaded suite."""

    source: records.LoadedSource
    samples_per_prompt: int


def is_due(config: roles.EvaluationConfig, *, after_step: int, step: int, last_step: int) -> bool:
    """Return whether publishing a version of `step`, the version before being of `after_step`, makes an evaluation
    due.
    """
    if not config.suites:
        return False
    if step >= last_step > 0:
        return True
    every = config.every_steps
    return every > 0 and step > 0 and step // every > min(after_step, step - 1) // every


def due_before_training(config: roles.EvaluationConfig) -> bool:
    """Return whether version 0 is evaluated."""
    return bool(config.suites) and config.before_training


def refs(suites: Sequence[Suite], *, step: int) -> list[tasks.PromptRef]:
    """Return all prompts of an evaluation, in file order, suite after suite. `step` stands for the epoch in their
    seeds.
    """
    return [
        tasks.PromptRef(source=suite.source.name, index=index, prompt_id=record.prompt_id, epoch=step, position=index)
        for suite in suites
        for index, record in enumerate(suite.source.records)
    ]


def suite_result(items: Sequence[evaluations.Item], *, elapsed_s: float) -> dict[str, object]:
    """Return a suite's metrics: accuracy, score, avg_at_k, pass_at_k, n, samples, truncated, response_tokens,
    formatted.
    """
    groups = [codec.decode_group(item.payload).trajectories for item in items if item.payload is not None]
    missing = len(items) - len(groups)
    if missing or not groups:
        return {"accuracy": None, "n": len(groups), "missing": missing, "elapsed_s": elapsed_s}
    rows = [row for group in groups for row in group]
    accuracy = statistics.fmean(row.raw_reward == 1.0 for row in rows)
    return {
        "accuracy": accuracy,
        "score": statistics.fmean(row.raw_reward for row in rows),
        "avg_at_k": accuracy,
        "pass_at_k": statistics.fmean(any(row.raw_reward == 1.0 for row in group) for group in groups),
        "rm_win_rate": statistics.fmean(row.raw_reward > 0.5 for row in rows),
        "n": len(groups),
        "samples": len(rows),
        "missing": 0,
        "truncated": statistics.fmean(row.truncated for row in rows),
        "formatted": statistics.fmean(row.verdict.formatted for row in rows),
        "response_tokens": statistics.fmean(row.num_sampled for row in rows),
        "elapsed_s": elapsed_s,
    }


def average(results: Mapping[str, Mapping[str, object]]) -> dict[str, float]:
    """Return the unweighted means over suites of accuracy, score and response_tokens, of suites that have them."""
    scored = [result for result in results.values() if result.get("accuracy") is not None]
    keys = ("accuracy", "score", "response_tokens")
    return {key: statistics.fmean(float(str(result[key])) for result in scored) for key in keys} if scored else {}


def responses(
    suite: Suite, items: Sequence[evaluations.Item], *, version: int, generator: str
) -> list[dict[str, object]]:
    """Return the records of eval_results/{step}_{suite}.json, one per sample.

    The coordinator holds no tokenizer: outputs are token ids, and `extracted` is what the grader took as the answer.
    """
    lines: list[dict[str, object]] = []
    for item in items:
        record = suite.source.records[item.index]
        rows = [] if item.payload is None else codec.decode_group(item.payload).trajectories
        lines += [_response(suite, record, row, version=version, generator=generator) for row in rows]
    return lines


def _response(
    suite: Suite, record: types.PromptRecord, row: types.Trajectory, *, version: int, generator: str
) -> dict[str, object]:
    column = suite.source.prompt_column
    return {
        "id": record.prompt_id,
        column: record.columns["prompt"],
        f"format_{column}_tokens": list(row.tokens[: row.prompt_len]),
        "output_tokens": list(row.tokens[row.prompt_len :]),
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
