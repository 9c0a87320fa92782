"""One real control plane for all tests of a session; where it cannot run, the tests say why."""

import pathlib
import sys
import time
from collections.abc import Iterator

import pytest

from rljob_testing.charts import program_or_skip
from rljob_testing.cluster import binaries
from rljob_testing.cluster.light import LightCluster
from rljob_testing.cluster.manifests import Api

ROOT = pathlib.Path(__file__).parents[2]
_ESTABLISHED_S = 60.0


@pytest.fixture(scope="session")
def light_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LightCluster]:
    """A control plane without nodes. In CI, where root and Go can build it, a missing program is a failure."""
    if not sys.platform.startswith("linux"):
        pytest.skip(f"a control plane needs Linux, this is {sys.platform}")
    for name in (*binaries.LIGHT, "etcd"):
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
    applied = light_cluster.kubectl("apply", "-f", str(ROOT / "crds" / "rljob.dev_rljobs.yaml"))
    assert applied.returncode == 0, applied.stderr
    deadline = time.monotonic() + _ESTABLISHED_S
    while True:
        # kubectl gives up at once on an object that has no conditions yet, as a new one has for a moment.
        waited = light_cluster.kubectl("wait", "--for=condition=Established", "--timeout=10s", "crd/rljobs.rljob.dev")
        if waited.returncode == 0:
            return Api(light_cluster)
        assert time.monotonic() < deadline, waited.stderr
