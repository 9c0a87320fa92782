"""A control plane for each file: what the chart installs is cluster-wide, and lasts longer than a test."""

import pathlib
from collections.abc import Iterator

import pytest

from rljob_testing.charts import Helm, program_or_skip
from rljob_testing.cluster import binaries
from rljob_testing.cluster.light import LightCluster


@pytest.fixture(scope="session")
def helm(tmp_path_factory: pytest.TempPathFactory) -> Helm:
    return Helm(program_or_skip("helm"), pathlib.Path(tmp_path_factory.mktemp("helm")))


@pytest.fixture(scope="module")
def chart_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LightCluster]:
    for name in binaries.LIGHT:
        program_or_skip(name)
    cluster = LightCluster(tmp_path_factory.mktemp("chart-cluster"))
    try:
        cluster.up()
        yield cluster
    finally:
        cluster.down()
