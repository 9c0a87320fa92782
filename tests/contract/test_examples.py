"""What the example manifests promise: each passes the definition's schema, and the page lists them all."""

import copy
import json
import pathlib
import re
from typing import Any

import jsonschema
import pytest
import yaml

from rljob_api.validation import crd
from rljob_api.validation.load import load_manifest
from rljob_testing import examples

MANIFESTS = sorted(examples.EXAMPLES.glob("*.yaml"))
RECIPES = sorted((examples.EXAMPLES / "recipes").glob("*.yaml"))
PAGE = (examples.EXAMPLES / "README.md").read_text(encoding="utf-8")
ROWS = dict(re.findall(r"^\| `([\w.-]+\.yaml)` \|.*\| (\d+|-) \|$", PAGE, flags=re.MULTILINE))
# One of each for GPUs and one for two cores.
SYSTEMS = ("areal-multi-turn-math", "areal-math-code", "arealite-gsm8k", "arealite-clevr-count", "oat-drgrpo-zero")


def closed(node: object) -> Any:
    """Return a schema that refuses the unknown fields that a structural one prunes."""
    if isinstance(node, list):
        return [closed(member) for member in node]
    if not isinstance(node, dict):
        return node
    made = {key: closed(member) for key, member in node.items()}
    open_ = "additionalProperties" in made or made.get("x-kubernetes-preserve-unknown-fields")
    return made if open_ or "properties" not in made or "type" not in made else {**made, "additionalProperties": False}


@pytest.fixture(scope="module")
def schema() -> jsonschema.Draft202012Validator:
    root = closed(copy.deepcopy(dict(crd.root_schema())))
    # What every object has; a structural schema does not report on them.
    root["properties"] |= {"apiVersion": {"type": "string"}, "kind": {"type": "string"}, "metadata": {"type": "object"}}
    return jsonschema.Draft202012Validator(root)


def violations(schema: jsonschema.Draft202012Validator, document: object) -> list[str]:
    return [f"{error.json_path}: {error.message}" for error in schema.iter_errors(document)]


@pytest.mark.parametrize("path", [*MANIFESTS, *RECIPES], ids=lambda path: path.name)
def test_an_example_passes_the_definitions_schema(path: pathlib.Path, schema: jsonschema.Draft202012Validator) -> None:
    assert violations(schema, yaml.safe_load(path.read_text(encoding="utf-8"))) == []


@pytest.mark.parametrize(
    ("change", "said"),
    [({"maxSteps": "many"}, "$.spec.maxSteps"), ({"maxStep": 3}, "maxStep"), ({"verifier": {}}, "rewards")],
)
def test_the_schema_says_what_is_wrong(
    change: dict[str, object], said: str, schema: jsonschema.Draft202012Validator
) -> None:
    document = yaml.safe_load(MANIFESTS[0].read_text(encoding="utf-8"))
    document["spec"] |= change
    (problem,) = violations(schema, document)
    assert said in problem


@pytest.mark.parametrize("path", [*MANIFESTS, *RECIPES], ids=lambda path: path.name)
def test_the_name_of_an_example_is_that_of_its_file(path: pathlib.Path) -> None:
    assert load_manifest(path.read_text(encoding="utf-8")).metadata.name == path.stem


@pytest.mark.parametrize("system", SYSTEMS)
def test_a_system_has_an_example_for_gpus_and_one_for_two_cores(system: str) -> None:
    specs = [
        load_manifest((examples.EXAMPLES / f"{system}{suffix}.yaml").read_text(encoding="utf-8")).spec
        for suffix in ("", "-cpu")
    ]
    assert [spec.model.name == "builtin:smollm2-135m-instruct" for spec in specs] == [False, True]
    assert specs[0].workflow.type == specs[1].workflow.type


def test_the_page_lists_every_manifest_with_its_gpus() -> None:
    needed = {}
    for path in MANIFESTS:
        spec = load_manifest(path.read_text(encoding="utf-8")).spec
        sampling = spec.rollout.replicas * spec.rollout.engine.tensor_parallel_size
        training = spec.trainer.nodes * spec.trainer.processes_per_node
        asks = "nvidia.com/gpu" in json.dumps(spec.model_dump(mode="json"))
        needed[path.name] = str(sampling + training) if asks else "-"
    assert needed == ROWS


def test_the_page_of_recipes_has_a_row_for_each_with_its_paper() -> None:
    page = (examples.ROOT / "docs/recipes.md").read_text(encoding="utf-8")
    listed = dict(re.findall(r"^\| `([\w.-]+\.yaml)` \| [^|]*arXiv:([\d.]+) \|", page, flags=re.MULTILINE))
    heads = {path.name: path.read_text(encoding="utf-8").split("\napiVersion:")[0] for path in RECIPES}
    assert listed == {name: re.findall(r"arXiv ([\d.]+\d)", head)[0] for name, head in heads.items()}


def test_recipes_differ_in_their_algorithm_alone() -> None:
    """Dynamic sampling is DAPO's, and a setting of the data."""
    others = []
    for path in RECIPES:
        spec = yaml.safe_load(path.read_text(encoding="utf-8"))["spec"]
        same = {name: spec["algorithm"].pop(name) for name in ("groupSize", "promptsPerStep", "minibatches")}
        others.append(spec | {"algorithm": same, "data": spec["data"] | {"filterGroups": None}})
    assert len(others) == 8
    assert all(other == others[0] for other in others)
