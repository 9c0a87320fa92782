"""What a running coordinator takes over of a changed config, what it leaves, and what it then acknowledges."""

from collections.abc import Callable, Mapping

import pytest

from rljob_api import process_config
from rljob_api.manifest.data import CurriculumSpec
from rljob_api.manifest.rollout import AsyncSpec
from rljob_testing.sections import changed, section
from rljob_workers.coordinator.policy import live_changes

MakeConfig = Callable[..., process_config.CoordinatorConfig]


def edited(config: process_config.CoordinatorConfig, changes: Mapping[str, object]) -> process_config.CoordinatorConfig:
    """Return the config of the next generation, with values at dotted paths replaced."""
    job = config.job.model_copy(update={"config_generation": config.job.config_generation + 1})
    own = {path: value for path, value in changes.items() if not path.startswith("spec.")}
    spec = changed(config.spec, {path[5:]: value for path, value in changes.items() if path.startswith("spec.")})
    return config.model_copy(update={"job": job, "spec": spec, **own})


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("spec.maxSteps", 20),
        ("spec.async.maxOffPolicySteps", 4),
        ("spec.async.maxOffPolicySteps", 0),
        ("spec.evaluation.everySteps", 7),
        ("spec.failurePolicy.maxInfraAttemptsPerPrompt", 9),
        ("spec.failurePolicy.minGroupFraction", 0.5),
        ("spec.rollout.replicas", 3),
        ("spec.observability.logLevel", "Debug"),
    ],
)
def test_a_field_that_is_editable_at_any_time_is_taken_over_and_acknowledged(
    make_config: MakeConfig, path: str, value: object
) -> None:
    new = edited(make_config(), {path: value})
    found = live_changes.live_changes(make_config(), new)
    assert found.config == new
    assert (found.ignored, found.refused) == ((), ())
    assert [sentence.split()[0] for sentence in found.taken] == [path]


def test_what_was_taken_over_is_told_with_the_old_and_the_new_value(make_config: MakeConfig) -> None:
    new = edited(make_config(), {"spec.maxSteps": 20})
    found = live_changes.live_changes(make_config(max_steps=10), new)
    assert found.taken == ("spec.maxSteps 10 to 20",)


def test_a_new_generation_without_a_difference_is_acknowledged_and_nothing_is_told(make_config: MakeConfig) -> None:
    found = live_changes.live_changes(make_config(), edited(make_config(), {}))
    assert found.config.job.config_generation == 2
    assert (found.taken, found.ignored, found.refused) == ((), (), ())


@pytest.mark.parametrize(
    "path", ["spec.seed", "spec.algorithm.groupSize", "spec.evaluation.beforeTraining", "state_dir"]
)
def test_any_other_difference_is_named_and_left_and_its_generation_not_acknowledged(
    make_config: MakeConfig, path: str
) -> None:
    values: dict[str, object] = {
        "spec.seed": 8, "spec.algorithm.groupSize": 4, "spec.evaluation.beforeTraining": False,
        "state_dir": "/elsewhere",
    }  # fmt: skip
    found = live_changes.live_changes(make_config(), edited(make_config(), {path: values[path]}))
    assert found.config == make_config()
    assert found.ignored == (path,)


def test_fields_that_may_change_are_taken_over_beside_one_that_may_not(make_config: MakeConfig) -> None:
    found = live_changes.live_changes(make_config(), edited(make_config(), {"spec.seed": 8, "spec.maxSteps": 20}))
    assert (found.config.spec.max_steps, found.config.spec.seed) == (20, 7)
    assert (found.ignored, found.config.job.config_generation) == (("spec.seed",), 1)


def test_a_lower_end_is_refused_with_both_numbers_and_its_generation_not_acknowledged(make_config: MakeConfig) -> None:
    new = edited(make_config(), {"spec.maxSteps": 5, "spec.evaluation.everySteps": 7})
    found = live_changes.live_changes(make_config(max_steps=10), new)
    (sentence,) = found.refused
    assert "spec.maxSteps is 5" in sentence
    assert "10" in sentence
    assert (found.config.spec.max_steps, found.config.spec.evaluation.every_steps) == (10, 7)
    assert (found.ignored, found.config.job.config_generation) == ((), 1)


def test_what_follows_from_the_staleness_bound_moves_with_it(make_config: MakeConfig) -> None:
    moved = section(AsyncSpec, max_off_policy_steps=3, max_inflight_groups=8, in_flight_weight_updates=False)
    new = edited(make_config(), {"spec.async": moved})
    assert live_changes.live_changes(make_config(), new).config.spec.async_ == moved


def test_what_follows_from_the_staleness_bound_does_not_move_alone(make_config: MakeConfig) -> None:
    found = live_changes.live_changes(make_config(), edited(make_config(), {"spec.async.maxInflightGroups": 2}))
    assert found.ignored == ("spec.async.maxInflightGroups",)
    assert found.config.spec.async_ == make_config().spec.async_


def test_the_name_of_the_pod_is_no_difference_because_the_file_does_not_know_it(make_config: MakeConfig) -> None:
    found = live_changes.live_changes(make_config(), edited(make_config(), {"pod": "coordinator"}))
    assert (found.ignored, found.config.pod, found.config.job.config_generation) == ((), "coordinator-0", 2)


def test_a_section_that_was_not_there_is_named(make_config: MakeConfig) -> None:
    curriculum = section(CurriculumSpec, filter_threshold=0.9, max_filter_percentage=0.5)
    found = live_changes.live_changes(make_config(), edited(make_config(), {"spec.data.curriculum": curriculum}))
    below = "spec.data.curriculum"
    assert found.ignored == (f"{below}.filterThreshold", f"{below}.maxFilterPercentage")
