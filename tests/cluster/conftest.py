"""One real control plane for all tests of a session; where it cannot run, the tests say why."""

import pathlib
import sys
from collections.abc import Callable, Iterator

import pytest
from generators import kubernetes_page

from rljob_testing.charts import program_or_skip
from rljob_testing.cluster import binaries, manifests
from rljob_testing.cluster.light import LightCluster
from rljob_testing.cluster.manifests import Api

ROOT = pathlib.Path(__file__).parents[2]


@pytest.fixture(scope="session", autouse=True)
def _kubernetes_version(record_testsuite_property: Callable[[str, object], None]) -> None:
    """Note in a report (--junitxml) which version was run, for docs/kubernetes_versions.md."""
    record_testsuite_property(kubernetes_page.PROPERTY, binaries.KUBERNETES_VERSION)


@pytest.fixture(scope="session")
def light_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LightCluster]:
    """A control plane without nodes. In CI, where root and Go can build it, a missing program is a failure."""
    if not sys.platform.startswith("linux"):
        pytest.skip(f"a control plane needs Linux, this is {sys.platform}")
    for name in binaries.LIGHT:
        program_or_skip(name)
    cluster = LightCluster(tmp_path_factory.mktemp("cluster"))
    try:
        cluster.up()
        yield cluster
    finally:
        cluster.down()


@pytest.fixture(scope="session")
def api(light_cluster: LightCluster) -> Api:
    """The API with our CRD, established."""
    applied = light_cluster.kubectl("apply", "-f", str(ROOT / "crds"))
    assert applied.returncode == 0, applied.stderr
    manifests.establish(light_cluster)
    return Api(light_cluster)
