"""Rows A-16 to A-20: answers that attack the tests of a repository, through the service, its workers and the launcher,
each in a fresh interpreter at level `confined`.
"""

import contextlib
import dataclasses
import pathlib
import re
from collections.abc import AsyncIterator, Callable, Mapping

import pytest
import pytest_asyncio

from rljob_api import enums, process_config, types
from rljob_testing import attack_repositories, attack_runs
from rljob_testing.attack_repositories import Attack
from rljob_workers.verifier import service
from rljob_workers.verifier.graders.repository import verdict as repository_verdict
from rljob_workers.verifier.sandbox.confinement import profile

MakeConfig = Callable[..., process_config.VerifierConfig]
Running = Callable[..., contextlib.AbstractAsyncContextManager[service.Service]]
O = enums.VerifyOutcome  # noqa: E741  # short
pytestmark = pytest.mark.asyncio(loop_scope="module")


@dataclasses.dataclass(frozen=True, slots=True)
class Served:
    """A verifier, and where its workers lay repositories out."""

    verifier: service.Service
    folder: pathlib.Path

    async def judged(self, name: str, files: Mapping[str, str]) -> types.Verdict:
        columns = {"query_id": "q", "repository": dict(attack_repositories.REPOSITORY)}
        return await attack_runs.answered(self.verifier.grading, name, attack_repositories.completion(files), columns)

    def left(self) -> list[pathlib.Path]:
        """Return what is there alongside a folder for each worker."""
        return [path for path in self.folder.rglob("*") if path.parent != self.folder]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served(
    make_config: MakeConfig,
    running: Running,
    confined: profile.Confinement,
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[Served]:
    scratch = tmp_path_factory.mktemp("scratch")
    left = scratch / "repositories" / "worker-old" / "run-old"
    left.mkdir(parents=True)
    reward = process_config.GraderConfig(name="passes", type="repository-tests", memory_bytes=256 << 20)
    config = make_config(
        reward, cpu_limit_s=attack_runs.LONG_S, wall_limit_s=250.0, num_slots=1, scratch_dir=str(scratch)
    )
    async with running(config) as verifier:
        assert not left.exists(), "what a killed verifier left is gone"
        yield Served(verifier, scratch / "repositories")
    assert list((scratch / "repositories").iterdir()) == []


@pytest.mark.covers("sandbox A-16", "sandbox A-17", "sandbox A-18", "sandbox A-19", "sandbox A-20")
@pytest.mark.parametrize("attack", attack_repositories.ATTACKS, ids=lambda attack: f"{attack.id} {attack.what}")
async def test_attack_on_tests_has_its_outcome_and_no_reward_but_for_right_code(attack: Attack, served: Served) -> None:
    verdict = await served.judged(f"{attack.id} {attack.what}", attack.files)
    assert verdict.outcome in attack.outcomes
    assert verdict.reward == attack.reward
    assert served.left() == []


@pytest.mark.covers("security")
async def test_right_and_wrong_code_after_all_attacks_is_told_apart_and_marked(served: Served) -> None:
    right = await served.judged("right", attack_repositories.RIGHT)
    wrong = await served.judged("wrong", attack_repositories.WRONG)
    assert (right.reward, right.outcome, right.case_results) == (1.0, O.PASS, (1, 1))
    assert (wrong.reward, wrong.outcome, wrong.case_results) == (0.0, O.FAIL, (0, 0))
    for verdict in (right, wrong):
        assert verdict.parts[f"passes.{repository_verdict.IN_PROCESS}"] == 1.0
    counted = served.verifier.metrics.exposition().decode()
    assert re.search(r'^rljob_verify_total\{[^}]*outcome="pass"[^}]*type="repository-tests"', counted, re.MULTILINE)
