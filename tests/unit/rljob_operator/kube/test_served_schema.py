import copy
from typing import Any

import pytest

from rljob_api.validation import crd
from rljob_operator.kube import discovery

KNOWN: dict[str, Any] = crd.root_schema()


def served() -> dict[str, Any]:
    return copy.deepcopy(KNOWN)


def test_definition_of_this_version_does() -> None:
    assert discovery.schema_problem(served(), KNOWN) == ""


def test_definition_of_a_newer_version_does() -> None:
    newer = served()
    newer["properties"]["status"]["properties"]["mood"] = {"type": "string"}
    assert discovery.schema_problem(newer, KNOWN) == ""


def test_missing_definition_is_told() -> None:
    assert discovery.schema_problem(None, KNOWN).startswith("no RLJob is served: apply the CustomResourceDefinition")


@pytest.mark.parametrize(
    ("path", "name", "told"),
    [
        (("status",), "attempt", "status.attempt"),
        (("status", "properties", "version"), "lag", "status.version.lag"),
        (("status", "properties", "conditions", "items"), "reason", "status.conditions[].reason"),
        (("spec", "properties", "rollout", "properties", "sampling"), "stop", "spec.rollout.sampling.stop"),
    ],
)
def test_field_that_an_older_version_would_drop_is_named(path: tuple[str, ...], name: str, told: str) -> None:
    older = served()
    place = older["properties"]
    for part in path:
        place = place[part]
    del place["properties"][name]
    assert f"lacks {told}:" in discovery.schema_problem(older, KNOWN)


def test_no_more_than_three_fields_are_named() -> None:
    older = served()
    fields = older["properties"]["status"]["properties"]
    for name in ("attempt", "images", "step", "summary", "version"):
        del fields[name]
    expected = "lacks status.attempt, status.images, status.step and 2 more:"
    assert expected in discovery.schema_problem(older, KNOWN)


def test_place_that_keeps_unknown_fields_drops_nothing() -> None:
    open_one: dict[str, Any] = {"properties": {"spec": KNOWN["properties"]["spec"], "status": {"type": "object"}}}
    open_one["properties"]["status"]["x-kubernetes-preserve-unknown-fields"] = True
    assert discovery.schema_problem(open_one, KNOWN) == ""
