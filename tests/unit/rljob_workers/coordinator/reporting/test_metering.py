import itertools

import pytest

from rljob_api import enums, errors, process_config
from rljob_workers.coordinator.reporting import metrics as metering
from rljob_workers.runtime import metrics

JOB = process_config.JobIdentity(name="run", namespace="team", uid="u")


@pytest.mark.parametrize(
    ("error", "counted"),
    [
        (errors.FencedError("replaced by a newer process"), 1.0),
        (errors.ForbiddenError("a verifier may not lease"), 0.0),
        (errors.UnavailableError("starting"), 0.0),
    ],
    ids=lambda each: type(each).__name__,
)
def test_calls_of_replaced_sessions_are_counted_and_other_refusals_are_not(
    error: errors.RLJobError, counted: float
) -> None:
    made = metrics.Metrics(role=enums.Role.COORDINATOR, job=JOB)
    metering.fenced_calls(made)(error)
    labels = {"rljob": "run", "rljob_namespace": "team"}
    assert made.registry.get_sample_value("rljob_fenced_calls_total", labels) == counted


def test_outcomes_and_drops_are_shown_from_zero_so_that_the_first_of_each_is_an_increase() -> None:
    made = metrics.Metrics(role=enums.Role.COORDINATOR, job=JOB)
    metering.Metering(made)
    shown = made.exposition().decode()
    for outcome in ("accepted", "stale", "infra_failure", "filtered", "invalid", "duplicate"):
        assert f'rljob_trajectories_total{{outcome="{outcome}",rljob="run",rljob_namespace="team"}} 0.0' in shown
    for role, reason in itertools.product(
        ("rollout", "verifier"), ("timeout", "oom", "sandbox_lost", "image_pull", "transport", "engine", "other")
    ):
        labels = f'reason="{reason}",rljob="run",rljob_namespace="team",role="{role}"'
        assert f"rljob_infra_failures_total{{{labels}}} 0.0" in shown
    for kind in ("computed", "unique", "rows"):
        assert f'rljob_packed_tokens_total{{kind="{kind}",rljob="run",rljob_namespace="team"}} 0.0' in shown
    assert 'rljob_groups_dropped_total{reason="stale",rljob="run",rljob_namespace="team"} 0.0' in shown
