import pathlib

import pytest

from rljob_testing.charts import Helm, program_or_skip
from rljob_testing.prometheus import Promtool


@pytest.fixture(scope="session")
def promtool() -> Promtool:
    return Promtool(program_or_skip("promtool"))


@pytest.fixture(scope="session")
def helm(tmp_path_factory: pytest.TempPathFactory) -> Helm:
    return Helm(program_or_skip("helm"), pathlib.Path(tmp_path_factory.mktemp("helm")))
