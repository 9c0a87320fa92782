"""Of which tasks a reward grades the records."""

from collections.abc import Callable, Mapping

import pytest

from rljob_api import grading, resolve
from rljob_api.manifest.job import RLJob
from rljob_api.manifest.verifier import RewardSpec
from rljob_workers.verifier.graders import metadata

MakeJob = Callable[..., RLJob]
MATHS, CODE, LENGTH = (RewardSpec(name=type_[-4:], type=type_) for type_ in ("areal-math", "areal-code", "mine:length"))
WORKFLOW = "math_code_single_step"


@pytest.mark.covers("workflows 4")
@pytest.mark.parametrize(("reward", "tasks"), [(MATHS, ("math", "stem")), (CODE, ("code",)), (LENGTH, ())])
def test_maths_and_code_side_by_side_grade_their_own_tasks_and_any_other_reward_all(
    reward: RewardSpec, tasks: tuple[str, ...]
) -> None:
    assert grading.tasks_of_reward(reward, listed=(MATHS, LENGTH, CODE), workflow=WORKFLOW) == tasks


@pytest.mark.parametrize("reward", [MATHS, CODE])
def test_one_of_them_alone_grades_every_record(reward: RewardSpec) -> None:
    assert grading.tasks_of_reward(reward, listed=(reward, LENGTH), workflow=WORKFLOW) == ()


@pytest.mark.parametrize("workflow", ["rlvr", "multi_turn_math", "mine:Workflow"])
def test_other_workflows_add_up_all_rewards(workflow: str) -> None:
    assert grading.tasks_of_reward(MATHS, listed=(MATHS, CODE), workflow=workflow) == ()


def test_every_task_of_a_metadata_file_has_its_grader() -> None:
    assert [task for tasks in grading.OF_TYPE.values() for task in tasks] == list(metadata.TASKS)


def test_a_verifier_is_told_the_tasks_list_by_list(make_job: MakeJob) -> None:
    def rewards(*types: str) -> list[Mapping[str, object]]:
        return [{"name": type_, "type": type_} for type_ in types]

    suites = [{"name": "code", "path": "c.jsonl", "rewards": rewards("areal-code")}, {"name": "all", "path": "a.jsonl"}]
    job = make_job(
        {
            "workflow.type": WORKFLOW,
            "verifier.rewards": rewards("areal-math", "areal-code"),
            "evaluation.suites": suites,
        }
    )
    placement = resolve.local_placement(
        job, uid="u", run_dir="/r", base_dir="/manifest", cache_dir="/c", ports=range(20), num_cores=2
    )
    (verifier,) = resolve.resolve(job, placement).verifiers
    assert [(reward.type, reward.suite, reward.tasks) for reward in verifier.rewards] == [
        ("areal-math", "", ("math", "stem")),
        ("areal-code", "", ("code",)),
        ("areal-code", "code", ()),
    ]
