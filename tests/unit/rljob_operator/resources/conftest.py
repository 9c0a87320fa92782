import copy
import pathlib
from collections.abc import Callable
from typing import Any

import pytest
import yaml

from rljob_api import cluster_placement, enums, resolve
from rljob_api.manifest.job import RLJob
from rljob_api.validation.load import load_manifest
from rljob_operator.model import TEMPLATE_HASH
from rljob_operator.resources import inputs
from rljob_testing import examples

GOLDEN = pathlib.Path(__file__).parent / "golden"
EXAMPLE = examples.EXAMPLES / "addition-cpu.yaml"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--write-goldens", action="store_true", help="write the golden manifests anew; review them")


class Example:
    """The addition example as a cluster sees it, with changes to its spec by section."""

    def make(self, **sections: object) -> inputs.Inputs:
        job = load_manifest(EXAMPLE.read_text())
        metadata = job.metadata.model_copy(update={"name": "sums", "uid": "u-1", "namespace": "team"})
        spec = type(job.spec).model_validate(
            {**job.spec.model_dump(mode="json", by_alias=True, exclude_unset=True), **sections}, strict=False
        )
        return self.of(job.model_copy(update={"metadata": metadata, "spec": spec}))

    def of(self, job: RLJob) -> inputs.Inputs:
        configs = resolve.resolve(job, cluster_placement.cluster_placement(job, verifier_cores=2))
        return inputs.Inputs(job=job, configs=configs, images=dict.fromkeys(enums.Role, "example/rljob:1"))


@pytest.fixture
def example() -> Example:
    return Example()


@pytest.fixture
def reviewed(request: pytest.FixtureRequest) -> Callable[[str, list[Any]], None]:
    """Asserts that children are those of a golden file.

    The example's numbers may change without a review of pods: what the programs read, and the hash of a template that
    follows it, have tests of their own.
    """

    def compare(name: str, children: list[Any]) -> None:
        shown = copy.deepcopy(children)
        for child in shown:
            if child["kind"] == "ConfigMap":
                child.pop("data")
            template = child.get("spec", {}).get("template", {})
            if TEMPLATE_HASH in template.get("metadata", {}).get("annotations", {}):
                template["metadata"]["annotations"][TEMPLATE_HASH] = "of the template and of what it reads"
        text = yaml.safe_dump_all(shown, sort_keys=False, width=120)
        if request.config.getoption("--write-goldens", default=False):
            (GOLDEN / name).write_text(text)
        assert text == (GOLDEN / name).read_text()

    return compare
