"""Alerts about what becomes of trajectories, provoked: stale ones, and those that infrastructure lost.

The coordinator, the operator and Prometheus are processes; the test plays rollout and trainer over the product's own
clients, so that it decides how many groups come late or not at all. Every duration of the rules is a thirtieth of its
own (`tests/contract/observability/test_scaled_rules.py` holds that nothing else of them changes).
"""

import asyncio
import os
from collections.abc import AsyncIterator, Sequence

import pytest
import pytest_asyncio

from rljob_testing.every_example import EVERY_EXAMPLE
from rljob_testing.played_run import NAME, PROMPTS, SETTINGS, Played, watched
from rljob_testing.provoking import Scene

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

FACTOR = 30.0
# Alerts of at most 30 minutes hold for one here; the rest is for a machine that has other work as well.
FIRED_S, QUIET_S = 300.0, 180.0


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def played(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[Played, Scene]]:
    if not os.environ.get(EVERY_EXAMPLE):
        pytest.skip(f"minutes of alerts were not asked for ({EVERY_EXAMPLE}=1)")
    folder = tmp_path_factory.mktemp("shares")
    async with watched(folder, SETTINGS, factor=FACTOR, spec={}) as (both, scene):
        playing = asyncio.create_task(both.play())
        yield both, scene
        assert not playing.done(), playing.exception()
        playing.cancel()


async def names_of(scene: Scene) -> list[str]:
    return sorted(one["alertname"] for one in await scene.firing())


async def share(scene: Scene, rule: str) -> float:
    (found,) = await scene.query(f'{rule}{{rljob="{NAME}"}}')
    return float(found["value"][1])


async def provoked(scene: Scene, alert: str, rule: str, *, expected: Sequence[str]) -> None:
    """Wait until an alert fires, and see that it is the only one with those expected."""
    fired_s = await scene.until_fires(alert, within_s=FIRED_S)
    print(f"{alert}: fired after {fired_s:.0f} s at a share of {await share(scene, rule):.2f}")
    assert await names_of(scene) == sorted(expected)


@pytest.mark.asyncio(loop_scope="module")
async def test_groups_that_come_too_late_are_told_as_stale_until_they_come_in_time(
    played: tuple[Played, Scene],
) -> None:
    both, scene = played
    both.late = PROMPTS
    try:
        await provoked(scene, "RLJobStaleShareHigh", "rljob:stale:share15m", expected=["RLJobStaleShareHigh"])
    finally:
        both.late = 0
    print(f"quiet after {await scene.until_quiet('RLJobStaleShareHigh', within_s=QUIET_S):.0f} s")


@pytest.mark.asyncio(loop_scope="module")
async def test_groups_that_infrastructure_loses_are_a_warning_and_many_of_them_critical(
    played: tuple[Played, Scene],
) -> None:
    both, scene = played
    rule = "rljob:infra_failure:share15m"
    # One group of nine, then eight of sixteen.
    both.lost = 1
    try:
        await provoked(scene, "RLJobInfraFailureShareHigh", rule, expected=["RLJobInfraFailureShareHigh"])
        both.lost = PROMPTS
        worse = "RLJobInfraFailureShareCritical"
        await provoked(scene, worse, rule, expected=["RLJobInfraFailureShareHigh", worse])

        async def degraded() -> bool:
            return await scene.stage.condition(NAME, "Degraded") == ("True", "InfraFailureShareHigh")

        # Of a window of fifteen minutes that is the coordinator's own, and not scaled.
        await scene.until(degraded, within_s=FIRED_S, what="condition Degraded")
    finally:
        both.lost = 0
    print(f"quiet after {await scene.until_quiet('RLJobInfraFailureShareHigh', within_s=QUIET_S):.0f} s")
    assert set(await names_of(scene)) <= {"RLJobDegraded"}
