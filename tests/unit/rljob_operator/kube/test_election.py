"""Two candidates for a Lease, and what a fence lets through while it is led."""

import asyncio
import math
from typing import cast

from rljob_operator.kube.client import Client
from rljob_operator.kube.election import Election
from rljob_operator.kube.fence import ClosedFenceError, Fence, open_fence
from rljob_operator.settings import LeaderElection
from rljob_testing.clock import FakeClock
from rljob_testing.fake_client import FakeClient

TERMS = LeaderElection(enabled=True, namespace="system")
LEASE = ("Lease", "rljob-operator-shard-0")


class Candidate:
    """An election on a fake client, which takes turns when a test says so."""

    def __init__(self, client: FakeClient, clock: FakeClock, identity: str, terms: LeaderElection = TERMS) -> None:
        self.fence, self.is_ready = Fence(shards=terms.shards, monotonic=clock.monotonic), True
        self.news: list[str] = []
        self._election = Election(
            cast(Client, client), self.fence, terms, identity=identity, clock=clock, is_ready=lambda: self.is_ready,
            on_gained=lambda shard: self.news.append(f"gained {shard}"),
            on_lost=lambda shard: self.news.append(f"lost {shard}"),
        )  # fmt: skip

    def turn(self, shard: int = 0) -> float:
        return asyncio.run(self._election.turn(shard))

    def give_back(self) -> None:
        asyncio.run(self._election.give_back())

    @property
    def leads(self) -> bool:
        return self.fence.leads(0)


class Pair:
    """Candidates a and b for one Lease."""

    def __init__(self) -> None:
        self.client, self.clock = FakeClient(), FakeClock()
        self.a, self.b = (Candidate(self.client, self.clock, name) for name in "ab")

    @property
    def holder(self) -> str:
        return str(self.client.objects[LEASE]["spec"].get("holderIdentity", ""))


def test_the_first_candidate_leads_and_the_second_waits() -> None:
    pair = Pair()
    pair.a.turn()
    assert pair.b.turn() == TERMS.retry_seconds
    assert (pair.a.leads, pair.b.leads, pair.holder) == (True, False, "a")
    assert (pair.a.news, pair.b.news) == (["gained 0"], [])


def test_a_leader_keeps_its_lead_by_one_request_at_each_retry() -> None:
    pair = Pair()
    pair.a.turn()
    before = len(pair.client.requests)
    for _ in range(10):
        pair.clock.tick(pair.a.turn())
        assert pair.a.leads
    assert pair.client.requests[before:] == ["write Lease rljob-operator-shard-0"] * 10


def test_a_leader_that_is_gone_is_followed_after_its_lease_and_one_retry_at_most() -> None:
    pair = Pair()
    pair.a.turn()
    wait_s = pair.b.turn()
    # It was renewed a moment before the leader was gone, and that is seen at the next look only.
    pair.a.turn()
    gone_at = pair.clock.monotonic()
    while not pair.b.leads:
        pair.clock.tick(wait_s)
        wait_s = pair.b.turn()
        assert not (pair.a.leads and pair.b.leads)
    assert pair.clock.monotonic() - gone_at == TERMS.lease_seconds + TERMS.retry_seconds


def test_a_leader_that_was_stopped_for_longer_than_its_lease_writes_nothing_and_learns_who_leads() -> None:
    pair = Pair()
    pair.a.turn()
    pair.b.turn()
    pair.clock.tick(TERMS.lease_seconds)
    pair.b.turn()
    assert pair.b.leads
    assert not pair.a.leads, "by its own clock, before it asks anyone"
    pair.a.turn()
    assert (pair.holder, pair.a.news) == ("b", ["gained 0", "lost 0"])
    assert not pair.a.leads


def test_a_leader_that_cannot_renew_stops_before_another_may_take_over() -> None:
    pair = Pair()
    pair.a.turn()
    pair.client.fail["write Lease rljob-operator-shard-0"] = 0
    pair.clock.tick(2.0)
    waits = pair.a.turn()
    assert pair.a.leads
    assert waits == TERMS.retry_seconds
    pair.clock.tick(TERMS.renew_seconds - 2.0)
    pair.a.turn()
    assert pair.a.news == ["gained 0", "lost 0"]
    pair.client.fail.clear()
    pair.a.turn()
    assert pair.a.news[-1] == "gained 0", "no one took it meanwhile"


def test_a_lease_that_was_given_back_is_taken_at_the_next_look() -> None:
    pair = Pair()
    pair.a.turn()
    pair.b.turn()
    pair.a.give_back()
    assert (pair.holder, pair.a.leads) == ("", False)
    pair.b.turn()
    assert (pair.holder, pair.b.leads) == ("b", True)


def test_a_lease_is_given_back_though_a_renewal_was_on_its_way_when_the_leader_was_asked_to_end() -> None:
    pair = Pair()
    pair.a.turn()
    pair.b.turn()
    # It was cancelled, and arrived: the Lease has a version that the leader does not know.
    pair.client.hold(pair.client.objects[LEASE])
    pair.a.give_back()
    assert pair.holder == ""
    pair.b.turn()
    assert (pair.holder, pair.b.leads) == ("b", True)


def test_a_lease_that_another_took_is_not_given_back() -> None:
    pair = Pair()
    pair.a.turn()
    pair.b.turn()
    pair.clock.tick(TERMS.lease_seconds)
    pair.b.turn()
    pair.a.give_back()
    assert (pair.holder, pair.b.leads) == ("b", True)


def test_an_answer_that_was_lost_does_not_cost_the_lead() -> None:
    pair = Pair()
    pair.a.turn()
    # The write took place and its answer did not come: the Lease has a version that the leader does not know.
    pair.client.hold(pair.client.objects[LEASE])
    pair.clock.tick(2.0)
    pair.a.turn()
    pair.clock.tick(2.0)
    pair.a.turn()
    assert pair.a.leads
    assert pair.a.news == ["gained 0"]


def test_a_candidate_whose_lists_are_not_complete_takes_nothing_and_its_time_runs_all_the_same() -> None:
    pair = Pair()
    pair.a.turn()
    pair.b.is_ready = False
    pair.b.turn()
    pair.clock.tick(TERMS.lease_seconds)
    pair.b.turn()
    assert not pair.b.leads
    pair.b.is_ready = True
    pair.b.turn()
    assert pair.b.leads


def test_free_shards_are_shared_by_candidates_that_look_at_the_same_time() -> None:
    client, clock = FakeClient(), FakeClock()
    terms = TERMS.model_copy(update={"shards": 4})
    pair = [Candidate(client, clock, name, terms) for name in "ab"]
    for _ in range(8):
        for shard in range(4):
            for candidate in pair:
                candidate.turn(shard)
        clock.tick(1.0)
    led = [[shard for shard in range(4) if candidate.fence.leads(shard)] for candidate in pair]
    assert sorted(led[0] + led[1]) == [0, 1, 2, 3]
    assert len(led[0]) == len(led[1]) == 2


async def _change(fence: Fence, ended: list[str]) -> None:
    try:
        async with fence.writing("team"):
            await asyncio.sleep(60)
    except ClosedFenceError as error:
        ended.append(str(error))


def test_a_change_in_a_shard_that_is_not_led_does_not_begin() -> None:
    ended = list[str]()
    asyncio.run(_change(Fence(), ended))
    assert ended == ["this process does not lead the shard of namespace team"]


def test_a_change_that_is_under_way_ends_with_the_lead() -> None:
    async def body() -> list[str]:
        fence, ended = Fence(), list[str]()
        fence.set(0, math.inf)
        change = asyncio.create_task(_change(fence, ended))
        await asyncio.sleep(0)
        fence.set(0, -math.inf)
        await change
        return ended

    assert asyncio.run(body()) == ["the lead of the shard of namespace team ended during a change"]


def test_a_change_that_is_under_way_continues_with_each_renewal() -> None:
    async def body() -> list[str]:
        fence, ended, loop = Fence(monotonic=lambda: 0.0), list[str](), asyncio.get_running_loop()
        fence.set(0, 0.01)
        change = asyncio.create_task(_change(fence, ended))
        await asyncio.sleep(0)
        fence.set(0, 100.0)
        passed = loop.create_future()
        loop.call_later(0.05, passed.set_result, None)
        await passed
        assert not change.done()
        fence.set(0, -math.inf)
        await change
        return ended

    assert len(asyncio.run(body())) == 1


def test_a_process_without_an_election_may_always_write() -> None:
    fence = open_fence()
    assert fence.allows("team")
    assert fence.leads(0)
