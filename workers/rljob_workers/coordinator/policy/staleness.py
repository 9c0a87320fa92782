"""How many groups may be open, who may take them, and how old a group may get. Pure: the ledger supplies the counts.

V is the number of completed steps, which is also the index of the next batch; P the step of the newest published
version; eta the bound on age, in steps; B the groups of a step. Source: the admission rule of AReaL
(arXiv:2505.24298), with accepted groups counted until their step instead of running totals.
"""

import math
from collections.abc import Sequence

from rljob_api.manifest.job import JobSpec


def capacity(spec: JobSpec, *, published_step: int, accepted: int, running: int) -> int:
    """Return how many more groups may be leased; negative means: lease nothing, cancel nothing.

    min(max(1, max_inflight_groups) - running, (eta + P + 1) * B - (accepted + running)). A closed step counts as B
    accepted groups however many it had.
    """
    concurrency = max(1, spec.async_.max_inflight_groups) - running
    admitted = (spec.async_.max_off_policy_steps + published_step + 1) * max(1, spec.algorithm.prompts_per_step)
    return min(concurrency, admitted - (accepted + running))


def pending_limit(spec: JobSpec) -> int:
    """Return the cap on queued groups, (eta + 1) * B."""
    return spec.most_inflight_groups


def version_floor(spec: JobSpec, *, accepted: int, running: int, first_step: int = 0) -> int:
    """Return the smallest step that a worker's version may have to take the next group: floor(N / B) - eta, at least
    first_step, whose weights are the first that RL samples from.

    A slot whose weights are published but not yet served by anyone thereby goes to a worker that is to load them, which
    begins with it when they are served.
    """
    return max(first_step, (accepted + running) // spec.algorithm.prompts_per_step - spec.async_.max_off_policy_steps)


def oldest_trained_step(spec: JobSpec, *, batch_index: int) -> int:
    """Return V - eta, not negative: tokens of versions of smaller steps are too old for the loss of batch V."""
    return max(0, batch_index - spec.async_.max_off_policy_steps)


def masks_old_tokens(spec: JobSpec) -> bool:
    """Return whether tokens that are too old leave the loss, and not their groups the batch."""
    return spec.async_.on_stale == "Mask" and spec.async_.max_off_policy_steps > 0


def is_stale(spec: JobSpec, *, batch_index: int, min_step: int, max_step: int) -> bool:
    """Return whether a group with tokens of min_step..max_step may not enter batch V: its oldest token is too old, or
    under Mask even its newest one, so that nothing of it would be trained.
    """
    decisive = max_step if masks_old_tokens(spec) else min_step
    return decisive < oldest_trained_step(spec, batch_index=batch_index)


def renews_itself(spec: JobSpec) -> bool:
    """Return whether a group in generation has newer tokens with every version, so that it never grows too old."""
    return masks_old_tokens(spec) and spec.async_.in_flight_weight_updates


def may_close_waiting(spec: JobSpec, *, batch_index: int, left_out: Sequence[int]) -> bool:
    """Return whether batch V may close under onStale wait, given the min steps of the groups left out (leased,
    submitted).

    For every k = 0..eta at most k * B groups left out have a min step <= V - eta + k.
    """
    eta = spec.async_.max_off_policy_steps
    return all(
        sum(step <= batch_index - eta + k for step in left_out) <= k * spec.algorithm.prompts_per_step
        for k in range(eta + 1)
    )


def may_close_ahead(spec: JobSpec, *, batch_index: int, left_out: Sequence[int]) -> bool:
    """Return whether batch V may be decided before anyone asks for it: no group left out would be too old for batch
    V + 1. left_out: the steps that decide that (`is_stale`) of the leased and submitted.
    """
    oldest = oldest_trained_step(spec, batch_index=batch_index + 1)
    return all(step >= oldest for step in left_out)


def smallest_batch(spec: JobSpec) -> int:
    """Return how many groups a step needs at least: ceil(min_step_fraction * B), and 1."""
    return max(1, math.ceil(spec.failure_policy.min_step_batch_fraction * spec.algorithm.prompts_per_step - 1e-9))


def smallest_group(spec: JobSpec) -> int:
    """Return how many good members a group needs: max(2, ceil(min_group_fraction * G)); 1 where G is 1."""
    if spec.algorithm.group_size == 1:
        return 1
    return max(2, math.ceil(spec.failure_policy.min_group_fraction * spec.algorithm.group_size - 1e-9))
