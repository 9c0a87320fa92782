"""Bounds on a group's mean success in workflow.config: AReaL's legacy single-step agent has them there."""

from collections.abc import Callable

import pytest

from rljob_api import resolve
from rljob_api.manifest.data import FilterGroupsSpec
from rljob_api.manifest.job import RLJob

MakeJob = Callable[..., RLJob]
SIGNED = {"shaping": "signed", "successRateLowerBound": 0.1, "successRateUpperBound": 0.9}


def filter_of(job: RLJob) -> FilterGroupsSpec:
    placement = resolve.local_placement(
        job, uid="u", run_dir="/r", base_dir="/manifest", cache_dir="/c", ports=range(20), num_cores=2
    )
    return resolve.resolve(job, placement).coordinator.spec.data.filter_groups


@pytest.mark.covers("workflows 4")
def test_the_group_filter_has_the_bounds_of_the_signed_single_step_agent(make_job: MakeJob) -> None:
    job = make_job({"workflow": {"type": "math_code_single_step", "config": SIGNED}})
    assert (filter_of(job).lower, filter_of(job).upper) == (0.1, 0.9)


@pytest.mark.parametrize(
    "workflow",
    [
        {"type": "rlvr", "config": {}},
        {"type": "math_code_single_step", "config": {}},
        {"type": "mine:Flow", "config": SIGNED},
    ],
)
def test_no_other_workflow_bounds_the_groups(workflow: dict[str, object], make_job: MakeJob) -> None:
    found = filter_of(make_job({"workflow": workflow}))
    assert (found.lower, found.upper) == (None, None)
