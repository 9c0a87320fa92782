"""The committed CRD is what the models say, structural and bounded, and small enough for client-side apply."""

import json
import pathlib
import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from rljob_api.manifest.base import DECIMAL_PATTERN, CelRule
from rljob_api.validation import crd, definitions

ROOT = pathlib.Path(__file__).parents[2]
Node = dict[str, Any]


def nodes(schema: Node, path: str = "") -> Iterator[tuple[str, Node]]:
    yield path, schema
    for key, child in schema.get("properties", {}).items():
        yield from nodes(child, f"{path}.{key}" if path else key)
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            yield from nodes(schema[key], f"{path}[]")


@pytest.fixture(scope="module")
def schema() -> Node:
    return dict(crd.root_schema())


def test_committed_crd_is_what_the_models_say() -> None:
    files = definitions.files()
    stale = [str(path.relative_to(ROOT)) for path, text in files if path.read_text(encoding="utf-8") != text]
    assert not stale, f"run `python -m rljob_api.validation.definitions` and commit: {stale} differ from the models"


def test_committed_yaml_says_what_was_generated() -> None:
    assert yaml.safe_load(definitions.source("rljobs").read_text(encoding="utf-8")) == crd.crd()


def test_crd_is_small_enough_for_client_side_apply() -> None:
    size = len(json.dumps(crd.crd(), separators=(",", ":")).encode())
    assert size <= definitions.MAX_JSON_BYTES, f"the CRD has {size} bytes: shorten descriptions"


def test_no_float_in_the_schema(schema: Node) -> None:
    assert [path for path, node in nodes(schema) if node.get("type") == "number"] == []


def test_every_node_has_a_type(schema: Node) -> None:
    assert [
        path for path, node in nodes(schema) if "type" not in node and "x-kubernetes-int-or-string" not in node
    ] == []


@pytest.mark.parametrize("section", ["spec", "status"])
def test_everything_is_bounded(section: str, schema: Node) -> None:
    bounds = {
        "string": ("maxLength",),
        "array": ("maxItems", "x-kubernetes-list-type"),
        "integer": ("minimum", "maximum", "format"),
    }
    unbounded = [
        f"{path}: {bound}"
        for path, node in nodes(schema["properties"][section], section)
        for bound in bounds.get(node.get("type", ""), ())
        if bound not in node
    ]
    maps = [
        path
        for path, node in nodes(schema["properties"][section], section)
        if node.get("type") == "object" and "properties" not in node and "maxProperties" not in node
    ]
    assert (unbounded, maps) == ([], [])


def test_every_field_is_described(schema: Node) -> None:
    bare = [
        path
        for path, node in nodes(schema)
        if path and not path.endswith("[]") and path != "metadata" and not node.get("description")
    ]
    # Below a pod's own fields, and resources, everything is core/v1's; a suite repeats a source, and rewards.
    told = re.compile(r"\.pod\.[A-Za-z]+(\[\])?\.|(environment|judge)\.resources\.|evaluation\.suites\[\]\.")
    assert [path for path in bare if not told.search(path)] == []


def test_schema_is_structural(schema: Node) -> None:
    forbidden = {"$ref", "oneOf", "allOf", "not", "title", "additionalItems", "patternProperties", "const", "nullable"}
    assert [(path, key) for path, node in nodes(schema) for key in node if key in forbidden] == []
    any_of = [path for path, node in nodes(schema) if "anyOf" in node and "x-kubernetes-int-or-string" not in node]
    both = [path for path, node in nodes(schema) if "properties" in node and "additionalProperties" in node]
    assert (any_of, both) == ([], [])


def test_named_lists_are_maps_by_a_required_key(schema: Node) -> None:
    for path, node in nodes(schema):
        for key in node.get("x-kubernetes-list-map-keys", []):
            assert key in node["items"].get("required", []), f"{path}: {key} must be required to key the list"


def test_defaults_satisfy_their_own_schema(schema: Node) -> None:
    for path, node in nodes(schema):
        default = node.get("default")
        if isinstance(default, str):
            assert len(default) <= node["maxLength"], path
            assert re.match(node.get("pattern", ""), default), path
            assert default in node.get("enum", [default]), path
        if isinstance(default, int) and not isinstance(default, bool):
            assert node["minimum"] <= default <= node["maximum"], path
        if isinstance(default, dict):
            missing = [key for key in node.get("required", []) if key not in default]
            assert not missing, f"{path} defaults to an object without {missing}"


def test_default_of_an_object_is_written_in_full(schema: Node) -> None:
    """The API server runs the rules of an object on its default alone, before it fills in nested defaults."""
    for path, node in nodes(schema["properties"]["spec"]):
        if isinstance(node.get("default"), dict):
            children = node["properties"].items()
            assert node["default"] == {key: child["default"] for key, child in children if "default" in child}, path


@pytest.mark.parametrize("text", ["1e-6", "1e-5", "0", "0.2", "1.0", "2.5E+3"])
def test_decimal_strings_are_quoted_for_yaml_readers_that_see_numbers(text: str) -> None:
    assert definitions.dumped({"default": text}) == f'default: "{text}"\n'


def test_scale_paths_exist_and_replicas_are_never_missing(schema: Node) -> None:
    scale = crd.crd()["spec"]["versions"][0]["subresources"]["scale"]  # type: ignore[index,call-overload]
    for path in scale.values():  # type: ignore[union-attr]
        assert crd.node_at(schema, str(path).removeprefix("."))
    rollout = crd.node_at(schema, "spec.rollout")
    replicas = crd.node_at(schema, "spec.rollout.replicas")
    assert (rollout["default"]["replicas"], replicas["default"], replicas["minimum"]) == (1, 1, 1)


def test_columns_and_selectable_fields_exist(schema: Node) -> None:
    paths = [path for _, path, *_ in crd.COLUMNS if not path.startswith(".metadata")]
    for path in (*paths, *crd.SELECTABLE_FIELDS):
        # A condition is found in its list by its type.
        assert crd.node_at(schema, re.sub(r"\[\?[^\]]*\]", "[]", path).removeprefix("."))


def test_new_object_is_pending_and_not_healthy(schema: Node) -> None:
    conditions = schema["properties"]["status"]["default"]["conditions"]
    assert [(one["type"], one["status"], one["reason"]) for one in conditions] == [
        ("Accepted", "Unknown", "Pending"),
        ("Reconciling", "True", "Pending"),
    ]
    assert all(one["lastTransitionTime"].startswith("1970-01-01") for one in conditions)


def all_rules(schema: Node) -> list[CelRule]:
    rules = [*crd.RULES, *crd.transition_rules(schema)]
    return [crd.guarded(rule, crd.node_at(schema, rule.at)) for rule in rules]


def test_the_api_server_writes_no_default_that_a_runtime_may_have(schema: Node) -> None:
    """But for what scaling, suspending and selecting read, and in items of lists, which a job writes as a whole."""
    spec = schema["properties"]["spec"]
    written = {path for path, node in nodes(spec) if "default" in node and "properties" not in node}
    assert {path for path in written if "[]" not in path} == {"suspend", "managedBy", "rollout.replicas"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("self.everySteps == 1", "!(has(self.everySteps)) || (self.everySteps == 1)"),
        ("!has(self.everySteps) || self.everySteps > 1", "!has(self.everySteps) || self.everySteps > 1"),
        ("has(self.everySteps)", "!(has(self.everySteps)) || (has(self.everySteps))"),
    ],
)
def test_a_rule_speaks_of_what_the_object_has(schema: Node, text: str, expected: str) -> None:
    rule = CelRule(at="spec.checkpoint", rule=text, message="-")
    assert crd.guarded(rule, crd.node_at(schema, rule.at)).rule == expected


def test_rules_blame_fields_that_exist(schema: Node) -> None:
    for rule in all_rules(schema):
        assert rule.message
        assert rule.reason in ("FieldValueInvalid", "FieldValueForbidden", "FieldValueRequired")
        if rule.field:
            assert crd.node_at(crd.node_at(schema, rule.at), rule.field), rule


def test_rules_read_fields_that_exist_and_are_there(schema: Node) -> None:
    """A field without default must be guarded by has(), or the rule fails on objects that leave it out."""
    for rule in all_rules(schema):
        node = crd.node_at(schema, rule.at)
        guarded = set(re.findall(r"has\(((?:self|oldSelf)[A-Za-z.]*)\)", rule.rule))
        for path in set(re.findall(r"\b((?:self|oldSelf)(?:\.[A-Za-z]+)+)\b(?!\()", rule.rule)):
            if path.startswith(("self.metadata", "oldSelf.metadata")):
                continue
            keys = path.split(".")[1:]
            for length in range(1, len(keys) + 1):
                here = crd.node_at(node, ".".join(keys[:length]))
                parent = crd.node_at(node, ".".join(keys[: length - 1]))
                spelled = ".".join(path.split(".")[: length + 1])
                present = "default" in here or keys[length - 1] in parent.get("required", [])  # type: ignore[operator]
                assert present or spelled in guarded, f"{rule.rule} reads {spelled} without has()"


def test_rules_are_balanced_text(schema: Node) -> None:
    for rule in all_rules(schema):
        assert rule.rule.count("(") == rule.rule.count(")"), rule.rule
        assert rule.rule.count("'") % 2 == 0, rule.rule


def test_every_field_is_frozen_immutable_or_editable(schema: Node) -> None:
    """docs/design/operator.md#s-5-8 to #s-5-10: no field is without a class."""
    editable = {
        "suspend",
        "rollout.replicas",
        "rollout.autoscaling",
        "verifier.replicas",
        "maxSteps",
        "async.maxOffPolicySteps",
        "evaluation.everySteps",
        "ttlSecondsAfterFinished",
        "cleanupPolicy",
        "failurePolicy",
        "activeDeadlineSeconds",
        "schedulingDeadlineSeconds",
        "startupDeadlineSeconds",
        "observability.logLevel",
        "retry",
    }
    classified = editable | set(crd.frozen(schema)) | {"managedBy", "resumeFrom"}
    split = {path.split(".")[0] for path in classified if "." in path}
    spec = schema["properties"]["spec"]["properties"]
    found = {key for key in spec if key not in split}
    found |= {f"{key}.{child}" for key in split for child in spec[key]["properties"]}
    assert found == classified


@pytest.mark.parametrize(
    ("text", "legal"),
    [
        ("1e-6", True),
        ("0.5", True),
        ("-0.5", True),
        ("10", True),
        ("1E+5", True),
        ("fast", False),
        ("1.", False),
        (".5", False),
        ("01", False),
        ("1e-600", False),
        ("", False),
    ],
)
def test_decimal_pattern(text: str, legal: bool) -> None:
    assert bool(re.match(DECIMAL_PATTERN, text)) is legal
