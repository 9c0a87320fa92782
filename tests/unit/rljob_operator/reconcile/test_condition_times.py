"""When a condition's time changes: with its status, and at the first sight of what the schema's default wrote."""

import json

from rljob_api.manifest.job import RLJob
from rljob_api.manifest.status import Condition, JobStatus
from rljob_api.validation import crd
from rljob_operator import clock
from rljob_operator.model import Observed
from rljob_operator.reconcile import conditions
from rljob_testing.cluster import manifests

FIRST, LATER = 1_000_000.0, 1_000_060.0


def _job(*known: Condition) -> RLJob:
    job = RLJob.model_validate_json(json.dumps(manifests.job("run", {})))
    return job.model_copy(update={"status": JobStatus(conditions=known)})


def _times(job: RLJob, now: float) -> dict[str, str]:
    found = conditions.conditions(Observed(job=job), conditions.RunOutcome(), now=now)
    return {one.type: one.last_transition_time for one in found}


def test_conditions_of_the_schema_s_default_take_the_time_at_which_they_were_first_seen() -> None:
    default = [
        Condition.model_validate(
            {"type": kind, "status": status, "reason": "Pending", "message": "", "lastTransitionTime": crd.EPOCH}
        )
        for kind, status in crd.INITIAL_CONDITIONS
    ]
    assert set(_times(_job(*default), FIRST).values()) == {clock.to_timestamp(FIRST)}


def test_a_condition_keeps_its_time_while_its_status_stays() -> None:
    first = conditions.conditions(Observed(job=_job()), conditions.RunOutcome(), now=FIRST)
    assert set(_times(_job(*first), LATER).values()) == {clock.to_timestamp(FIRST)}
    turned = [_turned(one) if one.type == "CoordinatorReady" else one for one in first]
    later = _times(_job(*turned), LATER)
    assert later.pop("CoordinatorReady") == clock.to_timestamp(LATER)
    assert set(later.values()) == {clock.to_timestamp(FIRST)}


def _turned(condition: Condition) -> Condition:
    return condition.model_copy(update={"status": "False" if condition.status == "True" else "True"})
