"""The result of resolution: one config per process."""

import dataclasses

from rljob_api import roles


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedJob:
    """Complete configs of all processes of a job; the trainer's other nodes differ in node_rank only."""

    coordinator: roles.CoordinatorConfig
    rollouts: tuple[roles.RolloutConfig, ...]
    verifiers: tuple[roles.VerifierConfig, ...]
    trainer: roles.TrainerConfig

    @property
    def configs(self) -> tuple[roles.RoleConfig, ...]:
        """Return the configs of all processes, the coordinator first."""
        return (self.coordinator, *self.verifiers, *self.rollouts, self.trainer)
