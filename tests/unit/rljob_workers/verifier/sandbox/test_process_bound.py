"""The count behind each answer to a request for a process: never less than there are, whatever is seen and when."""

import random

import pytest

from rljob_workers.verifier.sandbox.requests.fork_gate import ProcessBound, Room


def granted(bound: ProcessBound, *tasks: int) -> ProcessBound:
    for task in tasks:
        bound.granted(task)
    return bound


def test_program_begins_with_one_task_and_has_room_for_the_others() -> None:
    bound = ProcessBound(3)
    assert bound.room is Room.FREE
    assert granted(bound, 1).room is Room.FREE
    assert granted(bound, 1).room is not Room.FREE


def test_bound_of_one_has_no_room_at_all() -> None:
    assert ProcessBound(1).room is Room.NONE


def test_bound_below_the_programs_own_task_is_refused() -> None:
    with pytest.raises(ValueError, match="most is 0, but a program has at least 1 task"):
        ProcessBound(0)


def test_there_is_no_room_where_all_that_may_be_were_seen() -> None:
    bound = granted(ProcessBound(3), 1, 1)
    bound.looked(num_seen=3, pending=())
    assert bound.room is Room.NONE


def test_tasks_that_ended_make_room() -> None:
    bound = granted(ProcessBound(3), 1, 1)
    bound.looked(num_seen=2, pending=())
    assert bound.room is Room.FREE
    assert granted(bound, 1).room is not Room.FREE


def test_task_that_may_not_have_made_its_own_yet_holds_the_place_and_nothing_is_decided() -> None:
    bound = granted(ProcessBound(3), 1, 2)
    bound.looked(num_seen=2, pending={2})
    assert (bound.room, bound.pending) == (Room.UNCLEAR, {2})
    bound.looked(num_seen=3, pending={2})
    assert bound.room is Room.NONE


def test_task_that_is_done_is_not_asked_about_again() -> None:
    bound = granted(ProcessBound(4), 1, 2)
    bound.looked(num_seen=3, pending={2})
    bound.looked(num_seen=3, pending={1, 2})
    assert bound.pending == {2}


@pytest.mark.parametrize("seed", range(20))
def test_there_are_never_more_than_may_be_however_late_they_start_and_whoever_ends(seed: int) -> None:
    chance, most = random.Random(seed), 8
    bound, alive, starting, newest, num_full = ProcessBound(most), {0}, set[int](), 0, 0
    for _ in range(5_000):
        match chance.choice(("ask", "ask", "start", "end")):
            case "ask" if idle := sorted(alive - starting):
                if bound.room is not Room.FREE:
                    # Busy tasks look as those do that have not made theirs yet.
                    busy = {task for task in alive if chance.random() < 0.1}
                    bound.looked(num_seen=len(alive), pending=starting | busy)
                if bound.room is Room.FREE:
                    task = chance.choice(idle)
                    bound.granted(task)
                    starting.add(task)
                num_full += bound.room is Room.NONE
            case "start" if starting:
                starting.remove(chance.choice(sorted(starting)))
                newest += 1
                alive.add(newest)
            case "end" if len(alive) > 1 and chance.random() < 0.7:
                task = chance.choice(sorted(alive))
                alive.remove(task)
                starting.discard(task)
        assert len(alive) + len(starting) <= most
    assert newest > most, "tasks that ended made room for others"
    assert num_full > 0, "the bound was met"
