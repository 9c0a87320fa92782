"""The numbers of the data loop, in one frozen value: what the pure policies and the ledger's transitions are given."""

import dataclasses

from rljob_api import roles
from rljob_api.manifest.algorithm import NormalizeSpec
from rljob_api.manifest.data import CurriculumSpec


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds and budgets. `prompts_per_step` is B, `max_off_policy_steps` eta of the algorithms reference.

    first_version: no lease is granted to a rollout that serves an older one.
    """

    group_size: int
    prompts_per_step: int
    max_off_policy_steps: int
    max_inflight_groups: int
    max_steps: int
    on_stale_wait: bool = False
    turn_rewards: bool = False
    lease_s: float = 60.0
    max_infra_attempts: int = 5
    max_data_attempts: int = 2
    min_group_fraction: float = 1.0
    min_step_fraction: float = 1.0
    curriculum: CurriculumSpec | None = None
    first_version: int = 0


def of(config: roles.CoordinatorConfig) -> Limits:
    """Return the limits that a coordinator config sets."""
    return Limits(
        group_size=config.algorithm.group_size,
        prompts_per_step=config.algorithm.prompts_per_step,
        max_off_policy_steps=config.staleness.max_off_policy_steps,
        max_inflight_groups=config.staleness.max_inflight_groups,
        max_steps=config.max_steps,
        on_stale_wait=config.staleness.on_stale == "wait",
        turn_rewards=config.algorithm.trainer_returns and _unnormalized(config.algorithm.normalize_reward),
        lease_s=config.lease_s,
        max_infra_attempts=config.failure.max_infra_attempts_per_prompt,
        max_data_attempts=config.failure.max_data_attempts_per_prompt,
        min_group_fraction=config.failure.min_group_fraction,
        min_step_fraction=config.failure.min_step_batch_fraction,
        curriculum=config.data.curriculum,
        first_version=config.first_version,
    )


def _unnormalized(config: NormalizeSpec) -> bool:
    return config.mean == config.std == "none"
