"""Where the value of an environment variable of a job goes: to the containers of its role, and nowhere else; not into
another object, and in no status, condition or event.
"""

import itertools
import json
from collections.abc import Mapping
from typing import Protocol

import pytest

from rljob_api import enums, errors
from rljob_api.manifest.status import JobStatus
from rljob_operator.reconcile import conditions, events
from rljob_operator.resources import children, inputs
from rljob_testing import marked
from rljob_testing.marked import MARK, SECRET
from rljob_testing.operator_runs import Run, operator_job

POD = {"pod": {"env": [{"name": "HF_TOKEN", "value": SECRET}]}}
SPEC: dict[str, object] = {
    "coordinator": POD,
    "rollout": {"replicas": 2, **POD},
    "verifier": {"rewards": [{"name": "right", "type": "exact"}], **POD},
    "trainer": {"nodes": 2, **POD},
}


class Example(Protocol):
    """What the fixture of this folder offers."""

    def make(self, **sections: object) -> inputs.Inputs: ...


def without_environments(manifest: object) -> object:
    """Return the manifest without what its containers' variables are."""
    if isinstance(manifest, Mapping):
        return {key: without_environments(value) for key, value in manifest.items() if key != "env"}
    if isinstance(manifest, list | tuple):
        return [without_environments(each) for each in manifest]
    return manifest


def test_a_variables_value_is_in_containers_and_nowhere_else_in_what_is_applied(example: Example) -> None:
    given = example.make(**SPEC)
    made = [*children.foundation(given), *children.workloads(given, attempt=1, rollouts=2)]
    assert sum(MARK in json.dumps(each) for each in made) == len(enums.STANDARD_ROLES), "one workload a role has it"
    marked.assert_untold(json.dumps([without_environments(each) for each in made]))


def told(statuses: list[JobStatus]) -> str:
    """Return every status and every event between them."""
    news = [str(one) for before, after in itertools.pairwise(statuses) for one in events.event_drafts(before, after)]
    return "\n".join([*(status.model_dump_json() for status in statuses), *news])


def test_the_status_of_a_job_that_cannot_be_read_does_not_have_it() -> None:
    spec = {**SPEC, "rollout": {"pod": {"env": {"HF_TOKEN": SECRET}}}}
    with pytest.raises(errors.ManifestError) as refused:
        operator_job(spec)
    raw = {"metadata": {"generation": 1}, "spec": spec}
    status = conditions.unreadable_status(raw, refused.value.problems, now=0.0)
    assert "spec.rollout.pod.env is a mapping" in json.dumps(status)
    marked.assert_untold(json.dumps(status))


@pytest.mark.parametrize("code", [enums.ExitCode.FAILED, enums.ExitCode.CONFIGURATION, enums.ExitCode.INFRASTRUCTURE])
def test_no_status_and_no_event_of_a_run_that_fails_has_it(code: enums.ExitCode) -> None:
    run = Run(operator_job(SPEC))
    run.settle()
    run.cluster.end_trainer(code)
    run.settle()
    said = told(run.cluster.statuses)
    assert '"exitCode"' in said or '"exit_code"' in said, "the ending is told"
    marked.assert_untold(said)
