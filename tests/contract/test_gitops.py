"""What Argo CD's Lua on docs/gitops.md and kstatus conclude of every state that conditions can be in
(docs/design/operator.md#s-6-4, #s-6-6).
"""

import itertools
import re
from collections.abc import Iterator, Mapping
from typing import Any

import lupa.lua51
import pytest
import yaml

from rljob_api import enums
from rljob_api.conditions import REASONS
from rljob_api.conditions import ConditionType as Type
from rljob_testing import condition_rules
from rljob_testing.examples import ROOT
from rljob_testing.operator_runs import Run, operator_job

PAGE = (ROOT / "docs/gitops.md").read_text(encoding="utf-8")
BLOCKS = [yaml.safe_load(block) for block in re.findall(r"^```yaml\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)]
(LUA,) = (
    block["data"]["resource.customizations.health.rljob.dev_RLJob"]
    for block in BLOCKS
    if block.get("kind") == "ConfigMap"
)
ROWS = dict(re.findall(r"^\| ([a-z, ]+) \| (?:InProgress|Current|Failed) \| (\w+) \|$", PAGE, flags=re.MULTILINE))
KSTATUS = dict(re.findall(r"^\| ([a-z, ]+) \| (InProgress|Current|Failed) \| \w+ \|$", PAGE, flags=re.MULTILINE))
# Of Argo CD's states, those that say the same as a state of kstatus.
SAME = {
    "InProgress": {"Progressing"},
    "Failed": {"Degraded"},
    "Current": {"Healthy", "Suspended"},
}
QUIET = {**dict.fromkeys(Type, "False"), Type.ACCEPTED: "True", Type.QUOTA_RESERVED: "True"}
STATES: dict[str, dict[Type, str]] = {
    "starting": QUIET | {Type.RECONCILING: "True"},
    "restarting": QUIET | {Type.RECONCILING: "True"},
    "suspending": QUIET | {Type.SUSPENDING: "True", Type.RECONCILING: "True"},
    "running": QUIET | {Type.RUNNING: "True"},
    "degraded": QUIET | {Type.RUNNING: "True", Type.DEGRADED: "True"},
    "queued": QUIET | {Type.SUSPENDED: "True", Type.QUOTA_RESERVED: "False"},
    "suspended": QUIET | {Type.SUSPENDED: "True"},
    "complete": QUIET | {Type.COMPLETE: "True"},
    "failed": QUIET | {Type.FAILED: "True", Type.STALLED: "True"},
    "stalled": QUIET | {Type.RUNNING: "True", Type.STALLED: "True"},
    "not accepted": QUIET | {Type.ACCEPTED: "False", Type.STALLED: "True"},
}


RUNTIME = lupa.lua51.LuaRuntime(register_eval=False, register_builtins=False)
CHECK = RUNTIME.eval(f"function(obj) {LUA} end")


def argo(obj: Mapping[str, Any]) -> tuple[str, str]:
    """Return health and message as the Lua concludes them; Argo CD's interpreter has the language of Lua 5.1."""
    answer = CHECK(RUNTIME.table_from(obj, recursive=True))
    return answer["status"], answer["message"]


def job(
    statuses: Mapping[Type, str], *, generation: int = 1, observed: int = 1, message: str = "why"
) -> dict[str, Any]:
    conditions = [
        {"type": str(kind), "status": status, "reason": REASONS[kind].get(status, ("Pending",))[0], "message": message}
        for kind, status in statuses.items()
    ]
    return {
        "metadata": {"generation": generation},
        "status": {"observedGeneration": observed, "conditions": conditions},
    }


def row_of(rows: Mapping[str, str], state: str) -> str:
    return next(conclusion for words, conclusion in rows.items() if state in words.split(", "))


@pytest.mark.parametrize("state", STATES)
def test_both_conclude_of_each_state_what_the_page_says(state: str) -> None:
    assert condition_rules.contradictions(STATES[state]) == []
    assert argo(job(STATES[state]))[0] == row_of(ROWS, state)
    assert condition_rules.kstatus(STATES[state], generation=1, observed_generation=1) == row_of(KSTATUS, state)


DECIDING = (
    Type.ACCEPTED, Type.QUOTA_RESERVED, Type.SUSPENDING, Type.SUSPENDED, Type.RUNNING, Type.DEGRADED,
    Type.RECONCILING, Type.STALLED, Type.COMPLETE, Type.FAILED,
)  # fmt: skip


def states() -> Iterator[dict[Type, str]]:
    """Yield what the deciding conditions can be together, where one of them says where the run is."""
    for values in itertools.product(("True", "False"), repeat=len(DECIDING)):
        statuses = QUIET | dict(zip(DECIDING, values, strict=True))
        true = {kind for kind, status in statuses.items() if status == "True"}
        somewhere = true & {Type.RUNNING, Type.SUSPENDED, Type.COMPLETE, Type.STALLED, Type.RECONCILING}
        # A queued job has no pods; one that is being stopped is worked on, and one that has stopped is not.
        agrees = (
            (Type.QUOTA_RESERVED in true or Type.SUSPENDED in true)
            and (Type.SUSPENDING not in true or true & {Type.RECONCILING, Type.STALLED})
            and not (Type.SUSPENDED in true and Type.RECONCILING in true)
        )
        if somewhere and agrees and not condition_rules.contradictions(statuses):
            yield statuses


def test_argo_and_kstatus_agree_on_every_combination_without_contradictions() -> None:
    combinations = list(states())
    assert len(combinations) > 30
    for statuses, observed in itertools.product(combinations, (1, 2)):
        generic = condition_rules.kstatus(statuses, generation=2, observed_generation=observed)
        assert argo(job(statuses, generation=2, observed=observed))[0] in SAME[generic], statuses


def test_a_job_that_no_operator_has_seen_is_in_progress() -> None:
    assert argo({"metadata": {"generation": 1}})[0] == "Progressing"
    assert argo({"metadata": {"generation": 1}, "status": {}})[0] == "Progressing"


def test_a_change_that_is_not_planned_yet_is_in_progress_whatever_held_before() -> None:
    assert argo(job(STATES["failed"], generation=2, observed=1))[0] == "Progressing"


def test_the_message_has_reason_and_sentence() -> None:
    assert argo(job(STATES["suspended"]))[1] == "UserRequested: why"
    assert argo(job(STATES["complete"], message=""))[1] == "MaxStepsReached"


def concluded(run: Run) -> tuple[str, str]:
    """Return what Argo CD and kstatus conclude of what the operator wrote."""
    assert run.cluster.job is not None
    body = run.cluster.job.model_dump(mode="json", by_alias=True, exclude_none=True)
    statuses = {Type(condition["type"]): condition["status"] for condition in body["status"]["conditions"]}
    generation = body["metadata"]["generation"]
    observed = body["status"]["observedGeneration"]
    generic = condition_rules.kstatus(statuses, generation=generation, observed_generation=observed)
    return argo(body)[0], generic


def test_the_life_of_a_job_as_the_operator_writes_it() -> None:
    run = Run(operator_job())
    run.reconcile()
    assert concluded(run) == ("Progressing", "InProgress")
    run.settle()
    run.cluster.says(enums.Phase.RUNNING, step=1)
    run.settle()
    assert concluded(run) == ("Healthy", "Current")
    run.cluster.end_trainer(0)
    run.cluster.says(enums.Phase.FINISHED, step=10)
    run.settle()
    assert concluded(run) == ("Healthy", "Current")
