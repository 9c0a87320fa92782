"""Where a job in a cluster keeps what must outlive its pods. On one machine everything is in the run directory.

Two places, because they are written in different ways. The coordinator alone writes `state`: a database, which needs a
block volume or a local one. Trainer pods on any node write `checkpoints`: whole files, for which a network file system
or an object store is right. An object store is used on one machine too.
"""

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from rljob_api.manifest.base import (
    FORBIDDEN,
    CelRule,
    Name,
    ObjectUri,
    Problem,
    Quantity,
    Section,
    no_effect,
    rule,
)

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


_OF_CLAIMS = ("claimName", "size", "storageClassName", "retention", "accessMode")


class CheckpointStorageSpec(ClaimSpec):
    """Where checkpoints and exports go: a volume, or an object store. The coordinator is not near either.

    The volume also takes, with ReadWriteMany, trajectory dumps.
    """

    access_mode: AccessMode | None = Field(
        default=None,
        description="Of a new claim, or what the existing one can do. Default: ReadWriteMany if trainer.nodes is above"
        " 1 or weightSync.transport is file, else ReadWriteOnce, for one trainer pod.",
    )
    uri: ObjectUri | None = Field(
        default=None,
        description="Folder of an object store instead of a claim: s3://bucket/prefix, gs://bucket/prefix,"
        " az://account/container/prefix or file:///folder; below it the job's uid. Uploads run while training"
        " continues. Keys: spec.trainer.pod.env, or workload identity.",
    )

    @rule()
    def place_is_named(self) -> Iterator[Problem]:
        """How large checkpoints are depends on the model: there is no size that is right for all."""
        if self.claim_name is None and self.size is None and self.uri is None:
            because = "name an existing claim (claimName), give the size of a new one (size: 500Gi), or an object store"
            yield "uri", None, f"{because} (uri: s3://bucket/prefix)"

    @rule(
        CelRule(
            field="uri",
            reason=FORBIDDEN,
            rule="!has(self.uri) || (" + " && ".join(f"!has(self.{field})" for field in _OF_CLAIMS) + ")",
            message="checkpoints go to an object store (uri) or to a claim: leave one of them out",
        ),
    )
    def store_or_claim(self) -> Iterator[Problem]:
        """One place, so that checkpoints are never looked for in the other."""
        values = (self.claim_name, self.size, self.storage_class_name, self.retention, self.access_mode)
        written = [
            key
            for key, value in zip(_OF_CLAIMS, values, strict=True)
            if value is not None and (key != "accessMode" or self.is_written("access_mode"))
        ]
        if self.uri is not None and written:
            because = f"{' and '.join(written)} would name a claim: leave out uri or what is about the claim"
            yield "uri", self.uri, because


class S3Spec(Section):
    """Where buckets of s3:// URIs are, for all of them in a manifest: checkpoints, models and data."""

    endpoint: Annotated[str, Field(max_length=256, pattern=r"^https?://[A-Za-z0-9.-]+(:[0-9]{1,5})?$")] | None = Field(
        default=None,
        description="Service that speaks S3, such as https://minio.example.com:9000. Unset: AWS_ENDPOINT_URL of the"
        " environment, else Amazon's.",
    )
    region: Annotated[str, Field(min_length=1, max_length=63, pattern=r"^[a-z0-9-]+$")] | None = Field(
        default=None, description="Region of the buckets. Unset: AWS_REGION of the environment, else us-east-1."
    )


class StorageSpec(Section):
    """Where state lives in a cluster, which runs no job that does not say so. `rljob run` has its run directory, and
    reads of this only where object stores are.

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
        default=None,
        description="Volume or object store of checkpoints and exports. Needed with Persistent. An object store is used"
        " by `rljob run` too.",
    )
    s3: S3Spec = Field(default=S3Spec(), description="Endpoint and region of s3:// URIs.")

    @rule(
        CelRule(
            field="type",
            rule="(has(self.type) && self.type == 'Persistent') || (!has(self.state) && !has(self.checkpoints))",
            message="state and checkpoints are of type Persistent: use that, or leave them out",
        ),
    )
    def type_and_volumes_agree(self) -> Iterator[Problem]:
        """Persistent storage has volumes, and nothing else reads them."""
        if self.type == "Persistent" and self.checkpoints is None:
            because = "type is 'Persistent', which needs a place for checkpoints: set checkpoints.claimName,"
            yield "checkpoints", None, f"{because} checkpoints.size or checkpoints.uri, or use type Ephemeral"
        written = [key for key, part in (("state", self.state), ("checkpoints", self.checkpoints)) if part is not None]
        if self.type != "Persistent" and written:
            yield "type", self.type, f"{' and '.join(written)} would not be read: use type Persistent, or leave it out"

    @property
    def state_claim(self) -> StateStorageSpec | None:
        """The volume of the coordinator; None for state that ends with its pod."""
        return (self.state or StateStorageSpec()) if self.type == "Persistent" else None

    @property
    def checkpoint_claim(self) -> CheckpointStorageSpec | None:
        """The volume of checkpoints; None for those in an object store, and for those that end with their pod."""
        return self.checkpoints if self.type == "Persistent" and self.checkpoint_uri is None else None

    @property
    def checkpoint_uri(self) -> str | None:
        """The object store of checkpoints and exports, without a slash at the end."""
        uri = None if self.checkpoints is None else self.checkpoints.uri
        return None if uri is None else uri.rstrip("/")

    @property
    def is_shared(self) -> bool:
        """Whether pods on many nodes may mount the volume of checkpoints."""
        claim = self.checkpoint_claim
        return claim is not None and claim.access_mode == "ReadWriteMany"
