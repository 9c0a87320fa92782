"""Rows 19 to 22, divisibility and the in-flight cap: how many samples make a step, and when."""

from collections.abc import Iterator

from rljob_api import effective
from rljob_api.manifest.base import number
from rljob_api.manifest.job import JobSpec
from rljob_api.messages import ignored, refuse


def filter_accepts_nothing(spec: JobSpec) -> Iterator[str]:
    """Row 19."""
    lower, upper = spec.data.filter_groups.lower, spec.data.filter_groups.upper
    if lower is not None and upper is not None and number(lower) > number(upper):
        yield refuse("data.filterGroups.lower", lower, f"it is above upper '{upper}', so no group would be accepted")


def bounds_written_twice(spec: JobSpec) -> Iterator[str]:
    """A bound on a group's mean success stands in one place."""
    groups = spec.data.filter_groups
    for end, bound, key, other in zip(
        ("Lower", "Upper"), effective.success_rate_bounds(spec), ("lower", "upper"), (groups.lower, groups.upper),
        strict=True,
    ):  # fmt: skip
        if bound is not None and other is not None:
            because = f"data.filterGroups.{key} is '{other}', which bounds the same mean: write one of them"
            yield refuse(f"workflow.config.successRate{end}Bound", bound, because)


def synchronous_with_async_settings(spec: JobSpec) -> Iterator[str]:
    """Row 20."""
    section = spec.async_
    if section.max_off_policy_steps > 0:
        return
    if section.on_stale is not None:
        yield ignored("async.onStale", section.on_stale, "maxOffPolicySteps is 0, where nothing grows old")
    if section.in_flight_weight_updates:
        yield refuse(
            "async.inFlightWeightUpdates",
            True,
            "maxOffPolicySteps is 0, where generation never overlaps training: use false",
        )


def publishes_too_rarely(spec: JobSpec) -> Iterator[str]:
    """Row 21."""
    every, bound = spec.weight_sync.every_steps, spec.async_.max_off_policy_steps
    if every > bound + 1:
        yield refuse(
            "weightSync.everySteps",
            every,
            f"maxOffPolicySteps is {bound}, which needs a version every {bound + 1} steps or more often",
        )
    if every > 1 and spec.async_.on_stale == "wait":
        yield refuse("weightSync.everySteps", every, "onStale is 'wait', which needs a version every step: use 1")


def empty_minibatch_or_unplaceable_row(spec: JobSpec) -> Iterator[str]:
    """Row 22."""
    algorithm, budget = spec.algorithm, spec.trainer.max_tokens_per_micro_batch
    rows = algorithm.prompts_per_step * algorithm.group_size
    if rows < algorithm.minibatches:
        yield refuse(
            "algorithm.minibatches",
            algorithm.minibatches,
            f"promptsPerStep x groupSize = {rows} rows would leave some of them empty",
        )
    if budget < effective.longest_row(spec):
        yield refuse(
            "trainer.maxTokensPerMicroBatch",
            budget,
            f"the longest row has maxPromptTokens {effective.longest_prompt(spec)} + maxTokens"
            f" {spec.rollout.sampling.max_tokens} = {effective.longest_row(spec)} tokens and would fit nowhere",
        )


def rows_divide_among_ranks(spec: JobSpec) -> Iterator[str]:
    """Every trainer process gets the same number of rows."""
    rows = spec.algorithm.prompts_per_step * spec.algorithm.group_size
    size = effective.world_size(spec)
    if rows % size == 0:
        return
    yield (
        f"spec.algorithm.promptsPerStep x groupSize = {rows} cannot be divided among {size} trainer processes; change"
        f" one of promptsPerStep {spec.algorithm.prompts_per_step}, groupSize {spec.algorithm.group_size},"
        f" spec.trainer.nodes {spec.trainer.nodes} and processesPerNode {spec.trainer.processes_per_node}"
    )


def inflight_above_the_cap(spec: JobSpec) -> Iterator[str]:
    """More groups in flight than could be trained in time would only be dropped."""
    written, cap = spec.async_.max_inflight_groups, effective.inflight_cap(spec)
    if written is not None and written > cap:
        yield refuse("async.maxInflightGroups", written, f"(maxOffPolicySteps + 1) x promptsPerStep = {cap} is the cap")
