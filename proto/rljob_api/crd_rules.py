"""CEL rules of the CRD: what the API server refuses by itself, each with the field, a reason and a remedy.

`rljob_api.rules` refuses the same settings; it sees more (free-form options, derived values) and names values.
"""

from collections.abc import Iterator
from typing import cast

from pydantic import JsonValue

from rljob_api import crd_schema
from rljob_api.crd_rule_table import FORBIDDEN, RULES, CelRule
from rljob_api.crd_schema import Schema

__all__ = ["FROZEN", "FROZEN_WITH_CHECKPOINT", "RULES", "CelRule", "attach", "node_at", "transition_rules"]

# Fields that may change only while the job is suspended (operator reference, 5.10).
FROZEN = (
    "queue",
    "gang",
    "seed",
    "model",
    "data",
    "workflow",
    "algorithm",
    "async.onStale",
    "async.inFlightWeightUpdates",
    "async.maxInflightGroups",
    "coordinator",
    "rollout.engine",
    "rollout.sampling",
    "rollout.drainSeconds",
    "rollout.pod",
    "verifier",
    "trainer",
    "weightSync",
    "checkpoint",
    "storage",
    "evaluation.beforeTraining",
    "evaluation.suites",
    "evaluation.sampling",
    "evaluation.samplesPerPrompt",
    "evaluation.rolloutFraction",
    "security",
    "observability.podMonitor",
    "observability.trajectoryDump",
    "observability.trajectoryDumpAlso",
    "observability.traces",
)
# What a checkpoint speaks of: another value would make it another run (algorithms reference, 10).
FROZEN_WITH_CHECKPOINT = ("model", "data", "seed", "algorithm.groupSize", "algorithm.promptsPerStep")


def transition_rules(schema: Schema) -> Iterator[CelRule]:
    """Yield the rules that freeze fields; a field that may be absent is compared by presence too."""
    for path in FROZEN:
        unchanged = _unchanged(schema, f"spec.{path}", "self", "oldSelf", path)
        yield CelRule(
            at="spec",
            field=path,
            reason=FORBIDDEN,
            rule=f"oldSelf.suspend || {unchanged}",
            message=f"{path} is frozen while the job runs: suspend it first",
        )
    yield CelRule(
        at="spec",
        field="resumeFrom",
        reason=FORBIDDEN,
        rule=_unchanged(schema, "spec.resumeFrom", "self", "oldSelf", "resumeFrom"),
        message="resumeFrom is history and immutable: make a new job",
    )
    for path in FROZEN_WITH_CHECKPOINT:
        unchanged = _unchanged(schema, f"spec.{path}", "self.spec", "oldSelf.spec", path)
        yield CelRule(
            at="",
            field=f"spec.{path}",
            reason=FORBIDDEN,
            rule=f"!has(oldSelf.status) || !has(oldSelf.status.lastCheckpoint) || {unchanged}",
            message=f"{path} is frozen once a checkpoint exists: make a new job with resumeFrom",
        )


def _unchanged(schema: Schema, path: str, new: str, old: str, field: str) -> str:
    node, parent = node_at(schema, path), node_at(schema, path.rpartition(".")[0])
    required = cast(list[JsonValue], parent.get("required", []))
    equal = f"{new}.{field} == {old}.{field}"
    if "default" in node or field in required:
        return equal
    return f"(has({new}.{field}) == has({old}.{field}) && (!has({new}.{field}) || {equal}))"


def node_at(schema: Schema, path: str) -> Schema:
    """Return the schema node at a path; [] after a key stands for the items of its list."""
    node = schema
    for key in path.split(".") if path else []:
        node = crd_schema.properties_of(crd_schema.properties(node)[key.removesuffix("[]")])
        if key.endswith("[]"):
            node = crd_schema.properties_of(node["items"])
    return node


def attach(schema: Schema) -> None:
    """Write all rules into the schema, at the nodes that they speak of."""
    for rule in (*RULES, *transition_rules(schema)):
        node = node_at(schema, rule.at)
        entries = cast(list[JsonValue], node.setdefault("x-kubernetes-validations", []))
        entries.append(rule.to_schema())
