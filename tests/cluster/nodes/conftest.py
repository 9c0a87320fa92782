"""Two real nodes with the project's images for tests that ask for them by RLJOB_NODES=1; long ones by RLJOB_NODES=all.

`make cluster-tools RLJOB_NODES=1` builds programs and images beforehand; what is missing is built by the first test.
"""

import os
import pathlib
import shutil
from collections.abc import Iterator

import pytest

from rljob_testing.cluster import images, learning_run, preconditions, recovery, whole_job
from rljob_testing.cluster.full import FullCluster
from rljob_testing.cluster.learning_run import LearningRun

# The first test may build the images; a job loads its engines for one to two minutes at each of its starts.
TIMEOUT_S = 2400
VOLUME = "volume"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give every test on nodes the time that whole jobs take."""
    here = pathlib.Path(__file__).parent
    for item in items:
        if here in item.path.parents and isinstance(item, pytest.Function) and "nodes" in item.fixturenames:
            item.add_marker(pytest.mark.timeout(TIMEOUT_S))


_RECOVERIES = pytest.StashKey[list[recovery.Recovery]]()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print what breaks cost."""
    if rows := config.stash.get(_RECOVERIES, []):
        terminalreporter.section("recovery on two nodes")
        terminalreporter.write_line(recovery.table(rows))


@pytest.fixture(scope="session")
def recoveries(pytestconfig: pytest.Config) -> list[recovery.Recovery]:
    """The recoveries of this session, printed at its end."""
    return pytestconfig.stash.setdefault(_RECOVERIES, [])


@pytest.fixture(scope="session")
def all_asked() -> None:
    """What takes long runs where it was asked for."""
    if os.environ.get(preconditions.SWITCH) not in preconditions.ALL:
        pytest.skip(f"this takes a quarter of an hour and was not asked for ({preconditions.SWITCH}=all)")


@pytest.fixture(scope="session")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FullCluster]:
    """A cluster of two nodes that hold the images of this checkout."""
    asked, ci = (os.environ.get(name) for name in (preconditions.SWITCH, "CI"))
    machine = preconditions.this_machine(images_ready=images.ready() is not None)
    verdict, reason = preconditions.verdict(machine, asked=asked in preconditions.SOME, ci=ci == "true")
    if verdict is not preconditions.Verdict.RUN:
        (pytest.fail if verdict is preconditions.Verdict.FAIL else pytest.skip)(reason)
    cluster = FullCluster(tmp_path_factory.mktemp("nodes"), template=images.template())
    try:
        cluster.up()
        yield cluster
    finally:
        cluster.down()
        # Checkpoints are gigabytes, and folders of earlier sessions are kept for a while.
        shutil.rmtree(cluster.run_dir / VOLUME, ignore_errors=True)


@pytest.fixture(scope="session")
def learned(
    all_asked: None, operator: FullCluster, volume_folder: pathlib.Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LearningRun]:
    """The addition example, run to its end."""
    with learning_run.learned(operator, volume_folder, tmp_path_factory.mktemp("learned")) as run:
        yield run


@pytest.fixture(scope="session")
def operator(nodes: FullCluster) -> FullCluster:
    """The cluster with the chart installed."""
    done = whole_job.install(nodes)
    assert done.returncode == 0, done.stderr + nodes.kubectl("describe", "pods", "-n", whole_job.SYSTEM).stdout
    return nodes


@pytest.fixture(scope="session")
def volume_folder(nodes: FullCluster) -> pathlib.Path:
    """A folder that both nodes see, since they share the machine's file system; pods may write to it."""
    folder = nodes.run_dir / VOLUME
    folder.mkdir()
    os.chown(folder, 65532, 65532)
    return folder
