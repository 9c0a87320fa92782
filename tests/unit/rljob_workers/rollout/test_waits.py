import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_api.enums import WaitReason
from rljob_testing.clock import FakeClock
from rljob_workers.rollout import wait_accounting


def accounts(num_slots: int = 4) -> tuple[wait_accounting.SlotWaits, FakeClock]:
    clock = FakeClock()
    return wait_accounting.SlotWaits(num_slots=num_slots, clock=clock), clock


def test_empty_slots_wait_for_what_the_lease_call_named() -> None:
    slots, clock = accounts()
    slots.idle_because(WaitReason.STALENESS)
    clock.tick(10.0)
    assert slots.totals()[WaitReason.STALENESS] == 10.0


def test_wait_is_slot_seconds_divided_by_slots() -> None:
    slots, clock = accounts(num_slots=4)
    slots.idle_because(WaitReason.NO_PROMPTS)
    slots.open_slot().works()
    verifying = slots.open_slot()
    verifying.waits(WaitReason.VERIFIER)
    clock.tick(8.0)
    # 2 of 4 slots empty, 1 of 4 at the verifier, 1 of 4 generating.
    assert slots.totals()[WaitReason.NO_PROMPTS] == 4.0
    assert slots.totals()[WaitReason.VERIFIER] == 2.0
    assert slots.generating_s == 8.0


def test_a_pause_makes_generating_slots_wait_for_weights_and_no_others() -> None:
    slots, clock = accounts(num_slots=2)
    slots.idle_because(WaitReason.STALENESS)
    slots.open_slot().works()
    slots.paused(True)
    clock.tick(3.0)
    slots.paused(False)
    clock.tick(5.0)
    assert slots.totals()[WaitReason.WEIGHTS] == 1.5
    assert slots.totals()[WaitReason.STALENESS] == 4.0
    assert (slots.paused_s, slots.generating_s) == (3.0, 5.0)


def test_waiting_for_names_the_most_common_reason_since_generation_stopped() -> None:
    slots, clock = accounts(num_slots=2)
    slot = slots.open_slot()
    slot.works()
    clock.tick(5.0)
    assert slots.waiting() == (None, 5.0)
    slot.close()
    slots.idle_because(WaitReason.STALENESS)
    clock.tick(7.0)
    assert slots.waiting() == (WaitReason.STALENESS, 7.0)


def test_worker_waits_for_what_its_groups_wait_for_however_many_slots_are_empty() -> None:
    slots, clock = accounts(num_slots=64)
    slots.idle_because(WaitReason.STALENESS)
    slot = slots.open_slot()
    slot.works()
    slot.waits(WaitReason.VERIFIER)
    clock.tick(6.0)
    assert slots.waiting() == (WaitReason.VERIFIER, 6.0)
    assert slots.totals()[WaitReason.STALENESS] == pytest.approx(6.0 * 63 / 64), "the accounts count every slot"
    slot.close()
    clock.tick(2.0)
    assert slots.waiting() == (WaitReason.STALENESS, 2.0)


def test_a_closed_slot_is_not_counted_again() -> None:
    slots, clock = accounts(num_slots=1)
    slot = slots.open_slot()
    slot.close()
    slot.works()
    slots.idle_because(WaitReason.NO_PROMPTS)
    clock.tick(2.0)
    assert slots.generating_s == 0.0
    assert slots.totals()[WaitReason.NO_PROMPTS] == 2.0


MOVES = st.tuples(
    st.sampled_from(["open", "works", "verifier", "close", "pause", "resume", "idle"]),
    st.integers(0, 3),
    st.floats(0, 10, allow_nan=False),
)


@given(st.lists(MOVES, max_size=40))
def test_all_slot_seconds_are_either_waited_or_generated(moves: list[tuple[str, int, float]]) -> None:
    slots, clock = accounts(num_slots=4)
    opened: list[wait_accounting.Slot] = []
    generated = 0.0
    for what, which, seconds in moves:
        if what == "open" and len(opened) < 4:
            opened.append(slots.open_slot())
        elif what == "close" and opened:
            opened.pop(which % len(opened)).close()
        elif what == "works" and opened:
            opened[which % len(opened)].works()
        elif what == "verifier" and opened:
            opened[which % len(opened)].waits(WaitReason.VERIFIER)
        elif what in ("pause", "resume"):
            slots.paused(what == "pause")
        elif what == "idle":
            slots.idle_because(list(WaitReason)[which])
        working = 0 if slots.is_paused else sum(slot.state is None for slot in opened)
        generated += seconds * working / 4
        clock.tick(seconds)
    assert sum(slots.totals().values()) + generated == pytest.approx(clock.monotonic())


@pytest.mark.parametrize("between", [WaitReason.AGENTS, WaitReason.ENVIRONMENT])
def test_a_group_waits_for_what_takes_turns_with_its_generations(between: WaitReason) -> None:
    slots, clock = accounts(num_slots=1)
    times = wait_accounting.GroupTimes(clock=clock, slot=slots.open_slot(), between=between)
    clock.tick(3.0)
    assert slots.waiting() == (between, 3.0)
    with times.generating():
        clock.tick(2.0)
        assert slots.waiting() == (None, 2.0)
    clock.tick(4.0)
    with times.verifying():
        clock.tick(1.0)
    clock.tick(1.0)
    assert slots.totals()[between] == 8.0
    assert slots.totals()[WaitReason.VERIFIER] == 1.0


def test_a_group_that_nothing_takes_turns_with_waits_for_nobody_between() -> None:
    slots, clock = accounts(num_slots=1)
    times = wait_accounting.GroupTimes(clock=clock, slot=slots.open_slot())
    with times.generating():
        pass
    clock.tick(3.0)
    assert slots.totals()[WaitReason.AGENTS] == 0.0
