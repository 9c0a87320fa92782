"""Who waits for whom. Every stall reason has a run that provokes it where the operator's diagnosis is tested."""

import dataclasses

from hypothesis import given, settings
from hypothesis import strategies as st

from rljob_api import enums, types, waiting


def _wait(role: str, on: str, since: float = 0.0, pod: str = "") -> types.Waiting:
    return types.Waiting(role=role, pod=pod or f"{role}-0", what=f"what {on} does", on_role=on, since=since)


def test_chain_ends_at_the_role_that_waits_for_nobody() -> None:
    found = waiting.chain([_wait("rollout", "verifier", 20), _wait("trainer", "rollout", 10)])
    assert ([link.role for link in found.links], found.culprit, found.is_cycle) == (
        ["trainer", "rollout"],
        "verifier",
        False,
    )
    assert found.message(110) == (
        "trainer-0 waits for what rollout does for 100 s; rollout-0 waits for what verifier does for 90 s"
    )


def test_chain_of_a_run_begins_at_the_trainer_or_at_the_rollouts_where_it_waits_for_nobody() -> None:
    run = types.RunStatus(job="job", phase=enums.Phase.RUNNING)
    both = (_wait("rollout", "verifier"), _wait("trainer", "rollout"))
    assert waiting.chain_of(dataclasses.replace(run, waiting=both)).links[0].role == "trainer"
    assert waiting.chain_of(dataclasses.replace(run, waiting=both[:1])).links[0].role == "rollout"
    assert waiting.chain_of(run).message(0.0) == ""


def test_longest_waiter_speaks_for_its_role() -> None:
    found = waiting.chain(
        [_wait("trainer", "rollout"), _wait("rollout", "trainer", 50, "b"), _wait("rollout", "verifier", 40, "a")]
    )
    assert found.culprit == "verifier"


def test_one_that_waits_for_the_chain_itself_does_not_speak_for_a_role_in_which_another_waits_outside() -> None:
    found = waiting.chain(
        [_wait("trainer", "rollout", 30), _wait("rollout", "trainer", 30, "a"), _wait("rollout", "verifier", 40, "b")]
    )
    assert (found.culprit, found.is_cycle, found.links[-1].pod) == ("verifier", False, "b")


def test_roles_that_wait_for_each_other_are_a_cycle() -> None:
    found = waiting.chain([_wait("trainer", "rollout"), _wait("rollout", "trainer")])
    assert (found.is_cycle, len(found.links)) == (True, 2)


def test_nobody_waiting_leaves_the_trainer_itself() -> None:
    assert waiting.chain([]) == waiting.Chain(links=(), culprit="trainer", is_cycle=False)


ROLES = st.sampled_from(["trainer", "rollout", "verifier", "coordinator", ""])


@settings(deadline=None)
@given(st.lists(st.builds(_wait, ROLES, ROLES, st.floats(0, 1e6)), max_size=12))
def test_any_reports_give_a_chain_that_names_each_role_once(links: list[types.Waiting]) -> None:
    found = waiting.chain(links)
    named = [link.role for link in found.links]
    assert len(named) == len(set(named))
    assert found.is_cycle == (found.culprit in named)


NOW = 100.0
CIRCLE = (_wait("trainer", "rollout", 10), _wait("rollout", "trainer", 20))


def _rollout(pod: str, *, version: int = 7, leases: int = 0) -> types.PodStatus:
    return types.PodStatus(role="rollout", pod=pod, serving_version=version, leases=leases, state="SERVING")


def _found(*pods: types.PodStatus) -> waiting.Diagnosis:
    run = types.RunStatus(
        job="job", phase=enums.Phase.RUNNING, published_version=7, waiting=CIRCLE, pods=pods, last_progress_at=10
    )
    return waiting.diagnose(run, now=NOW)


def test_trainer_and_rollouts_that_wait_for_a_version_which_one_does_not_take_are_no_circle() -> None:
    found = _found(_rollout("rollout-0"), _rollout("rollout-1", version=6))
    assert (found.reason, found.role, found.pod) == ("WeightSyncStuck", "rollout", "rollout-1")


def test_rollout_that_holds_the_groups_and_waits_for_nobody_is_named_and_not_the_one_without_any() -> None:
    found = _found(_rollout("rollout-0"), _rollout("rollout-1", leases=3))
    assert (found.reason, found.role, found.pod) == ("TrainerWaitingForTrajectories", "rollout", "rollout-1")


def test_circle_remains_where_every_rollout_waits_and_serves_the_newest_version() -> None:
    found = _found(_rollout("rollout-0", leases=3))
    assert (found.reason, found.role, found.pod) == ("WaitCycle", "rollout", "rollout-0")
    assert found.message.endswith("rollout-0 waits for what trainer does for 80 s")


def test_a_rollout_at_the_staleness_bound_waits_for_a_trainer_step() -> None:
    link = types.Waiting(role="rollout", pod="r-0", what=enums.WaitReason.STALENESS, on_role="trainer", since=70.0)
    assert waiting.sentence(link, NOW) == "r-0 waits for a trainer step (staleness bound) for 30 s"
