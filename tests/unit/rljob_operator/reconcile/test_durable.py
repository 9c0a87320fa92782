"""Whether the state of a job outlives its pods, and why not."""

from collections.abc import Mapping

import pytest

from rljob_api import enums, types
from rljob_api.conditions import REASONS, ConditionType
from rljob_operator.reconcile import conditions
from rljob_testing.sections import make_spec

STORE = {"type": "Persistent", "checkpoints": {"uri": "s3://runs/mine"}}
PROBLEM = (
    "checkpoints are not uploaded, there is none yet: cannot write to s3://runs/mine: the service cannot be reached"
)


def run(problem: str = "") -> types.RunStatus:
    return types.RunStatus(job="sums", phase=enums.Phase.RUNNING, storage_problem=problem)


@pytest.mark.parametrize(
    ("storage", "reported", "status", "reason"),
    [
        ({"type": "Ephemeral"}, run(), "False", "EmptyDir"),
        ({"type": "Persistent", "checkpoints": {"claimName": "mine"}}, None, "True", "PersistentVolume"),
        (STORE, None, "True", "ExternalStore"),
        (STORE, run(), "True", "ExternalStore"),
        (STORE, run(PROBLEM), "False", "UploadsFailing"),
    ],
)
def test_state_is_durable_where_it_is_kept_and_while_it_gets_there(
    storage: Mapping[str, object], reported: types.RunStatus | None, status: str, reason: str
) -> None:
    state = conditions.durable(make_spec({"storage": storage}), reported)
    assert (state.status, state.reason) == (status, reason)
    assert reason in REASONS[ConditionType.STATE_DURABLE][status]
    assert (PROBLEM in state.message) == (reason == "UploadsFailing")
