"""Which rewards grade a record, where maths and code are side by side."""

from collections.abc import Mapping

import pytest

from rljob_api import errors, process_config
from rljob_workers.verifier import rubric

REWARDS = (
    process_config.GraderConfig(name="right", type="areal-math", tasks=("math", "stem")),
    process_config.GraderConfig(name="short", type="mine:short"),
    process_config.GraderConfig(name="passes", type="areal-code", tasks=("code",)),
)
TESTS = '{"inputs": ["1"], "outputs": ["1"]}'


@pytest.mark.covers("workflows 4")
@pytest.mark.parametrize(
    ("columns", "graded_by"),
    [
        pytest.param({"task": "math", "solutions": ["1"]}, ("right", "short"), id="maths"),
        pytest.param({"task": "stem", "solutions": ["1"]}, ("right", "short"), id="stem is graded as maths"),
        pytest.param({"task": "code", "input_output": TESTS}, ("short", "passes"), id="code"),
        pytest.param({"task": "math", "input_output": TESTS}, ("right", "short"), id="what the record says counts"),
        pytest.param({"answer": "1"}, ("right", "short"), id="without a task and tests: maths"),
        pytest.param({"input_output": TESTS}, ("short", "passes"), id="without a task, with tests: code"),
    ],
)
def test_a_record_is_graded_by_the_rewards_of_its_task(
    columns: Mapping[str, object], graded_by: tuple[str, ...]
) -> None:
    indexes = rubric.graded_by(REWARDS, (0, 1, 2), columns)
    assert tuple(REWARDS[index].name for index in indexes) == graded_by


@pytest.mark.covers("workflows 4")
@pytest.mark.parametrize("task", ["poetry", None, ["math"], ""])
def test_a_task_that_no_reward_is_for_is_an_error_and_never_a_reward_of_0(task: object) -> None:
    with pytest.raises(errors.DataError, match="^'task' must be one of math, stem, code$"):
        rubric.graded_by(REWARDS, (0, 1, 2), {"task": task})


def test_rewards_without_tasks_grade_every_record_whatever_its_task() -> None:
    assert rubric.graded_by(REWARDS, (1,), {"task": "poetry"}) == (1,)
