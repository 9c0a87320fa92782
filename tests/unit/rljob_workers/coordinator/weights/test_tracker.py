import pytest

from rljob_api import enums, types
from rljob_workers.coordinator.weights import tracker
from rljob_workers.weights import pieces

NUM_PIECES = 32
ALL = pieces.full(NUM_PIECES)


class Fleet:
    """Rollouts `r0`, `r1`, ... that serve on hosts of their names."""

    def __init__(self, num_rollouts: int) -> None:
        self.tracker, self.now = tracker.Tracker(store_address="store:1"), 100.0
        self.names = [f"r{number}" for number in range(num_rollouts)]
        self.beat()

    def beat(self, *names: str, whole: tuple[str, ...] = ()) -> None:
        for name in names or self.names:
            offer = types.WeightOffer(address=f"{name}:1", artifact_ids=whole)
            self.tracker.offers(name, offer, now=self.now)

    def ask(
        self, name: str, have: int = 0, *failed: str, artifact: str = "a", is_stored: bool = True
    ) -> types.PieceSources:
        return self.tracker.ask(
            name, artifact_id=artifact, num_pieces=NUM_PIECES, have=have, failed=failed, now=self.now,
            is_stored=is_stored,
        )  # fmt: skip

    def has_source(self, name: str) -> bool:
        return self.tracker.has_source(name, "a", now=self.now)


def share(answer: types.PieceSources) -> int:
    return int.from_bytes(answer.share, "little")


def peers(answer: types.PieceSources) -> dict[str, int]:
    return {
        source.address: int.from_bytes(source.have, "little")
        for source in answer.sources
        if source.kind is enums.SourceKind.PEER
    }


@pytest.fixture
def fleet() -> Fleet:
    return Fleet(4)


def test_the_store_is_always_among_the_sources(fleet: Fleet) -> None:
    assert fleet.ask("r0").sources[0] == types.WeightSource(address="store:1", kind=enums.SourceKind.STORE)


def test_one_rollout_takes_all_from_the_store_and_asks_seldom() -> None:
    answer = Fleet(1).ask("r0")
    assert (share(answer), answer.again_s) == (ALL, 5.0)


def test_who_asks_before_its_heartbeat_is_not_taken_for_the_only_one() -> None:
    """As after a restart of the coordinator: all would be sent everything."""
    fleet = Fleet(0)
    answers = [fleet.ask("r0"), fleet.ask("r1")]
    assert [answer.again_s for answer in answers] == [0.1, 0.1]
    assert all(share(answer).bit_count() == 2 for answer in answers)
    fleet.beat("r0")
    assert share(fleet.ask("r0")).bit_count() == 2


def test_shares_of_the_store_do_not_overlap(fleet: Fleet) -> None:
    shares = [share(fleet.ask(name)) for name in fleet.names]
    assert [one.bit_count() for one in shares] == [2] * 4
    assert sum(shares).bit_count() == 8


def test_what_a_receiver_has_is_named_to_those_that_lack_it(fleet: Fleet) -> None:
    fleet.ask("r0", have=0b111)
    assert peers(fleet.ask("r1", have=0b1)) == {"r0:1": 0b110}


def test_a_rollout_that_holds_an_artifact_whole_says_so_in_its_heartbeat_alone(fleet: Fleet) -> None:
    """As after a restart of the coordinator."""
    fleet.beat("r0", whole=("a",))
    answer = fleet.ask("r1")
    assert (peers(answer), share(answer)) == ({"r0:1": ALL}, 0)
    assert peers(fleet.ask("r1", artifact="b")) == {}


def test_a_source_that_failed_a_receiver_is_not_named_to_it_for_a_while_and_is_to_others(fleet: Fleet) -> None:
    fleet.beat("r0", whole=("a",))
    assert peers(fleet.ask("r1", 0, "r0:1")) == {}
    assert peers(fleet.ask("r2")) == {"r0:1": ALL}
    fleet.now += tracker.LEFT_OUT_S + 1
    fleet.beat(whole=("a",))
    assert "r0:1" in peers(fleet.ask("r1"))


def test_a_source_that_failed_two_receivers_is_named_to_no_one(fleet: Fleet) -> None:
    fleet.beat("r0", whole=("a",))
    fleet.ask("r1", 0, "r0:1")
    fleet.ask("r2", 0, "r0:1")
    assert peers(fleet.ask("r3")) == {}


def test_failures_of_who_is_no_rollout_are_not_noted(fleet: Fleet) -> None:
    """So that what is remembered of them is bounded by the number of rollouts."""
    fleet.ask("r1", 0, "new:1")
    fleet.beat("new", whole=("a",))
    assert peers(fleet.ask("r1")) == {"new:1": ALL}


def test_what_a_rollout_has_fetched_whole_and_no_longer_holds_is_forgotten_with_its_next_heartbeat(
    fleet: Fleet,
) -> None:
    fleet.ask("r0", have=ALL)
    fleet.beat("r0", whole=("a",))
    assert peers(fleet.ask("r1")) == {"r0:1": ALL}
    fleet.beat("r0", whole=("b",))
    assert peers(fleet.ask("r1")) == {}
    assert share(fleet.ask("r1"))


def test_what_a_rollout_is_fetching_is_known_through_its_heartbeats(fleet: Fleet) -> None:
    fleet.ask("r0", have=0b111)
    fleet.beat("r0")
    assert peers(fleet.ask("r1")) == {"r0:1": 0b111}


def test_what_a_rollout_was_given_that_failed_someone_is_not_waited_for(fleet: Fleet) -> None:
    given = share(fleet.ask("r0"))
    assert not share(fleet.ask("r1")) & given
    assert share(fleet.ask("r2", 0, "r0:1")) & given


def test_what_a_rollout_was_given_that_no_longer_asks_is_not_waited_for(fleet: Fleet) -> None:
    given = share(fleet.ask("r0"))
    fleet.now += 1.9
    assert not share(fleet.ask("r1")) & given
    fleet.now += 0.2
    assert share(fleet.ask("r2")) & given


def test_where_many_ask_seldom_what_they_were_given_is_waited_for_all_the_same() -> None:
    fleet = Fleet(500)
    given = fleet.ask("r0")
    fleet.now += 2 * given.again_s
    assert given.again_s > 2.0
    assert not share(fleet.ask("r1")) & share(given)


def test_a_rollout_that_is_silent_is_named_to_no_one_and_its_share_goes_to_others(fleet: Fleet) -> None:
    fleet.beat("r0", whole=("b",))
    gone = share(fleet.ask("r0"))
    fleet.now += tracker.SILENT_S + 1
    fleet.beat("r1", "r2")
    assert peers(fleet.ask("r1", artifact="b")) == {}
    assert share(fleet.ask("r1")) & gone


def test_a_source_that_is_named_to_many_gives_way_to_one_that_is_not() -> None:
    fleet = Fleet(20)
    for name in fleet.names[:10]:
        fleet.beat(name, whole=("a",))
    named = [set(peers(fleet.ask(name))) for name in fleet.names[10:]]
    assert all(len(one) == 8 for one in named)
    assert set.union(*named) == {f"{name}:1" for name in fleet.names[:10]}
    most = max(sum(address in one for one in named) for address in set.union(*named))
    assert most <= 8


def test_many_receivers_together_ask_two_hundred_times_a_second() -> None:
    assert Fleet(64).ask("r0").again_s == pytest.approx(64 / 200)
    assert Fleet(4).ask("r0").again_s == pytest.approx(0.1)


def test_an_image_that_is_not_stored_is_asked_of_rollouts_alone(fleet: Fleet) -> None:
    fleet.beat("r0", whole=("a",))
    answer = fleet.ask("r1", is_stored=False)
    assert (peers(answer), share(answer), len(answer.sources)) == ({"r0:1": ALL}, 0, 1)
    fleet.beat("r0")
    assert fleet.ask("r1", is_stored=False).sources == ()


def test_a_whole_artifact_has_a_source_while_a_rollout_says_that_it_holds_it_and_did_not_fail(fleet: Fleet) -> None:
    assert not fleet.has_source("r1")
    fleet.beat("r0", whole=("a",))
    assert fleet.has_source("r1")
    fleet.ask("r1", 0, "r0:1")
    assert not fleet.has_source("r1")
    assert fleet.has_source("r2")
    fleet.now += tracker.SILENT_S + 0.1
    assert not fleet.has_source("r2")


def test_a_rollout_that_starts_again_is_not_sent_to_what_it_held_before(fleet: Fleet) -> None:
    fleet.beat("r0", whole=("a",))
    fleet.tracker.offers("r0 again", types.WeightOffer(address="r0:1"), now=fleet.now)
    assert not fleet.has_source("r0 again")
    assert peers(fleet.ask("r1")) == {}
