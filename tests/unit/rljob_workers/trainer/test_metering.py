"""A step's statistics become the series that dashboards and alerts read."""

import pytest

from rljob_api import enums, process_config
from rljob_testing.clock import FakeClock
from rljob_workers.runtime import metrics as metrics_module
from rljob_workers.trainer import learner, metering

Stat = enums.StepStat
JOB = {"rljob_namespace": "default", "rljob": "job"}
TOKENS = {Stat.TOKENS_TRAINED: 12.0}


@pytest.fixture
def registry() -> metrics_module.Metrics:
    return metrics_module.Metrics(
        role=enums.Role.TRAINER, job=process_config.JobIdentity(name="job", namespace="default", uid="u")
    )


def learned(stats: dict[Stat, float], masked: dict[str, float] | None = None) -> learner.Learned:
    return learner.Learned(stats=stats, nonfinite={"logprob": 2.0, "gradient": 1.0}, masked=masked or {})


def value(registry: metrics_module.Metrics, name: str, **labels: str) -> float | None:
    return registry.registry.get_sample_value(name, {**JOB, **labels})


def test_loss_of_the_policy_its_terms_and_the_critics_stand_side_by_side(registry: metrics_module.Metrics) -> None:
    stats = {**TOKENS, Stat.LOSS: -0.5, Stat.VALUE_LOSS: 0.125, Stat.KL_LOSS: 0.25, Stat.ENTROPY_LOSS: -0.0625}
    metering.Meter(registry, FakeClock()).step(1, learned(stats), stats)
    assert value(registry, "rljob_loss", component="policy") == -0.5
    assert value(registry, "rljob_loss", component="value") == 0.125
    assert value(registry, "rljob_loss", component="kl") == 0.25
    assert value(registry, "rljob_loss", component="entropy") == -0.0625


def test_a_statistic_that_a_step_lacks_leaves_its_series_alone(registry: metrics_module.Metrics) -> None:
    metering.Meter(registry, FakeClock()).step(1, learned(TOKENS), TOKENS)
    assert value(registry, "rljob_loss", component="policy") is None
    assert value(registry, "rljob_kl_reference") is None


@pytest.mark.covers("algorithms 11")
def test_masked_tokens_are_told_apart_by_reason(registry: metrics_module.Metrics) -> None:
    masked = {"correction": 0.2, "reject": 0.1, "m2po": 0.0, "truncated": 0.05}
    metering.Meter(registry, FakeClock()).step(1, learned(TOKENS, masked), TOKENS)
    assert {reason: value(registry, "rljob_masked_token_ratio", reason=reason) for reason in masked} == masked


def test_distances_and_counts_reach_their_series(registry: metrics_module.Metrics) -> None:
    stats = {**TOKENS, Stat.REF_KL: 0.03, Stat.MISMATCH_KL: 0.001, Stat.CLIP_HIGH: 0.25, Stat.GRAD_NORM: 1.5}
    metering.Meter(registry, FakeClock()).step(1, learned(stats), stats)
    assert value(registry, "rljob_kl_reference") == 0.03
    assert value(registry, "rljob_mismatch_kl") == 0.001
    assert value(registry, "rljob_clip_fraction", bound="high") == 0.25
    assert value(registry, "rljob_grad_norm") == 1.5
    assert value(registry, "rljob_tokens_total", kind="trained") == 12.0
    assert value(registry, "rljob_nonfinite_total", what="logprob") == 2.0
    assert value(registry, "rljob_nonfinite_total", what="gradient") == 1.0
    assert value(registry, "rljob_nonfinite_total", what="loss") == 0.0


def test_values_that_are_not_finite_are_shown_from_zero(registry: metrics_module.Metrics) -> None:
    metering.Meter(registry, FakeClock())
    for what in ("loss", "gradient", "logprob"):
        assert value(registry, "rljob_nonfinite_total", what=what) == 0


def test_the_log_says_of_a_statistic_that_a_step_lacks_that_there_is_none(
    registry: metrics_module.Metrics, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO"):
        metering.Meter(registry, FakeClock()).step(3, learned(TOKENS), {**TOKENS, Stat.LOSS: -0.5})
    assert "finished step 3: loss -0.5, grad norm none, entropy none, engine gap none" in caplog.text
    assert "nan" not in caplog.text


def test_a_failed_checkpoint_is_an_increase_from_zero(registry: metrics_module.Metrics) -> None:
    meter = metering.Meter(registry, FakeClock())
    assert value(registry, "rljob_checkpoint_failures_total") == 0
    meter.checkpoint_failed()
    assert value(registry, "rljob_checkpoint_failures_total") == 1


def test_utilisation_and_memory_reach_their_series_and_are_absent_on_a_cpu(registry: metrics_module.Metrics) -> None:
    meter = metering.Meter(registry, FakeClock())
    meter.step(1, learned(TOKENS), TOKENS)
    assert value(registry, "rljob_mfu_ratio") is None
    assert value(registry, "rljob_gpu_memory_bytes", kind="allocated") is None
    stats = {**TOKENS, Stat.MFU: 0.25, Stat.PEAK_GPU_ALLOCATED_BYTES: 5e9, Stat.PEAK_GPU_RESERVED_BYTES: 6e9}
    meter.step(2, learned(stats), stats)
    assert value(registry, "rljob_mfu_ratio") == 0.25
    assert value(registry, "rljob_gpu_memory_bytes", kind="allocated") == 5e9
    assert value(registry, "rljob_gpu_memory_bytes", kind="reserved") == 6e9


def seconds(registry: metrics_module.Metrics, reason: str) -> str:
    """Return what a page read now shows of a wait."""
    name = f'rljob_trainer_wait_seconds_total{{reason="{reason}",rljob="job",rljob_namespace="default"}}'
    shown = [line for line in registry.exposition().decode().splitlines() if line.startswith(name)]
    return shown[0].rpartition(" ")[2] if shown else ""


def test_every_reason_to_wait_is_shown_from_zero(registry: metrics_module.Metrics) -> None:
    metering.Meter(registry, FakeClock())
    assert {reason: seconds(registry, reason) for reason in ("batch", "publish", "checkpoint", "peers")} == {
        "batch": "0.0",
        "publish": "0.0",
        "checkpoint": "0.0",
        "peers": "0.0",
    }


def test_a_wait_that_has_not_ended_is_seen_to_grow_from_page_to_page(registry: metrics_module.Metrics) -> None:
    clock = FakeClock()
    meter = metering.Meter(registry, clock)
    with meter.waiting("batch"):
        clock.tick(30.0)
        assert seconds(registry, "batch") == "30.0"
        clock.tick(12.0)
        assert seconds(registry, "batch") == "42.0"
        clock.tick(1.0)
    clock.tick(100.0)
    assert seconds(registry, "batch") == "43.0", "work is no wait"
    with meter.waiting("publish"):
        clock.tick(5.0)
    assert (seconds(registry, "batch"), seconds(registry, "publish")) == ("43.0", "5.0")


def test_a_wait_that_ends_in_an_error_is_counted_and_over(registry: metrics_module.Metrics) -> None:
    clock = FakeClock()
    meter = metering.Meter(registry, clock)

    def fail_later() -> None:
        with meter.waiting("batch"):
            clock.tick(7.0)
            raise OSError("the coordinator is gone")

    with pytest.raises(OSError, match="gone"):
        fail_later()
    clock.tick(7.0)
    assert seconds(registry, "batch") == "7.0"
