"""`module:function` as type of a reward: the file that it may be in, and what a verifier is reported it."""

from collections.abc import Callable

import pytest

from rljob_api import resolve
from rljob_api.manifest.job import RLJob
from rljob_api.validation import rules

MakeJob = Callable[..., RLJob]


def rewards(*types: str) -> dict[str, object]:
    listed = [{"name": f"r{index}", "type": type_} for index, type_ in enumerate(types)]
    return {"verifier.rewards": listed, "workflow.code": {"path": "code/mine.py"}}


def test_file_may_be_named_by_a_reward_alone(make_job: MakeJob) -> None:
    assert rules.problems(make_job(rewards("exact", "mine:reward")).spec) == []


def test_file_that_nothing_names_is_refused(make_job: MakeJob) -> None:
    assert rules.problems(make_job(rewards("other:reward")).spec) == [
        "spec.workflow.code.path is 'code/mine.py', but verifier.rewards[0].type other:reward wants a file other.py"
    ]


@pytest.mark.parametrize(("type_", "user_code"), [("mine:reward", "/manifest/code/mine.py"), ("exact", "")])
def test_verifier_is_told_the_file_for_a_reward_of_ones_own_only(make_job: MakeJob, type_: str, user_code: str) -> None:
    job = make_job(rewards(type_, "mine:other"))
    placement = resolve.local_placement(
        job, uid="u", run_dir="/r", base_dir="/manifest", cache_dir="/c", ports=range(20), num_cores=2
    )
    (verifier,) = resolve.resolve(job, placement).verifiers
    assert [reward.user_code for reward in verifier.rewards] == [user_code, "/manifest/code/mine.py"]
