from collections.abc import Callable

import pytest

from rljob_api.manifest.job import RLJob

MakeJob = Callable[..., RLJob]
SIZES: dict[str, object] = {"data.train.0.maxPromptTokens": 64, "rollout.sampling.maxTokens": 32}


@pytest.mark.parametrize(
    ("workflow", "expected"),
    [
        pytest.param({"type": "rlvr"}, 96, id="one turn: prompt and answer"),
        pytest.param({"type": "multi_turn_math", "config": {"numTurns": 3}}, 416, id="two more answers and feedbacks"),
        pytest.param({"type": "multi_turn_math"}, 736, id="five turns by default"),
        pytest.param({"type": "multi_turn_math", "config": {"numTurns": 1}}, 96, id="a single turn adds nothing"),
    ],
)
def test_the_default_context_holds_every_turn(workflow: dict[str, object], expected: int, make_job: MakeJob) -> None:
    assert make_job({**SIZES, "workflow": workflow}).spec.rollout.engine.max_model_len == expected
