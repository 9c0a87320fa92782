"""A user's own environment, agent and reward in one file, through the real command."""

import json
import os
from typing import Any

import pytest

from rljob_testing import own_code
from rljob_testing.runs import Runs

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        not os.environ.get("RLJOB_EVERY_EXAMPLE"), reason="own code was not asked for (RLJOB_EVERY_EXAMPLE=1)"
    ),
]


def test_one_file_holds_environment_agent_and_reward_of_a_run(rljob: Runs) -> None:
    (rljob.folder / f"{own_code.STEM}.py").write_text(own_code.CODE)
    changes: dict[str, object] = {
        "maxSteps": 3,
        "workflow": own_code.WORKFLOW,
        "verifier": {"rewards": own_code.REWARDS},
        "evaluation": {},
        "observability": {"trajectoryDump": "All"},
        "rollout__sampling": {"maxTokens": 3, "ignoreEos": True},
    }
    code, output = rljob.run(rljob.manifest(**changes))
    assert code == 0, output
    assert rljob.summary()["steps"] == 3
    rows = [
        json.loads(line)
        for path in sorted((rljob.folder / "run/dumps/rollout").glob("*/*.jsonl"))
        for line in path.read_text().splitlines()
    ]
    for row in rows:
        check(row)
    assert {row["reward"] for row in rows} > {0.0}, "some answers are even, some are not"
    assert rljob.audit() == ""


def check(row: dict[str, Any]) -> None:
    """Compare a row with what the file's own code makes of it."""
    assert len(row["turns"]) == 2
    assert row["reward"] == sum(turn["raw_reward"] for turn in row["turns"])
    assert row["reason"] in {"ok", "wrong"}


def test_a_fault_in_the_file_is_told_with_its_line_before_anything_starts(rljob: Runs) -> None:
    (rljob.folder / f"{own_code.STEM}.py").write_text(own_code.CODE + "import no_such_module\n")
    code, output = rljob.run(rljob.manifest(workflow=own_code.WORKFLOW, verifier={"rewards": own_code.REWARDS}))
    assert code == 2, output
    line = own_code.CODE.count("\n") + 1
    assert f"{own_code.STEM}.py:{line}: ModuleNotFoundError" in output
