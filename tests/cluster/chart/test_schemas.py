"""kubeconform, strict, with schemas made from what the API server itself publishes: no network is needed."""

import json
import pathlib
import subprocess
from typing import Any

import pytest
import yaml

from rljob_testing.charts import CI_VALUES, Helm, Manifest, program_or_skip
from rljob_testing.cluster.light import LightCluster

GOLDEN = pathlib.Path(__file__).parents[2] / "unit" / "rljob_operator" / "resources" / "golden"
_TIMEOUT_S = 60.0


@pytest.fixture(scope="module")
def schemas(chart_cluster: LightCluster, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A folder of JSON schemas, one a kind, as kubeconform looks for them."""
    answer = chart_cluster.kubectl("get", "--raw", "/openapi/v2")
    assert answer.returncode == 0, answer.stderr
    folder = tmp_path_factory.mktemp("schemas")
    write_schemas(json.loads(answer.stdout)["definitions"], folder)
    return folder


def write_schemas(definitions: dict[str, Any], folder: pathlib.Path) -> None:
    """Write one file a kind, all of which refer to one file of definitions."""
    strict = {name: _strict(definition) for name, definition in definitions.items()}
    (folder / "_definitions.json").write_text(json.dumps({"definitions": strict}))
    for name, definition in definitions.items():
        for kind in definition.get("x-kubernetes-group-version-kind", ()):
            file = "-".join(filter(None, (kind["kind"].lower(), kind["group"].split(".")[0], kind["version"])))
            (folder / f"{file}.json").write_text(json.dumps({"$ref": f"_definitions.json#/definitions/{name}"}))


def _strict(schema: Any) -> Any:
    """Refuse unknown fields, admit null as the API server does, and quantities and ports as number or text."""
    if isinstance(schema, list):
        return [_strict(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: _strict(value) for key, value in schema.items()}
    if isinstance(made.get("$ref"), str):
        made["$ref"] = made["$ref"].replace("#/definitions/", "_definitions.json#/definitions/")
    if made.get("format") == "int-or-string" or str(schema.get("description", "")).startswith("Quantity is"):
        return {"type": ["string", "integer", "number"]}
    # Words of a schema may be names of properties: only an object's own are looked at.
    if schema.get("type") == "object" and isinstance(made.get("properties"), dict):
        made.setdefault("additionalProperties", False)
    return made


def _conform(program: pathlib.Path, schemas: pathlib.Path, manifests: list[Manifest]) -> str:
    location = f"{schemas}/{{{{.ResourceKind}}}}{{{{.KindSuffix}}}}.json"
    # Kinds of the Prometheus operator and the definition itself are checked elsewhere.
    skipped = "PodMonitor,ServiceMonitor,PrometheusRule,CustomResourceDefinition"
    done = subprocess.run(
        [str(program), "-strict", "-summary", "-schema-location", location, "-skip", skipped, "-"],
        input=yaml.dump_all(manifests, Dumper=yaml.CSafeDumper),
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("values", CI_VALUES, ids=lambda path: path.name)
def test_rendered_objects_conform(helm: Helm, schemas: pathlib.Path, values: pathlib.Path) -> None:
    said = _conform(program_or_skip("kubeconform"), schemas, helm.template(files=[values]))
    assert "Invalid: 0, Errors: 0" in said


@pytest.mark.parametrize("name", ["foundation", "workloads"])
def test_objects_of_a_job_conform(schemas: pathlib.Path, name: str) -> None:
    manifests = [each for each in yaml.safe_load_all((GOLDEN / f"{name}.yaml").read_text()) if each]
    said = _conform(program_or_skip("kubeconform"), schemas, manifests)
    assert "Invalid: 0, Errors: 0, Skipped: 0" in said


def test_a_field_that_does_not_exist_is_found(schemas: pathlib.Path) -> None:
    manifest = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "dada": {}}
    with pytest.raises(AssertionError, match="dada"):
        _conform(program_or_skip("kubeconform"), schemas, [manifest])
