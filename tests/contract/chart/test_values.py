"""values.yaml, its schema and the versions agree with each other and with the package."""

import importlib.metadata
import json
import re
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest
import yaml
from generators import CHART, chart_readme

from rljob_api import cluster_placement, resolve
from rljob_api.validation.load import load_manifest
from rljob_operator.kube import permissions
from rljob_testing.charts import CI_VALUES

VALUES: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())
SCHEMA: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text())
TEMPLATES = "".join(path.read_text() for path in sorted((CHART / "templates").rglob("*")) if path.is_file())
# What values.yaml leaves empty on purpose: keys are the user's.
FREE = ("annotations", "labels", "nodeSelector", "affinity", "podLabels", "podAnnotations", "metricsNamespaces")


def leaves(tree: dict[str, Any], path: str = "") -> Iterator[str]:
    for key, value in tree.items():
        if isinstance(value, dict) and value and key not in FREE and f"{path}{key}" != "resources":
            yield from leaves(value, f"{path}{key}.")
        else:
            yield f"{path}{key}"


def merged(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """Lay values over others as Helm does."""
    both = {
        key: merged(below[key], value) for key, value in above.items() if isinstance(value, dict) and below.get(key)
    }
    return {**below, **above, **both}


def properties(schema: dict[str, Any], path: str = "") -> Iterator[str]:
    for key, below in schema.get("properties", {}).items():
        if "properties" in below and f"{path}{key}" != "resources":
            yield from properties(below, f"{path}{key}.")
        else:
            yield f"{path}{key}"


def test_every_value_is_in_the_schema_and_the_reverse() -> None:
    assert sorted(leaves(VALUES)) == sorted(properties(SCHEMA))


def test_every_value_is_read_by_a_template() -> None:
    unread = []
    for path in leaves(VALUES):
        parts = path.split(".")
        # A parent that is passed on whole covers what lies below it.
        readings = [".".join(parts[:n]) for n in range(1, len(parts) + 1)]
        whole = [one for one in readings if re.search(rf"\.Values\.{re.escape(one)}(?![.\w])", TEMPLATES)]
        looped = parts[0] == "integrations" and f'"{parts[1]}"' in TEMPLATES
        if not whole and not looped:
            unread.append(path)
    assert unread == []


def test_every_value_has_a_comment_of_its_own() -> None:
    lines = (CHART / "values.yaml").read_text().splitlines()
    described = sum(line.strip().startswith("# --") for line in lines)
    assert described == len(list(leaves(VALUES)))


def test_objects_of_the_schema_admit_no_unknown_key() -> None:
    def walk(schema: dict[str, Any], path: str) -> Iterator[str]:
        if "properties" in schema and schema.get("additionalProperties") is not False and path not in OPEN:
            yield path
        for key, below in schema.get("properties", {}).items():
            yield from walk(below, f"{path}.{key}")
        if isinstance(schema.get("items"), dict):
            yield from walk(schema["items"], f"{path}[]")

    assert list(walk(SCHEMA, "")) == []


# Umbrella charts share `global`; the rest of a variable is Kubernetes' own.
OPEN = (".global", ".extraEnv[]")


def test_the_defaults_and_the_values_of_ci_fit_the_schema() -> None:
    validator = jsonschema.Draft7Validator(SCHEMA)
    for values in (VALUES, *(merged(VALUES, yaml.safe_load(path.read_text())) for path in CI_VALUES)):
        assert [error.message for error in validator.iter_errors(values)] == []


@pytest.mark.parametrize(
    "values",
    [
        {"concurency": 8},
        {"concurrency": 0},
        {"concurrency": "8"},
        {"jobs": {"images": {"critic": {"repository": "a/b"}}}},
        {"jobs": {"egress": [{"cidr": "everywhere", "ports": [443]}]}},
        {"jobs": {"tlsModes": ["plain"]}},
        {"image": {"repository": "A b"}},
        {"image": {"digest": "sha256:12"}},
        {"log": {"level": "loud"}},
        {"monitoring": {"podMonitor": {"enabled": "perhaps"}}},
        {"watch": {"namespaces": ["Not_A_Name"]}},
        {"resources": {"claims": []}},
    ],
)
def test_the_schema_refuses_what_nothing_reads(values: dict[str, Any]) -> None:
    assert not jsonschema.Draft7Validator(SCHEMA).is_valid(merged(VALUES, values))


def test_versions_of_package_chart_and_images_are_one() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["appVersion"] == importlib.metadata.version("rljob")
    assert chart["kubeVersion"].endswith("-0")


def test_the_charts_table_of_rights_is_the_operators() -> None:
    written = permissions.CHART_COPY.read_text(encoding="utf-8")
    assert written == permissions.text(), "run `python -m rljob_operator.kube.permissions` and commit"


def test_the_values_table_of_the_readme_is_that_of_values_yaml() -> None:
    assert chart_readme.README.read_text() == chart_readme.written(), "run `make gen` and commit"


def test_every_yaml_of_the_readme_parses() -> None:
    blocks = re.findall(r"```\n(.*?)```", chart_readme.README.read_text(), flags=re.DOTALL)
    parsed = [yaml.safe_load(block) for block in blocks if ": " in block and "kubectl" not in block]
    assert len(parsed) == 3
    assert all(parsed)


def test_the_catalogue_entry_names_our_images_and_shows_the_job_of_the_test() -> None:
    notes = yaml.safe_load((CHART / "Chart.yaml").read_text())["annotations"]
    version = importlib.metadata.version("rljob")
    used = [VALUES["image"], *VALUES["jobs"]["images"].values()]
    named = {each["image"] for each in yaml.safe_load(notes["artifacthub.io/images"])}
    # Of rollouts and trainers, one image for each device.
    names = {image["repository"] for image in used if image["repository"]} | {
        "rljob/rljob-worker",
        "rljob/rljob-worker-cuda",
    }
    assert named == {f"{name}:{version}" for name in names}
    (example,) = yaml.safe_load(notes["artifacthub.io/crdsExamples"])
    assert example == yaml.safe_load((CHART / "files" / "smoke-job.yaml").read_text())


def test_the_job_of_the_test_resolves_for_a_cluster_and_asks_for_two_steps() -> None:
    job = load_manifest((CHART / "files" / "smoke-job.yaml").read_text())
    placement = cluster_placement.cluster_placement(job, verifier_cores=1)
    resolved = resolve.resolve(job, placement)
    assert (job.spec.max_steps, resolved.trainer.spec.max_steps) == (2, 2)
    assert resolve.warnings(job) == []
