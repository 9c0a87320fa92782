"""Two real nodes for tests that ask for them by RLJOB_NODES=1: programs and images take most of an hour to build.

python -m rljob_testing.cluster build --nodes && RLJOB_NODES=1 pytest tests/cluster/nodes
"""

import os
import pathlib
from collections.abc import Iterator

import pytest

from rljob_testing.cluster import full, images
from rljob_testing.cluster.full import FullCluster


@pytest.fixture(scope="session")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FullCluster]:
    """A cluster of two nodes that hold the slim image."""
    if os.environ.get("RLJOB_NODES") != "1":
        pytest.skip("two real nodes were not asked for (RLJOB_NODES=1)")
    if reason := full.unable() or full.missing():
        pytest.fail(reason)
    cluster = FullCluster(tmp_path_factory.mktemp("nodes"))
    try:
        cluster.up()
        images.load(cluster.nodes, (images.SLIM,))
        yield cluster
    finally:
        cluster.down()


@pytest.fixture(scope="session")
def volume_folder(nodes: FullCluster) -> pathlib.Path:
    """A folder that both nodes see, since they share the machine's file system; pods may write to it."""
    folder = nodes.run_dir / "volume"
    folder.mkdir()
    os.chown(folder, 65532, 65532)
    return folder
