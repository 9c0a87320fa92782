"""Stalls of a run whose groups come to nothing, or whose rollout does not come on, provoked.

The coordinator, the operator and Prometheus are processes; the test plays rollout and trainer over the product's own
clients. The condition, the alert and `rljob why` are to name the same reason and role.
"""

import asyncio
import dataclasses
import json
import os
import pathlib
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
import pytest_asyncio

from rljob_testing.every_example import EVERY_EXAMPLE
from rljob_testing.played_run import NAME, SETTINGS, Played, watched
from rljob_testing.provoking import Scene
from rljob_testing.runs import RLJOB

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

FACTOR, STALL_S = 10.0, 30
# On a machine that has other work as well.
NAMED_S, QUIET_S = STALL_S + 120.0, 180.0
FILTERING = ("spec.data.filterGroups.enabled=true", "spec.data.filterGroups.maxExtraGroups=3")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Stall:
    """reason and role that are to be reported; act: what the played rollout does instead of its work."""

    reason: str
    role: str
    act: Callable[[Played], Awaitable[object]]


STALLS = (
    Stall(reason="AllGroupsFiltered", role="coordinator", act=Played.submit_alike),
    Stall(reason="VerifierFailing", role="verifier", act=Played.lose_one),
    Stall(reason="WeightSyncStuck", role="rollout", act=Played.apply),
)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def played(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[Played, Scene, pathlib.Path]]:
    if not os.environ.get(EVERY_EXAMPLE):
        pytest.skip(f"minutes of stalls were not asked for ({EVERY_EXAMPLE}=1)")
    folder = tmp_path_factory.mktemp("stalls")
    spec = {"failurePolicy__stall__timeoutSeconds": STALL_S}
    async with watched(folder, (*SETTINGS, *FILTERING), factor=FACTOR, spec=spec) as (both, scene):
        yield both, scene, folder / "run"


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("stall", STALLS, ids=lambda stall: stall.reason)
async def test_work_that_comes_to_nothing_is_told_as_a_stall_with_its_culprit_and_ends_with_its_cause(
    played: tuple[Played, Scene, pathlib.Path], stall: Stall
) -> None:
    both, scene, folder = played
    ended = asyncio.Event()
    standing = asyncio.create_task(both.stand_still(lambda: stall.act(both), ended))
    try:
        fired_s = await scene.until_fires("RLJobStalled", within_s=NAMED_S, reason=stall.reason, role=stall.role)
        assert await scene.stage.condition(NAME, "Stalled") == ("True", stall.reason)
        told = await asyncio.to_thread(why, folder)
        assert (told["reason"], told["role"]) == (stall.reason, stall.role)
    finally:
        ended.set()
        await standing
    await both.round()
    quiet_s = await scene.until_quiet("RLJobStalled", within_s=QUIET_S)
    print(f"{stall.reason}: fired after {fired_s:.0f} s, quiet {quiet_s:.0f} s after its cause; {told['message']}")


def why(folder: pathlib.Path) -> dict[str, str]:
    """Return the diagnosis of `rljob why`."""
    command = [RLJOB, "why", NAME, "--run-dir", str(folder), "-o", "json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return dict(json.loads(done.stdout)["diagnosis"])
