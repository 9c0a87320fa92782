"""Where a job in a cluster keeps what must outlive its pods. On one machine everything is in the run directory.

Two places, because they are written in different ways. The coordinator alone writes `state`: a database, which needs a
block volume or a local one. Trainer pods on any node write `checkpoints`: whole files, for which a network file system
is right.
"""

from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from rljob_api.manifest.base import FORBIDDEN, CelRule, Name, Problem, Quantity, Section, no_effect, rule

StorageType = Literal["Persistent", "Ephemeral"]
AccessMode = Literal["ReadWriteOnce", "ReadWriteOncePod", "ReadWriteMany"]
Retention = Literal["Retain", "Delete"]
# Room for a ledger and for the newest four versions of a model of 7 billion parameters in bfloat16.
STATE_SIZE = "64Gi"


def _of_a_new_claim(field: str) -> CelRule:
    return CelRule(
        field=field,
        reason=FORBIDDEN,
        rule=f"!has(self.claimName) || !has(self.{field})",
        message=f"{field} is for a new claim, and claimName names one that exists: leave one of them out",
    )


class ClaimSpec(Section):
    """A PersistentVolumeClaim: one of the user's, or a new one."""

    claim_name: Name | None = Field(default=None, description="Existing PersistentVolumeClaim. Unset: a new one.")
    size: Quantity | None = Field(
        default=None,
        description="Size of a new claim, bytes. A claim that was made stays as it is: expand the claim itself.",
    )
    storage_class_name: Name | None = Field(
        default=None, description="StorageClass of a new claim. Unset: the cluster's default one."
    )
    retention: Retention | None = Field(
        default=None,
        description="What becomes of a claim that was made for this job once the job is deleted. Unset: Retain.",
    )

    @rule(_of_a_new_claim("size"), _of_a_new_claim("storageClassName"), _of_a_new_claim("retention"))
    def a_claim_that_exists_is_taken_as_it_is(self) -> Iterator[Problem]:
        """Size, class and end of an existing claim are its owner's."""
        if self.claim_name is None:
            return
        for key, value in (
            ("size", self.size),
            ("storageClassName", self.storage_class_name),
            ("retention", self.retention),
        ):
            if value is not None:
                yield key, value, no_effect(f"claimName is '{self.claim_name}', and a claim that exists keeps its own")

    @property
    def is_kept(self) -> bool:
        """Whether a claim that was made for the job outlives it."""
        return self.retention != "Delete"


class StateStorageSpec(ClaimSpec):
    """The volume of the coordinator's ledger and weight store; no other pod mounts it."""

    access_mode: Literal["ReadWriteOnce", "ReadWriteOncePod"] = Field(
        default="ReadWriteOnce",
        description="Of a new claim. ReadWriteOncePod: not even two pods of one node, where the driver can do that.",
    )


class CheckpointStorageSpec(ClaimSpec):
    """The volume of checkpoints, exports and, with ReadWriteMany, trajectory dumps. The coordinator is not near it."""

    access_mode: AccessMode | None = Field(
        default=None,
        description="Of a new claim, or what the existing one can do. Default: ReadWriteMany if trainer.nodes is above"
        " 1 or weightSync.transport is file, else ReadWriteOnce, with which one trainer pod alone mounts it.",
    )

    @rule()
    def claim_is_named_or_sized(self) -> Iterator[Problem]:
        """How large checkpoints are depends on the model: there is no size that is right for all."""
        if self.claim_name is None and self.size is None:
            yield "size", None, "name an existing claim (claimName), or give the size of a new one (size: 500Gi)"


class StorageSpec(Section):
    """Where state lives in a cluster, which runs no job that does not say so. `rljob run` has its run directory.

    What is changed while a job is suspended holds from its resume on. State is not copied from one place to another.
    """

    type: StorageType | None = Field(
        default=None,
        description="Persistent: on volumes, below. Ephemeral: in the pods, with which ledger, checkpoints and exported"
        " model are lost. Needed in a cluster; without effect on one machine.",
    )
    state: StateStorageSpec | None = Field(
        default=None, description=f"Volume of the coordinator's ledger and weights. Unset: a new claim of {STATE_SIZE}."
    )
    checkpoints: CheckpointStorageSpec | None = Field(
        default=None, description="Volume of checkpoints and exports. Needed with Persistent."
    )

    @rule(
        CelRule(
            field="type",
            rule="(has(self.type) && self.type == 'Persistent') || (!has(self.state) && !has(self.checkpoints))",
            message="state and checkpoints are volumes of type Persistent: use that, or leave them out",
        ),
    )
    def type_and_volumes_agree(self) -> Iterator[Problem]:
        """Persistent storage has volumes, and nothing else reads them."""
        if self.type == "Persistent" and self.checkpoints is None:
            because = "type is 'Persistent', which needs a place for checkpoints: set checkpoints.claimName or"
            yield "checkpoints", None, f"{because} checkpoints.size, or use type Ephemeral"
        written = [key for key, part in (("state", self.state), ("checkpoints", self.checkpoints)) if part is not None]
        if self.type != "Persistent" and written:
            yield "type", self.type, f"{' and '.join(written)} would not be read: use type Persistent, or leave it out"

    @property
    def state_claim(self) -> StateStorageSpec | None:
        """The volume of the coordinator; None for state that ends with its pod."""
        return (self.state or StateStorageSpec()) if self.type == "Persistent" else None

    @property
    def checkpoint_claim(self) -> CheckpointStorageSpec | None:
        """The volume of checkpoints; None for checkpoints that end with their pod."""
        return self.checkpoints if self.type == "Persistent" else None

    @property
    def is_shared(self) -> bool:
        """Whether pods on many nodes may mount the volume of checkpoints."""
        claim = self.checkpoint_claim
        return claim is not None and claim.access_mode == "ReadWriteMany"
