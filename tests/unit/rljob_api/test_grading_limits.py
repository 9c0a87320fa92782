"""Limits by reward type: every row of docs/design/graders.md#s-3-3."""

from collections.abc import Callable

import pytest

from rljob_api import grading, resolve
from rljob_api.manifest.job import RLJob
from rljob_api.manifest.verifier import RewardSpec
from rljob_api.validation import rules

ROWS = [
    ("areal-math", "Compat", {}, 15.0, 45.0),
    ("areal-math", "Strict", {}, 5.0, 15.0),
    ("areal-code", "Strict", {}, 6.0, 200.0),
    ("areal-code", "Compat", {}, 6.0, 200.0),
    ("boxed", "Strict", {}, 1.0, 3.0),
    ("answer_tag", "Compat", {"verifierVersion": "fast"}, 1.0, 3.0),
    ("boxed", "Compat", {"verifierVersion": "math_verify"}, 3.0, 9.0),
    ("answer_tag", "Strict", {"verifierVersion": "math_verify"}, 3.0, 9.0),
    ("gsm8k", "Strict", {"method": "math_verify"}, 5.0, 15.0),
    ("gsm8k", "Strict", {}, 1.0, 3.0),
    ("clevr_count_70k", "Compat", {}, 1.0, 3.0),
    ("math", "Strict", {}, 10.0, 30.0),
    ("repository-tests", "Strict", {}, 10.0, 200.0),
    ("my_module:reward", "Strict", {}, 10.0, 30.0),
]


@pytest.mark.covers("graders 3.3")
@pytest.mark.parametrize(("type_", "mode", "config", "cpu_s", "wall_s"), ROWS)
def test_reward_has_the_limits_of_its_type(
    type_: str, mode: str, config: dict[str, object], cpu_s: float, wall_s: float
) -> None:
    reward = RewardSpec.model_validate({"name": "r", "type": type_, "mode": mode, "config": config})
    assert (grading.cpu_s(reward, None), grading.wall_s(reward, None)) == (cpu_s, wall_s)


@pytest.mark.parametrize(("type_", "wall_s"), [("boxed", 60.0), ("areal-code", 200.0)])
def test_manifest_sets_the_cpu_limit_and_wall_time_follows_where_no_program_runs(type_: str, wall_s: float) -> None:
    reward = RewardSpec(name="r", type=type_)
    assert (grading.cpu_s(reward, 20), grading.wall_s(reward, 20)) == (20.0, wall_s)


PROGRAMS = {"verifier.rewards": [{"name": "r", "type": "areal-code"}]}
UNCONFINED = {"verifier.isolation": {"type": "None"}, "verifier.allowUnsafe": True}


@pytest.mark.covers("graders 3.3")
def test_program_has_512_mib_and_64_kib_unless_the_manifest_says_otherwise(make_job: Callable[..., RLJob]) -> None:
    for changes, limits in (
        ({}, (512 << 20, 64 << 10)),
        ({"verifier.memory": "1Gi", "verifier.outputLimit": "1Mi"}, (1 << 30, 1 << 20)),
    ):
        job = make_job({**PROGRAMS, **UNCONFINED, **changes})
        placement = resolve.local_placement(
            job, uid="u", run_dir="/r", base_dir="/manifest", cache_dir="/c", ports=range(20), num_cores=2
        )
        (reward,) = resolve.resolve(job, placement).verifiers[0].rewards
        assert (reward.memory_bytes, reward.output_bytes) == limits


def test_programs_are_served_confined_and_by_name_unconfined(make_job: Callable[..., RLJob]) -> None:
    assert rules.problems(make_job(PROGRAMS).spec) == []
    assert rules.problems(make_job({**PROGRAMS, **UNCONFINED}).spec) == []
