import pytest

from rljob_api import cluster_placement, enums, resolve
from rljob_api.manifest.job import RLJob
from rljob_api.validation.load import load_manifest
from rljob_operator.resources import inputs
from rljob_testing import examples

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
