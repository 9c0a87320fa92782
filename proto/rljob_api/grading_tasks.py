"""Of which tasks a reward grades the records, in the environment math_code_single_step. Pure.

Source: docs/design/workflows.md#s-4; the tasks are those of docs/design/graders.md#s-4-1.
"""

from collections.abc import Mapping, Sequence

from rljob_api.manifest.reward_options import OPTIONS
from rljob_api.manifest.verifier import RewardSpec

WORKFLOW = "math_code_single_step"
OF_TYPE: Mapping[str, tuple[str, ...]] = {type_: kind.tasks for type_, kind in OPTIONS.items() if kind.tasks}


def of_reward(reward: RewardSpec, *, listed: Sequence[RewardSpec], workflow: str) -> tuple[str, ...]:
    """Return the tasks whose records `reward` grades, one of those `listed` together; empty: records of any task.

    Records are told apart only where both types stand in the list. One alone grades all there is, so that a record
    which it cannot grade is refused and not left out.
    """
    if workflow != WORKFLOW or not {other.type for other in listed}.issuperset(OF_TYPE):
        return ()
    return OF_TYPE.get(reward.type, ())
