import pathlib

import pytest

from rljob_testing.charts import Helm, program_or_skip


@pytest.fixture(scope="session")
def helm(tmp_path_factory: pytest.TempPathFactory) -> Helm:
    return Helm(program_or_skip("helm"), pathlib.Path(tmp_path_factory.mktemp("helm")))
