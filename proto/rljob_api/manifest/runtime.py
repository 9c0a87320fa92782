"""RLJobRuntime and ClusterRLJobRuntime: what a platform team decides for the jobs that refer to it.

Parts of a job's spec and pod templates are mappings here: the first are checked by the models of the job, the second by
`validation.pod_templates`. Schemas of four pod templates would be larger than an API server takes.
"""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from rljob_api.manifest.base import FREE, Config, Name, Section
from rljob_api.manifest.status import CONDITION_KEYS, Condition, Count, Observed

RuntimeKind = Literal["ClusterRLJobRuntime", "RLJobRuntime"]
CLUSTER_KIND, NAMESPACED_KIND = "ClusterRLJobRuntime", "RLJobRuntime"


class RuntimeRefSpec(Section):
    """The runtime that a job is made with."""

    name: Name = Field(description="Name of the runtime.")
    kind: RuntimeKind = Field(
        default="ClusterRLJobRuntime", description="ClusterRLJobRuntime, or RLJobRuntime of the job's namespace."
    )


def _template(role: str) -> Config | None:
    description = f"Laid over the pod template of the {role}, as a strategic merge patch."
    field: Config | None = Field(default=None, max_length=2, json_schema_extra=FREE, description=description)
    return field


class RoleTemplatesSpec(Section):
    """What is laid over the pods of each role."""

    coordinator: Config | None = _template("coordinator")
    rollout: Config | None = _template("rollouts")
    verifier: Config | None = _template("verifiers")
    trainer: Config | None = _template("trainer")


class RuntimeSpec(Section):
    """What jobs get: values that they may change, values that they may not, and pod templates."""

    defaults: Config = Field(
        default={},
        max_length=64,
        json_schema_extra=FREE,
        description="A part of a job's spec: the value of each field that a job leaves out.",
    )
    fixed: Config = Field(
        default={},
        max_length=64,
        json_schema_extra=FREE,
        description="A part of a job's spec: a job that has another value is refused.",
    )
    template: RoleTemplatesSpec = Field(
        default=RoleTemplatesSpec(), description="PodTemplateSpecs, laid over the pods of each role."
    )


class RuntimeStatus(Observed):
    """What the operator found of a runtime."""

    observed_generation: Count | None = Field(default=None, description="Generation that was checked.")
    conditions: tuple[Condition, ...] = Field(
        default=(), max_length=8, json_schema_extra=CONDITION_KEYS, description="Accepted, or what is wrong, by field."
    )


class RuntimeMetadata(BaseModel):
    """The part of ObjectMeta that is read of a runtime."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    name: Name = Field(description="Name of the runtime.")
    namespace: Annotated[str, Field(max_length=63)] = Field(default="", description="Empty for ClusterRLJobRuntime.")
    uid: Annotated[str, Field(max_length=64)] = Field(default="", description="Set by the API server.")
    generation: int = Field(default=1, description="Set by the API server: number of the spec's last change.")


class JobRuntime(Section):
    """An object of either kind."""

    api_version: Literal["rljob.dev/v1alpha1"] = Field(description="Version of this schema.")
    kind: RuntimeKind = Field(description="Kind of the object.")
    metadata: RuntimeMetadata = Field(description="Name.")
    spec: RuntimeSpec = Field(description="What jobs get.")
    status: RuntimeStatus | None = Field(default=None, description="What the operator found.")

    @property
    def label(self) -> str:
        """Kind and name, as texts refer to it."""
        return f"{self.kind} {self.metadata.name}"
