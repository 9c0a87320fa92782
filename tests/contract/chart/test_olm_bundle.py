"""The bundle for the Operator Lifecycle Manager, by the rules of its validators (operator-framework/api)."""

import json
import re
from typing import Any

import pytest
import yaml
from release import olm_bundle

from rljob_api.validation import definitions
from rljob_api.validation.load import load_manifest
from rljob_operator.kube import permissions
from rljob_testing.charts import program_or_skip

SEMVER = r"\d+\.\d+\.\d+(?:-[0-9A-Za-z.-]+)?"
# What the manager knows in a bundle of registry+v1.
SUPPORTED = {"ClusterServiceVersion", "CustomResourceDefinition", "ConfigMap", "Service", "ServiceAccount", "Secret"}
MOST_BYTES = 4 << 20


@pytest.fixture(scope="module")
def files() -> dict[str, str]:
    return olm_bundle.bundle(olm_bundle.rendered(str(program_or_skip("helm"))))


@pytest.fixture(scope="module")
def manifests(files: dict[str, str]) -> list[dict[str, Any]]:
    return [yaml.safe_load(text) for path, text in files.items() if path.startswith("manifests/")]


@pytest.fixture(scope="module")
def version(manifests: list[dict[str, Any]]) -> dict[str, Any]:
    (version,) = (each for each in manifests if each["kind"] == "ClusterServiceVersion")
    return version


def test_it_holds_what_the_manager_knows_and_names_no_namespace(
    files: dict[str, str], manifests: list[dict[str, Any]]
) -> None:
    assert {each["kind"] for each in manifests} == {"ClusterServiceVersion", "CustomResourceDefinition", "ConfigMap"}
    assert {each["kind"] for each in manifests} <= SUPPORTED
    assert not [
        each for each in manifests if each["kind"] != "ClusterServiceVersion" and "namespace" in each["metadata"]
    ]
    assert sum(map(len, files.values())) < MOST_BYTES


def test_the_definitions_are_the_generated_ones_and_are_owned(
    manifests: list[dict[str, Any]], version: dict[str, Any]
) -> None:
    found = {each["metadata"]["name"]: each for each in manifests if each["kind"] == "CustomResourceDefinition"}
    assert {name: each["spec"] for name, each in found.items()} == {
        f"{plural}.rljob.dev": each["spec"] for plural, each in definitions.definitions().items()
    }
    owned = {
        (each["name"], each["kind"], each["version"]) for each in version["spec"]["customresourcedefinitions"]["owned"]
    }
    assert owned == {
        (name, each["spec"]["names"]["kind"], served["name"])
        for name, each in found.items()
        for served in each["spec"]["versions"]
        if served["served"]
    }


def test_the_operator_may_keep_its_leases(version: dict[str, Any]) -> None:
    (own,) = version["spec"]["install"]["spec"]["permissions"]
    assert {resource for rule in own["rules"] for resource in rule["resources"]} == {"leases"}
    (deployment,) = version["spec"]["install"]["spec"]["deployments"]
    assert own["serviceAccountName"] == deployment["spec"]["template"]["spec"]["serviceAccountName"]


def test_names_and_versions_are_well_formed(version: dict[str, Any]) -> None:
    assert re.fullmatch(rf"{olm_bundle.PACKAGE}\.v{SEMVER}", version["metadata"]["name"])
    assert version["metadata"]["name"].endswith(version["spec"]["version"])
    assert re.fullmatch(SEMVER, version["spec"]["minKubeVersion"])
    for field in ("displayName", "description", "provider", "maintainers", "keywords"):
        assert version["spec"][field], field
    assert all(re.fullmatch(r"[^@\s]+@[^@\s]+", each["email"]) for each in version["spec"]["maintainers"])
    assert version["metadata"]["annotations"]["capabilities"] in (
        "Basic Install", "Seamless Upgrades", "Full Lifecycle", "Deep Insights", "Auto Pilot",
    )  # fmt: skip
    modes = {each["type"]: each["supported"] for each in version["spec"]["installModes"]}
    assert set(modes) == {"OwnNamespace", "SingleNamespace", "MultiNamespace", "AllNamespaces"}
    assert any(modes.values())


def test_the_deployment_runs_as_the_account_that_has_the_rights_of_the_table(version: dict[str, Any]) -> None:
    install = version["spec"]["install"]
    assert install["strategy"] == "deployment"
    (deployment,) = install["spec"]["deployments"]
    (permission,) = install["spec"]["clusterPermissions"]
    pod = deployment["spec"]["template"]
    assert permission["serviceAccountName"] == pod["spec"]["serviceAccountName"]
    assert deployment["spec"]["selector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    granted = {(group, resource, verb) for rule in permission["rules"] for group in rule["apiGroups"]
               for resource in rule["resources"] for verb in rule["verbs"]}  # fmt: skip
    table = {(rule.group, resource, verb) for rule in permissions.RULES if rule.when in ("always", "tls")
             for resource in rule.resources for verb in rule.verbs}  # fmt: skip
    assert granted == table


def test_what_the_pod_mounts_is_in_the_bundle(manifests: list[dict[str, Any]], version: dict[str, Any]) -> None:
    (deployment,) = version["spec"]["install"]["spec"]["deployments"]
    mounted = {
        each["configMap"]["name"] for each in deployment["spec"]["template"]["spec"]["volumes"] if "configMap" in each
    }
    assert mounted == {each["metadata"]["name"] for each in manifests if each["kind"] == "ConfigMap"}


def test_the_example_is_a_job(version: dict[str, Any]) -> None:
    (example,) = json.loads(version["metadata"]["annotations"]["alm-examples"])
    assert load_manifest(json.dumps(example)).spec.max_steps == 2


def test_image_labels_and_annotations_say_the_same(files: dict[str, str]) -> None:
    annotations = yaml.safe_load(files["metadata/annotations.yaml"])["annotations"]
    labels = dict(re.findall(r"^LABEL (\S+?)=(.+)$", files["bundle.Dockerfile"], flags=re.MULTILINE))
    assert labels == annotations
    prefix = "operators.operatorframework.io.bundle"
    assert annotations[f"{prefix}.mediatype.v1"] == "registry+v1"
    assert annotations[f"{prefix}.channel.default.v1"] in annotations[f"{prefix}.channels.v1"].split(",")
