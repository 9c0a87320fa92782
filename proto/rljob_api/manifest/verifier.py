"""`spec.verifier`: who grades, and how model output is isolated."""

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from rljob_api.manifest.base import FREE, NAMED, SET, Config, Decimal, Module, Name, Quantity, Section, one_of
from rljob_api.manifest.pod import PodSpec

# Graders that reproduce published ones have mode compat; ours have none (graders reference, section 1).
REPOSITORY_TESTS = "repository-tests"
OWN_REWARDS = ("math", "code", REPOSITORY_TESTS, "exact", "reasoning_gym")
REPRODUCED_REWARDS = ("boxed", "answer_tag", "gsm8k", "clevr_count_70k", "areal-math", "areal-code")
REWARDS = (*OWN_REWARDS, *REPRODUCED_REWARDS)
# These run what the policy wrote.
FORKED_REWARDS = ("code", "areal-code")
PROGRAM_REWARDS = (*FORKED_REWARDS, REPOSITORY_TESTS)

# What programs of published data sets import, and what is named where another package is not there.
USUAL_PACKAGES = ("networkx", "numpy", "pandas", "scipy", "sortedcontainers", "sympy")

RUNTIME_CLASS = "runtimeClass:"

if TYPE_CHECKING:
    RewardType = str
    Isolation = str
else:
    RewardType = one_of(*REWARDS)
    Isolation = one_of("sandbox", "none", prefixes=(RUNTIME_CLASS,), imports=False)


def runtime_class(isolation: str) -> str:
    """Return the RuntimeClass that an isolation asks for, empty if none."""
    return isolation.removeprefix(RUNTIME_CLASS) if isolation.startswith(RUNTIME_CLASS) else ""


class RewardSpec(Section):
    """One named, weighted reward."""

    name: Name = Field(description="Name in metrics and filters, unique in the list.")
    type: RewardType = Field(description="Grader: one of the built-in ones, or module:function.")
    weight: Decimal = Field(default="1", description="Factor on this reward in the sum.")
    mode: Literal["strict", "compat"] = Field(
        default="strict",
        description="strict corrects known defects of the original grader; compat repeats its verdicts.",
    )
    config: Config = Field(default={}, max_length=32, json_schema_extra=FREE, description="Options of the grader.")
    packages: tuple[Module, ...] = Field(
        default=(),
        max_length=16,
        json_schema_extra=SET,
        description="What programs of code, areal-code and repository-tests may import beside the standard library, as"
        " far as the verifier's image carries it; ours carries networkx, numpy, sortedcontainers and sympy. A module of"
        " a package (scipy.optimize) is imported before the program runs.",
    )


class VerifierSpec(Section):
    """Graders and their isolation. Limits hold per execution."""

    replicas: int = Field(default=1, ge=1, le=1000, description="Number of verifier replicas.")
    rewards: tuple[RewardSpec, ...] = Field(
        min_length=1,
        max_length=16,
        json_schema_extra=NAMED,
        description="Weighted rewards; the raw reward is their sum. Side by side in math_code_single_step, areal-math"
        " and areal-code each grade the records of their task alone.",
    )
    isolation: Isolation = Field(
        default="sandbox", description="sandbox, runtimeClass:<name> on top of it, or none (needs allowUnsafe)."
    )
    allow_unsafe: bool = Field(default=False, description="Accept isolation none.")
    timeout_seconds: int | None = Field(
        default=None,
        ge=1,
        le=3600,
        description="CPU seconds per execution, of the reference machine (docs/security.md); wall time is capped at 3x."
        " Default: by grader, 10 for our own.",
    )
    memory_bytes: Quantity = Field(default="512Mi", description="Memory per execution, bytes.")
    max_output_bytes: Quantity = Field(default="64Ki", description="Output per execution, bytes.")
    max_concurrent: int | None = Field(
        default=None, ge=1, le=4096, description="Executions at once per replica. Default: its CPU cores."
    )
    pod: PodSpec = Field(default=PodSpec(), description="Pod settings.")
