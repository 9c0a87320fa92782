"""`spec.verifier` and `spec.environment`: who grades, how model output is isolated, and where episodes have a shell."""

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from rljob_api import plugins
from rljob_api.manifest import reward_options
from rljob_api.manifest.base import (
    FORBIDDEN,
    FREE,
    NAMED,
    SET,
    CelRule,
    Config,
    Decimal,
    Module,
    Name,
    Problem,
    Quantity,
    Section,
    no_effect,
    num_bytes,
    one_of,
    rule,
)
from rljob_api.manifest.pod import PodSpec, ResourcesSpec
from rljob_api.manifest.reward_options import OPTIONS

REWARDS = tuple(OPTIONS)
REPOSITORY_TESTS = "repository-tests"
REPRODUCED_REWARDS = tuple(type_ for type_, options in OPTIONS.items() if options.reproduces)
# These run what the policy wrote; each program of the first is a fork of a warm interpreter.
FORKED_REWARDS = tuple(type_ for type_, options in OPTIONS.items() if options.runs == "program")
PROGRAM_REWARDS = tuple(type_ for type_, options in OPTIONS.items() if options.runs)

# What programs of published data sets import, and what is named where another package is not there.
USUAL_PACKAGES = ("networkx", "numpy", "pandas", "scipy", "sortedcontainers", "sympy")

RuntimeClassName = Annotated[
    str,
    Field(min_length=1, max_length=253, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"),
]
POD_RESOURCES = ("cpu", "memory", "ephemeral-storage")

if TYPE_CHECKING:
    RewardType = str
else:
    RewardType = one_of(*REWARDS, prefixes=(plugins.PREFIX,))


class RewardSpec(Section):
    """One named, weighted reward."""

    name: Name = Field(description="Name in metrics and filters, unique in the list.")
    type: RewardType = Field(
        description="Grader: one of the built-in ones, module:function, or plugin:<name>, the entry point of a package."
    )
    weight: Decimal = Field(default=Decimal("1"), description="Factor on this reward in the sum.")
    mode: Literal["Strict", "Compat"] = Field(
        default="Strict",
        description="Strict corrects known defects of the original grader; Compat repeats its verdicts.",
    )
    config: Config = Field(default={}, max_length=32, json_schema_extra=FREE, description="Options of the grader.")
    packages: tuple[Module, ...] = Field(
        default=(),
        max_length=16,
        json_schema_extra=SET,
        description="What programs of code, areal-code and repository-tests may import besides the standard library, of"
        " what the verifier's image has: ours has networkx, numpy, sortedcontainers and sympy. scipy.optimize, say, is"
        " imported before the program runs.",
    )

    @rule()
    def compat_has_an_original(self) -> Iterator[Problem]:
        """Our own graders have nothing to be compatible with."""
        if self.mode == "Compat" and self.type not in REPRODUCED_REWARDS:
            yield "mode", "Compat", f"reward type {self.type} reproduces no other grader: use Strict"

    @rule()
    def options_exist(self) -> Iterator[Problem]:
        """Every key and value of a reward's config is one that its type reads."""
        for option, value, reason in reward_options.problems(self.type, self.config):
            yield f"config.{option}", value, reason

    @rule()
    def packages_have_a_use(self) -> Iterator[Problem]:
        """Packages are for programs; each is named once, and is neither Python's own nor ours."""
        if self.packages and self.type not in PROGRAM_REWARDS:
            types = ", ".join(PROGRAM_REWARDS)
            yield "packages", list(self.packages), f"{self.type} runs no program; it is for {types}"
            return
        for index, name in enumerate(self.packages):
            if reason := _useless_package(name, self.packages[:index]):
                yield f"packages[{index}]", name, reason


def _useless_package(name: str, before: tuple[str, ...]) -> str:
    first = name.partition(".")[0]
    if name in before:
        return "it is already in the list: leave it out"
    if first in sys.stdlib_module_names:
        return "it is a part of Python, which every program may import: leave it out"
    if first.startswith("rljob"):
        return "it is the verifier's own code, which no program may read"
    return ""


class IsolationSpec(Section):
    """What keeps programs of the policy from the rest of the system."""

    type: Literal["Sandbox", "RuntimeClass", "None"] = Field(
        default="Sandbox",
        description="Sandbox: Landlock and seccomp. RuntimeClass: another kernel on top of it. None needs allowUnsafe.",
    )
    runtime_class_name: RuntimeClassName | None = Field(
        default=None, description="RuntimeClass of the verifier's pods, one of those that the operator lists."
    )

    @rule(
        CelRule(
            field="runtimeClassName",
            rule="(self.type == 'RuntimeClass') == has(self.runtimeClassName)",
            message="runtimeClassName is needed with type RuntimeClass and ignored otherwise",
        ),
    )
    def a_runtime_class_has_a_name(self) -> Iterator[Problem]:
        if self.type == "RuntimeClass" and self.runtime_class_name is None:
            yield "runtimeClassName", None, "type is 'RuntimeClass': name one that the operator lists"
        if self.type != "RuntimeClass" and self.runtime_class_name is not None:
            yield "runtimeClassName", self.runtime_class_name, no_effect(f"type is '{self.type}'")

    @property
    def runtime_class(self) -> str:
        """The RuntimeClass of the pods, empty if none is asked for."""
        return self.runtime_class_name or ""


class ExecutionSettings(Section):
    """How model output is graded and isolated. Limits hold per execution."""

    isolation: IsolationSpec = Field(
        default=IsolationSpec(), description="What keeps programs of the policy from the rest of the system."
    )
    allow_unsafe: bool = Field(default=False, description="Accept isolation.type None.")
    timeout_seconds: int | None = Field(
        default=None,
        ge=1,
        le=3600,
        description="CPU seconds per execution, of the reference machine (docs/security.md); wall time is capped at 3x."
        " Default: by grader, 10 for our own.",
    )
    memory: Quantity = Field(default="512Mi", description="Memory per execution, bytes.")
    output_limit: Quantity = Field(default="64Ki", description="Output per execution, bytes.")
    max_concurrent: int | None = Field(
        default=None, ge=1, le=4096, description="Executions at once per replica. Default: its CPU cores."
    )

    @rule(
        CelRule(
            field="isolation.type",
            reason=FORBIDDEN,
            rule="self.isolation.type != 'None' || self.allowUnsafe",
            message="isolation.type None needs allowUnsafe: true",
        ),
    )
    def unsafe_isolation_is_admitted(self) -> Iterator[Problem]:
        """No isolation needs to be said twice."""
        if self.isolation.type == "None" and not self.allow_unsafe:
            yield "isolation.type", "None", "allowUnsafe is false: set it to true to run graders without isolation"


class VerifierSpec(ExecutionSettings):
    """Graders and their isolation. Limits hold per execution."""

    replicas: int = Field(default=1, ge=1, le=1000, description="Number of verifier replicas.")
    rewards: tuple[RewardSpec, ...] = Field(
        min_length=1,
        max_length=16,
        json_schema_extra=NAMED,
        description="Weighted rewards; the raw reward is their sum. Side by side in math_code_single_step, areal-math"
        " and areal-code each grade the records of their task alone.",
    )
    pod: PodSpec = Field(default=PodSpec(), description="Pod settings.")

    @rule()
    def pods_are_confined(self) -> Iterator[Problem]:
        """A verifier runs what a model wrote: it gets no accelerator and no Secret."""
        pod = self.pod
        for kind, quantities in (("requests", pod.resources.requests), ("limits", pod.resources.limits)):
            for key in [key for key in quantities if key not in POD_RESOURCES]:
                yield f"pod.resources.{kind}", key, f"verifiers get {', '.join(POD_RESOURCES)} and nothing else"
        for variable in pod.env:
            if variable.value_from is not None and variable.value_from.secret_key_ref is not None:
                yield "pod.env", variable.name, "graded code could read a Secret: leave it out"
        for source in pod.env_from:
            if source.secret_ref is not None:
                yield "pod.envFrom", source.secret_ref.name, "graded code could read a Secret: leave it out"
        for volume in pod.volumes:
            if volume.secret is not None:
                because = f"graded code could read Secret {volume.secret.secret_name}: leave it out"
                yield "pod.volumes", volume.name, because
        for claim in pod.resource_claims:
            because = f"verifiers get {', '.join(POD_RESOURCES)} and no device: leave it out"
            yield "pod.resourceClaims", claim.name, because


# Below them no shell starts.
LEAST_MEMORY, LEAST_SCRATCH = 64 << 20, 1 << 20


class EnvironmentSpec(Section):
    """Confined places with a shell, each lent to one episode at a time. Its pods are placed as the verifiers' are."""

    replicas: int = Field(default=1, ge=1, le=1000, description="Number of pods, or of processes on one machine.")
    places: int = Field(default=4, ge=1, le=256, description="Episodes at once in each.")
    idle_seconds: int = Field(
        default=300, ge=1, le=86_400, description="Seconds after its last command until an episode loses its place."
    )
    wall_seconds: int = Field(
        default=600, ge=1, le=86_400, description="Seconds that all commands of an episode may take."
    )
    output_limit: Quantity = Field(default="1Mi", description="Output of all commands of an episode, bytes.")
    memory: Quantity = Field(default="512Mi", description="Memory of each command, bytes.")
    scratch: Quantity = Field(default="256Mi", description="Files of an episode, bytes.")
    resources: ResourcesSpec = Field(
        default=ResourcesSpec(),
        description="Of each pod, requests equal to limits. Default: a cpu, and what all places need at their limits."
        " Nodes and RuntimeClass are those of verifier.",
    )
    image: Annotated[str, Field(min_length=1, max_length=512)] | None = Field(
        default=None, description="With the programs that episodes need. Default: the image of verifier."
    )

    @rule()
    def a_shell_fits(self) -> Iterator[Problem]:
        for name, least in (("memory", LEAST_MEMORY), ("scratch", LEAST_SCRATCH), ("outputLimit", 1)):
            value = {"memory": self.memory, "scratch": self.scratch, "outputLimit": self.output_limit}[name]
            if num_bytes(value) < least:
                yield name, value, f"no command runs with less than {least} bytes"

    @rule()
    def pods_have_no_devices(self) -> Iterator[Problem]:
        """They run what a model wrote."""
        for kind, quantities in (("requests", self.resources.requests), ("limits", self.resources.limits)):
            for key in [key for key in quantities if key not in POD_RESOURCES]:
                yield f"resources.{kind}", key, f"environments get {', '.join(POD_RESOURCES)} and nothing else"
