"""The CustomResourceDefinition of RLJobs, generated from the models; `validation.definitions` writes it.

Structural, bounded everywhere and without floats, so that the cost of its CEL rules can be estimated and client-side
`kubectl apply` (which stores the whole object in an annotation of at most 262,144 bytes) works.
"""

import dataclasses
import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from typing import TypeAlias, cast

from pydantic import BaseModel, JsonValue

from rljob_api import enums
from rljob_api.manifest.base import FORBIDDEN, INT32, JOB_NAME_PATTERN, CelRule
from rljob_api.manifest.job import LIVE, MAX_JOB_NAME, JobSpec
from rljob_api.manifest.status import JobStatus
from rljob_api.validation import rules

Schema: TypeAlias = dict[str, JsonValue]

# What pydantic writes and a structural schema must not hold, or has other words for.
_DROPPED = frozenset(
    (
        "title",
        "$defs",
        "$ref",
        "const",
        "anyOf",
        "default",
        "additionalProperties",
        "propertyNames",
        "properties",
        "items",
    )
)


def structural(model: type[BaseModel]) -> Schema:
    """Return the structural schema of a model, by YAML keys."""
    document = cast(Schema, model.model_json_schema(by_alias=True))
    return _node(document, cast(Schema, document.get("$defs", {})))


# Below spec, what the API server writes into an object that leaves it out: who scales, suspends or selects jobs reads
# it there. Items of lists have their defaults too. Every other field that a job leaves out stays out of the object,
# since its runtime may have a value for it.
WRITTEN_DEFAULTS = ("suspend", "managedBy", "rollout.replicas")


def without_defaults(node: Schema, path: str = "") -> Schema:
    """Return a schema whose fields have no defaults but the objects that hold them, which rules then find."""
    if "properties" not in node:
        if "default" not in node or path in WRITTEN_DEFAULTS:
            return node
        described = f"{str(node['description']).rstrip('.')}. Default: {_as_text(node['default'])}."
        return {**{key: value for key, value in node.items() if key != "default"}, "description": described}
    children = {
        key: without_defaults(properties_of(child), f"{path}.{key}".removeprefix("."))
        for key, child in properties(node).items()
    }
    pruned: Schema = {**node, "properties": cast(JsonValue, children)}
    if "default" in node:
        pruned["default"] = {key: child["default"] for key, child in children.items() if "default" in child}
    return pruned


def _as_text(value: JsonValue) -> str:
    return value if isinstance(value, str) and value else json.dumps(value)


def properties(schema: JsonValue) -> Schema:
    return cast(Schema, properties_of(schema)["properties"])


def properties_of(schema: JsonValue) -> Schema:
    assert isinstance(schema, dict), f"{schema!r} is not a schema node"
    return schema


def _node(raw: Schema, defs: Schema) -> Schema:
    merged = _inlined(raw, defs)
    node: Schema = {key: value for key, value in merged.items() if key not in _DROPPED}
    if "const" in merged:
        node["enum"] = [merged["const"]]
    if "x-kubernetes-int-or-string" in node:
        node["anyOf"] = merged["anyOf"]
    kind = node.get("type")
    if kind == "object":
        _fill_object(node, merged, defs)
    elif kind == "array":
        node["items"] = _node(cast(Schema, merged["items"]), defs)
        node.setdefault("x-kubernetes-list-type", "atomic")
    elif kind == "integer":
        node["format"] = "int32" if cast(int, node["maximum"]) <= INT32 else "int64"
    if "enum" in node:
        node["maxLength"] = max(len(str(word)) for word in cast(list[JsonValue], node["enum"]))
    _set_default(node, merged)
    return _ordered(node)


def _inlined(raw: Schema, defs: Schema) -> Schema:
    """Follow references and drop the null member of optional fields; the field's own words win."""
    merged = dict(raw)
    while True:
        options = cast(list[Schema], merged.get("anyOf", []))
        present = [option for option in options if option.get("type") != "null"]
        if "$ref" in merged:
            target = cast(Schema, defs[cast(str, merged.pop("$ref")).rsplit("/", 1)[-1]])
        elif options and len(present) < len(options):
            del merged["anyOf"]
            target = present[0]
        else:
            return merged
        merged = {**target, **merged}


def _fill_object(node: Schema, merged: Schema, defs: Schema) -> None:
    if "properties" in merged:
        fields = cast(dict[str, Schema], merged["properties"])
        node["properties"] = {key: _node(value, defs) for key, value in fields.items()}
    elif "x-kubernetes-preserve-unknown-fields" not in node:
        node["additionalProperties"] = _node(cast(Schema, merged["additionalProperties"]), defs)


def _set_default(node: Schema, merged: Schema) -> None:
    """Keep defaults; an object's is written in full, for its rules read it before the API server would fill it in."""
    default = merged.get("default")
    if "properties" in node and "default" in merged and default is not None:
        children = cast(dict[str, Schema], node["properties"])
        node["default"] = {key: child["default"] for key, child in children.items() if "default" in child}
    elif default not in (None, [], {}):
        # A list of decimals comes as floats: the type of a bare tuple's items is not known to pydantic.
        texts = isinstance(default, list) and cast(Schema, node["items"])["type"] == "string"
        node["default"] = [str(item) for item in cast(list[JsonValue], default)] if texts else default


def _ordered(node: Schema) -> Schema:
    first = ("type", "description", "default")
    return {key: node[key] for key in (*first, *(key for key in node if key not in first)) if key in node}


# Fields with a rule of their own, or of the operator that a job belongs to.
_OTHER_RULES = ("managedBy", "resumeFrom")
# What a checkpoint speaks of: another value would make it another run (docs/design/algorithms.md#s-10).
FROZEN_WITH_CHECKPOINT = ("model", "data", "seed", "algorithm.groupSize", "algorithm.promptsPerStep")


# When a field that a running job does not take over may change: before the first attempt, while everything is stopped,
# and after a failure, since a retry begins by stopping everything. The conditions say so, for pods outlive `suspend`.
_MAY_CHANGE = (
    "!has(oldSelf.status) || !has(oldSelf.status.attempt) || (has(oldSelf.status.conditions)"
    " && oldSelf.status.conditions.exists(c, c.status == 'True'"
    " && (c.type == 'Failed' || (c.type == 'Suspended' && oldSelf.spec.suspend))))"
)


# Rules of one state of the object, the API server's own about its name first.
RULES: tuple[CelRule, ...] = (
    CelRule(
        rule=f"size(self.metadata.name) <= {MAX_JOB_NAME} && self.metadata.name.matches('{JOB_NAME_PATTERN}')",
        message=f"metadata.name must be at most {MAX_JOB_NAME} lower-case letters, digits and dashes,"
        " beginning with a letter",
    ),
    *rules.twins(),
)
# Fields whose own value may change in one way only, or never.
TRANSITIONS = (
    CelRule(
        at="spec",
        field="maxSteps",
        reason=FORBIDDEN,
        rule="self.maxSteps >= oldSelf.maxSteps",
        message="maxSteps may only be raised; to end a run early, suspend or delete it",
    ),
    CelRule(
        at="spec",
        field="retry",
        reason=FORBIDDEN,
        rule="(has(self.retry) ? self.retry : 0) >= (has(oldSelf.retry) ? oldSelf.retry : 0)",
        message="retry may only be raised: each new value is one more retry",
    ),
    CelRule(
        at="spec.managedBy", rule="self == oldSelf", reason=FORBIDDEN, message="managedBy is immutable: make a new job"
    ),
)


def transition_rules(schema: Schema) -> Iterator[CelRule]:
    """Yield the rules that compare two states; a field that may be absent is compared by presence too.

    The comparison comes first: each status that is written asks all of them, and reading the conditions costs more.
    """
    yield from TRANSITIONS
    for path in frozen(schema):
        unchanged = _unchanged(schema, f"spec.{path}", "self.spec", "oldSelf.spec", path)
        yield CelRule(
            at="",
            field=f"spec.{path}",
            reason=FORBIDDEN,
            rule=f"{unchanged} || {_MAY_CHANGE}",
            message=f"{path} is frozen while the job has pods: suspend it and wait until it is Suspended",
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
            rule=f"{unchanged} || !has(oldSelf.status) || !has(oldSelf.status.lastCheckpoint)",
            message=f"{path} is frozen once a checkpoint exists: make a new job with resumeFrom",
        )


def frozen(schema: Schema) -> Iterator[str]:
    """Yield the paths below spec that change only while a job has no pods: all that no running job takes over."""
    spec = node_at(schema, "spec")
    for key, section in properties(spec).items():
        if key in LIVE or key in _OTHER_RULES:
            continue
        live = {path.removeprefix(f"{key}.") for path in LIVE if path.startswith(f"{key}.")}
        if live:
            yield from (f"{key}.{field}" for field in properties(properties_of(section)) if field not in live)
        else:
            yield key


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
        node = properties_of(properties(node)[key.removesuffix("[]")])
        if key.endswith("[]"):
            node = properties_of(node["items"])
    return node


def attach(schema: Schema) -> None:
    """Write all rules into the schema, at the nodes that they speak of."""
    for rule in (*RULES, *transition_rules(schema)):
        node = node_at(schema, rule.at)
        entries = cast(list[JsonValue], node.setdefault("x-kubernetes-validations", []))
        entries.append(guarded(rule, node).to_schema())


_READ = re.compile(r"\bself((?:\.[A-Za-z]+)+)(?![A-Za-z(])")
_METHOD = re.compile(r"\bself((?:\.[A-Za-z]+)+)\.[A-Za-z]+\(")
_NEEDED = re.compile(r"(?<!!)has\(self((?:\.[A-Za-z]+)+)\)")
_FORBIDDEN_IF_PRESENT = re.compile(r"!has\(self((?:\.[A-Za-z]+)+)\)")
# What no runtime has a part in: the object itself, items of lists, and history.
_OF_THE_JOB_ALONE = ("", "spec.resumeFrom")


def guarded(rule: CelRule, node: Schema) -> CelRule:
    """Return a rule that speaks only where every field that it reads or needs is in the object: the others may have a
    value from the job's runtime, with which the operator checks all of it.
    """
    if rule.at in _OF_THE_JOB_ALONE or "[]" in rule.at or "oldSelf" in rule.rule:
        return rule
    needed, optional = _NEEDED.findall(rule.rule), _FORBIDDEN_IF_PRESENT.findall(rule.rule)
    read = [path for path in (*_READ.findall(rule.rule), *_METHOD.findall(rule.rule)) if path not in optional]
    absent = [path for path in dict.fromkeys((*needed, *read)) if _may_be_absent(node, path.split(".")[1:])]
    if not absent:
        return rule
    present = " && ".join(f"has(self{path})" for path in absent)
    return dataclasses.replace(rule, rule=f"!({present}) || ({rule.rule})")


def _may_be_absent(node: Schema, keys: Sequence[str]) -> bool:
    """Return whether the last field of a path may be missing where all that is above it is there."""
    parent = node_at(node, ".".join(keys[:-1]))
    if "properties" not in parent or keys[-1] not in properties(parent):
        return False
    required = cast(list[JsonValue], parent.get("required", []))
    return "default" not in properties_of(properties(parent)[keys[-1]]) and keys[-1] not in required


# Name, JSON path, type, priority (0: always shown, 1: wide), what it shows.
COLUMNS: Sequence[tuple[str, str, str, int, str]] = (
    ("Status", ".status.summary", "string", 0, "One word: what the run does."),
    ("Step", ".status.step", "integer", 0, "Finished steps."),
    ("Steps", ".spec.maxSteps", "integer", 0, "Steps that the run is to make."),
    ("Reward", ".status.reward.mean", "string", 0, "Mean raw reward of the last step."),
    ("Rollout", ".status.rollout.ready", "string", 0, "Ready and desired rollout pods."),
    ("Attempt", ".status.attempt", "integer", 0, "Trainer attempt."),
    ("Suspended", '.status.conditions[?(@.type=="Suspended")].status', "string", 0, "Whether it is suspended."),
    ("Lag", ".status.version.lag", "integer", 0, "Steps between the newest and the oldest serving weights."),
    ("Age", ".metadata.creationTimestamp", "date", 0, "Time since creation."),
    ("Restarts", ".status.restarts.total", "integer", 1, "Trainer restarts."),
    ("Checkpoint", ".status.lastCheckpoint.time", "date", 1, "Last checkpoint."),
    ("GPUSeconds", ".status.usage.gpuSeconds", "integer", 1, "GPU seconds of its pods so far."),
    ("Reason", ".status.reason", "string", 1, "Reason of the status."),
)
SELECTABLE_FIELDS = (".spec.managedBy", ".spec.suspend")
# Without these, generic clients call a job healthy that no operator has seen yet.
INITIAL_CONDITIONS: tuple[tuple[str, str], ...] = (("Accepted", "Unknown"), ("Reconciling", "True"))
# Tells two definitions apart where no one can compare them.
SCHEMA_HASH = f"{enums.API_GROUP}/schema-hash"
_DIGITS = 16
EPOCH = "1970-01-01T00:00:00Z"


def crd() -> dict[str, JsonValue]:
    return definition(enums.KIND, _version(), short="rlj")


def definition(kind: str, version: Schema, *, short: str, scope: str = "Namespaced") -> dict[str, JsonValue]:
    """Return the definition of a kind of our group with one version."""
    digest = hashlib.sha256(json.dumps(version, sort_keys=True).encode()).hexdigest()[:_DIGITS]
    singular = kind.lower()
    names: Schema = {
        "kind": kind,
        "listKind": f"{kind}List",
        "plural": f"{singular}s",
        "singular": singular,
        "shortNames": [short],
        "categories": ["rl"],
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{singular}s.{enums.API_GROUP}", "annotations": {SCHEMA_HASH: digest}},
        "spec": {"group": enums.API_GROUP, "names": names, "scope": scope, "versions": [version]},
    }


def _version() -> dict[str, JsonValue]:
    return {
        "name": enums.API_VERSION,
        "served": True,
        "storage": True,
        "additionalPrinterColumns": [
            {"name": name, "type": kind, "priority": priority, "description": text, "jsonPath": path}
            for name, path, kind, priority, text in COLUMNS
        ],
        "selectableFields": [{"jsonPath": path} for path in SELECTABLE_FIELDS],
        "subresources": {
            "status": {},
            "scale": {
                "specReplicasPath": ".spec.rollout.replicas",
                "statusReplicasPath": ".status.rollout.replicas",
                "labelSelectorPath": ".status.rollout.selector",
            },
        },
        "schema": {"openAPIV3Schema": root_schema()},
    }


def root_schema() -> dict[str, JsonValue]:
    """Return the structural schema with its rules."""
    schema: Schema = {
        "type": "object",
        "description": "One RL run.",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string", "description": "Version of this schema."},
            "kind": {"type": "string", "description": "Kind of the object."},
            "metadata": {"type": "object", "properties": {"name": _object_name()}},
            "spec": _without_repetition(without_defaults(structural(JobSpec))),
            "status": {**structural(JobStatus), "default": {"conditions": _initial_conditions()}},
        },
    }
    attach(schema)
    return schema


def _without_repetition(spec: Schema) -> Schema:
    """Return the schema of spec whose pods describe their own fields and nothing below: those are core/v1's, they come
    several times, and docs/manifest.md describes them. A suite has the fields of a source of data.train and the rewards
    of verifier.rewards: they are described there.
    """
    for role in (*enums.STANDARD_ROLES, enums.Role.AGENTS):
        for field in properties(node_at(spec, f"{role}.pod")).values():
            _drop_descriptions(field, keeps_own=True)
    for role in (enums.Role.ENVIRONMENT, enums.Role.JUDGE):
        _drop_descriptions(node_at(spec, f"{role}.resources"), keeps_own=True)
    described = properties(node_at(spec, "data.train[]"))
    for name, field in properties(node_at(spec, "evaluation.suites[]")).items():
        _drop_descriptions(field, keeps_own=field != described.get(name))
    return spec


def _drop_descriptions(node: JsonValue, *, keeps_own: bool = False) -> None:
    if isinstance(node, list):
        for item in node:
            _drop_descriptions(item)
    elif isinstance(node, dict):
        if not keeps_own and isinstance(node.get("description"), str):
            del node["description"]
        for value in node.values():
            _drop_descriptions(value)


def _object_name() -> dict[str, JsonValue]:
    """Return the schema of metadata.name: without a length the cost of a rule about it has no bound."""
    return {"type": "string", "maxLength": 253, "description": "Name, which a rule of this schema shortens."}


def _initial_conditions() -> list[JsonValue]:
    return [
        {
            "type": kind,
            "status": status,
            "reason": "Pending",
            "message": "Waiting for the operator.",
            "lastTransitionTime": EPOCH,
        }
        for kind, status in INITIAL_CONDITIONS
    ]
