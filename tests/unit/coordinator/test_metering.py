from rljob_api import names, roles
from rljob_workers.coordinator import metering
from rljob_workers.runtime import metrics


def test_outcomes_and_drops_are_shown_from_zero_so_that_the_first_of_each_is_an_increase() -> None:
    made = metrics.Metrics(role=names.Role.COORDINATOR, job=roles.JobIdentity(name="run", namespace="team", uid="u"))
    metering.Metering(made)
    shown = made.exposition().decode()
    for outcome in ("accepted", "stale", "infra_failure", "filtered", "invalid", "duplicate"):
        assert f'rljob_trajectories_total{{outcome="{outcome}",rljob="run",rljob_namespace="team"}} 0.0' in shown
    assert 'rljob_groups_dropped_total{reason="stale",rljob="run",rljob_namespace="team"} 0.0' in shown
