"""Oat's actor metrics are the published ones, each with a gauge of its own."""

import pytest

from rljob_api import enums, metric_names
from rljob_workers.coordinator.reporting import oat_metrics

# docs/design/workflows.md#s-9.
PUBLISHED = {
    "rewards", "num_data", "formatted", "response_tok_len", "no_eos_count", "sampling_max_tokens",
    "sampling_temperature", "generate_time", "verify_time", "total_time", "num_transitions", "generate_avg_str_len",
    "avg_reward",
}  # fmt: skip


@pytest.mark.covers("workflows 9")
def test_every_published_metric_has_a_gauge_of_its_own_at_the_coordinator() -> None:
    assert set(oat_metrics.GAUGES) == {f"actor/{name}" for name in PUBLISHED}
    declared = {
        metric.name for metric in metric_names.METRICS if metric.kind == "g" and metric.role is enums.Role.COORDINATOR
    }
    assert set(oat_metrics.GAUGES.values()) == {name for name in declared if name.startswith("rljob_actor_")}
    assert len(set(oat_metrics.GAUGES.values())) == len(PUBLISHED)
