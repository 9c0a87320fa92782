import dataclasses
import random

import hypothesis
from hypothesis import strategies

from rljob_workers.coordinator.policy import piece_plan
from rljob_workers.coordinator.policy.piece_plan import Grant, Receiver
from rljob_workers.weights import pieces

NUM_PIECES = 64
ALL = pieces.full(NUM_PIECES)


def receiver(token: str, have: int = 0, *, granted: int = 0, at: float = 0.0, serves: bool = True) -> Receiver:
    grants = (Grant(pieces=granted, at=at),) if granted else ()
    return Receiver(token=token, have=have, granted=grants, serves=serves)


def plan(asker: Receiver, *others: Receiver, num_pieces: int = NUM_PIECES, now: float = 0.0) -> piece_plan.Plan:
    return piece_plan.plan(asker, others, num_pieces=num_pieces, num_rollouts=1 + len(others), now=now)


def test_a_receiver_alone_takes_everything_from_the_store() -> None:
    assert plan(receiver("a")) == piece_plan.Plan(share=ALL, sources=())
    assert plan(receiver("a", have=0b1)).share == ALL & ~0b1


def test_the_first_who_ask_get_different_pieces_of_the_store() -> None:
    first = plan(receiver("a"), receiver("b")).share
    second = plan(receiver("b"), receiver("a", granted=first)).share
    assert first.bit_count() == second.bit_count() == 4
    assert not first & second


def test_a_receiver_keeps_what_it_was_given_until_it_has_it_and_then_gets_more() -> None:
    first = plan(receiver("a"), receiver("b")).share
    assert plan(receiver("a", granted=first), receiver("b")).share == first
    later = plan(receiver("a", have=first, granted=first), receiver("b")).share
    assert later
    assert not later & first


def test_what_a_rollout_has_is_never_asked_of_the_store() -> None:
    late = plan(receiver("late"), receiver("a", have=ALL), receiver("b", have=0b1))
    assert late == piece_plan.Plan(share=0, sources=("a", "b"))


def test_what_only_a_rollout_has_that_serves_no_one_is_asked_of_the_store() -> None:
    found = plan(receiver("late"), receiver("a", have=ALL, serves=False))
    assert (found.share.bit_count(), found.sources) == (4, ())


def test_what_was_given_to_a_rollout_that_serves_no_one_is_not_waited_for() -> None:
    found = plan(receiver("b"), receiver("a", granted=ALL, serves=False))
    assert found.share == pieces.full(4)


def test_who_has_nothing_else_to_fetch_takes_what_another_one_is_late_with() -> None:
    slow = receiver("a", granted=ALL, at=0.0)
    assert plan(receiver("b"), slow, now=piece_plan.LATE_S).share == 0
    assert plan(receiver("b"), slow, now=piece_plan.LATE_S + 1).share == 0b1
    busy = plan(receiver("b"), slow, receiver("c", have=0b1000), now=piece_plan.LATE_S + 1)
    assert (busy.share, busy.sources) == (0, ("c",))


def test_so_few_pieces_are_not_waited_for() -> None:
    assert plan(receiver("b"), receiver("a", granted=0b11), num_pieces=2).share == 0b11
    assert plan(receiver("b"), receiver("a", have=0b01), num_pieces=2) == piece_plan.Plan(share=0b10, sources=("a",))


def test_rollouts_that_are_named_to_few_come_first_and_of_those_the_ones_that_have_the_most() -> None:
    others = [dataclasses.replace(receiver(f"r{number:02}", have=ALL), named=number) for number in range(20)]
    most, least = receiver("most", have=0b111), receiver("least", have=0b1)
    found = plan(receiver("a"), *others, least, most).sources
    assert found == ("r00", "most", "least", "r01", "r02", "r03", "r04", "r05")


@hypothesis.settings(max_examples=60, deadline=None)
@hypothesis.given(
    num_receivers=strategies.integers(2, 8),
    num_pieces=strategies.integers(3, 200),
    seed=strategies.integers(0, 2**32),
    deaths=strategies.integers(0, 2),
)
def test_every_piece_arrives_everywhere_and_the_store_sends_each_about_once(
    num_receivers: int, num_pieces: int, seed: int, deaths: int
) -> None:
    """Receivers of random speeds ask in random order and take a few pieces a turn; some die with what they have."""
    rng, whole = random.Random(seed), pieces.full(num_pieces)
    have = {f"r{number}": 0 for number in range(num_receivers)}
    speed = {token: rng.randint(1, 9) for token in have}
    granted: dict[str, tuple[Grant, ...]] = dict.fromkeys(have, ())
    sent, now, lost = 0, 0.0, 0
    while any(found != whole for found in have.values()):
        now += 0.01
        assert now < 300.0
        token = rng.choice([token for token, found in have.items() if found != whole])
        others = [receiver(other, have[other]) for other in have if other != token]
        others = [dataclasses.replace(other, granted=granted[other.token]) for other in others]
        me = Receiver(token=token, have=have[token], granted=granted[token], serves=True)
        found = piece_plan.plan(me, others, num_pieces=num_pieces, num_rollouts=len(have), now=now)
        granted[token] = (Grant(pieces=found.share, at=now),)
        from_store = pieces.lowest(found.share, speed[token])
        sent += from_store.bit_count()
        from_peers = 0
        for source in found.sources:
            from_peers |= pieces.lowest(have[source] & ~have[token], speed[token])
        have[token] |= from_store | from_peers
        if deaths and len(have) > 2 and rng.random() < 0.01:
            deaths -= 1
            dead = rng.choice(sorted(have))
            lost += have.pop(dead).bit_count()
            granted.pop(dead)
    assert sent <= num_pieces + lost
