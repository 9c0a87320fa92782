"""When a Lease may be taken and up to when its holder may write: no two at once, whatever clocks and answers do."""

import dataclasses
import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rljob_operator.policies import leadership
from rljob_operator.policies.leadership import Record, View
from rljob_operator.settings import LeaderElection

TERMS = LeaderElection()
ANOTHERS = Record(holder="b", lease_s=10.0, version="7", transitions=1)


def _view(record: Record, *, since: float = 100.0, renewed_at: float | None = None) -> View:
    return View(record=record, since=since, renewed_at=renewed_at)


def _may_take(view: View, now: float, num_led: int = 0) -> bool:
    return leadership.may_take(view, identity="a", terms=TERMS, now=now, num_led=num_led)


def test_a_lease_that_was_never_made_or_was_given_back_is_taken_at_once() -> None:
    assert _may_take(_view(Record()), 100.0)
    assert _may_take(_view(leadership.given_back(ANOTHERS)), 100.0)


def test_a_lease_of_another_is_taken_once_it_was_not_renewed_for_as_long_as_its_holder_promised() -> None:
    assert not _may_take(_view(ANOTHERS), 109.9)
    assert _may_take(_view(ANOTHERS), 110.0)
    longer = dataclasses.replace(ANOTHERS, lease_s=60.0)
    assert not _may_take(_view(longer), 159.9), "the holder may have other settings than this candidate"


def test_time_runs_from_when_a_change_was_seen_and_starts_again_with_the_next() -> None:
    view = leadership.after_read(None, ANOTHERS, identity="a", now=100.0)
    assert leadership.after_read(view, ANOTHERS, identity="a", now=105.0).since == 100.0
    renewed = dataclasses.replace(ANOTHERS, version="8")
    assert leadership.after_read(view, renewed, identity="a", now=105.0).since == 105.0


def test_a_free_shard_waits_for_a_candidate_that_leads_fewer_and_an_expired_one_for_no_one() -> None:
    free = _view(leadership.given_back(ANOTHERS))
    assert not _may_take(free, 103.9, num_led=2)
    assert _may_take(free, 104.0, num_led=2)
    assert _may_take(_view(ANOTHERS), 110.0, num_led=2)


def test_a_process_that_began_again_in_the_same_pod_takes_its_lease_at_once() -> None:
    assert _may_take(_view(dataclasses.replace(ANOTHERS, holder="a")), 100.0)


def test_a_holder_may_write_from_when_it_asked_and_for_less_long_than_others_wait() -> None:
    view = leadership.after_write(dataclasses.replace(ANOTHERS, holder="a"), sent_at=100.0, now=103.0)
    assert leadership.write_until(view, TERMS) == 106.0
    assert leadership.write_until(None, TERMS) == -math.inf
    assert leadership.write_until(_view(ANOTHERS), TERMS) == -math.inf


def test_a_holder_that_reads_its_own_lease_keeps_its_time_and_one_that_reads_anothers_does_not() -> None:
    mine = dataclasses.replace(ANOTHERS, holder="a")
    view = _view(mine, renewed_at=100.0)
    moved = dataclasses.replace(mine, version="9")
    assert leadership.after_read(view, moved, identity="a", now=104.0).renewed_at == 100.0
    assert leadership.after_read(view, ANOTHERS, identity="a", now=104.0).renewed_at is None


def test_only_another_holder_counts_as_a_transition() -> None:
    def transitions(record: Record) -> int:
        return leadership.taken(record, identity="a", terms=TERMS).transitions

    assert transitions(Record()) == 0
    assert transitions(dataclasses.replace(ANOTHERS, holder="a")) == 1
    assert transitions(ANOTHERS) == 2


def test_a_candidate_looks_again_at_each_retry_and_when_a_time_ends() -> None:
    def wait_s(view: View | None, now: float) -> float:
        return leadership.wait_s(view, identity="a", terms=TERMS, now=now)

    assert wait_s(None, 0.0) == 2.0
    assert wait_s(_view(ANOTHERS), 101.0) == 2.0
    assert wait_s(_view(ANOTHERS), 109.5) == 0.5
    assert wait_s(_view(ANOTHERS, renewed_at=100.0), 105.0) == 1.0
    assert wait_s(_view(ANOTHERS), 120.0) == 2.0, "a try that failed is not repeated without a pause"


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"lease_seconds": 6}, "retrySeconds = 2.0, renewSeconds = 6.0, leaseSeconds = 6"),
        ({"retry_seconds": 7}, "retrySeconds = 7.0, renewSeconds = 6.0"),
        ({"enabled": True}, "namespace is empty"),
        ({"shards": 2}, "shards = 2, but enabled is false"),
    ],
)
def test_terms_under_which_two_could_lead_are_refused(values: dict[str, object], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        LeaderElection.model_validate(values)


@given(st.text(min_size=1, max_size=63), st.integers(1, 64))
def test_every_namespace_has_one_shard(namespace: str, shards: int) -> None:
    assert 0 <= leadership.shard_of(namespace, shards) < shards


def test_shards_are_the_same_in_every_version_and_share_namespaces_evenly() -> None:
    # The first eight bytes of `printf team-a | sha256sum`, modulo 3.
    assert [leadership.shard_of(name, 3) for name in ("default", "team-a", "team-b")] == [1, 0, 2]
    counts = [0, 0, 0, 0]
    for number in range(4000):
        counts[leadership.shard_of(f"team-{number}", 4)] += 1
    assert min(counts) > 900


class _Candidate:
    """One process: a clock of its own, and the request that is on its way. Times but for `local` are true seconds."""

    def __init__(self, name: str, chance: random.Random) -> None:
        self.name, self._chance = name, chance
        self._offset, self._rate = chance.uniform(-1e6, 1e6), chance.uniform(0.8, 1.25)
        self.view: View | None = None
        self.acts_at = chance.uniform(0, 5)
        self._sent: tuple[Record | None, float] | None = None
        self._answer: Record | None = None
        self.served_at, self.lost = math.inf, False

    def local(self, at: float) -> float:
        return self._offset + self._rate * at

    def writes_until(self) -> float:
        """Return the true time up to which it believes that it may write."""
        return (leadership.write_until(self.view, TERMS) - self._offset) / self._rate

    def act(self, at: float, server: "_Server") -> None:
        """Send a request, or take its answer; then wait, or be stopped for a while."""
        if self._sent is None:
            self._send(at)
            return
        record, sent_at = self._sent
        self._sent, now = None, self.local(at)
        if self._answer is not None:
            if record is None:
                self.view = leadership.after_read(self.view, self._answer, identity=self.name, now=now)
            else:
                self.view = leadership.after_write(self._answer, sent_at=sent_at, now=now)
                server.check(self, at)
        elif record is not None:
            # A conflict, or no answer: it reads before it writes again.
            self.view = dataclasses.replace(self.view, renewed_at=None) if self.view is not None else None
        wait_s = leadership.wait_s(self.view, identity=self.name, terms=TERMS, now=now) / self._rate
        self.acts_at = at + max(0.01, wait_s) + self._pause()

    def _send(self, at: float) -> None:
        now, record = self.local(at), None
        view = self.view
        if view is not None and (
            view.renewed_at is not None or leadership.may_take(view, identity=self.name, terms=TERMS, now=now)
        ):
            record = leadership.taken(view.record, identity=self.name, terms=TERMS)
        self._sent, self._answer = (record, now), None
        # It may be stopped between the decision and the request, and between the answer and what it makes of it.
        self.served_at = at + self._pause() + self._chance.expovariate(5)
        self.lost = self._chance.random() < 0.1
        self.acts_at = self.served_at + self._chance.expovariate(5) + self._pause()

    def _pause(self) -> float:
        return self._chance.uniform(1, 30) if self._chance.random() < 0.05 else 0.0

    def serve(self, server: "_Server") -> None:
        assert self._sent is not None
        answer = server.served(self._sent[0])
        self._answer = None if self.lost else answer
        self.served_at = math.inf


class _Server:
    """The API server: one Lease, changed in the version that a request names and in no other."""

    def __init__(self, candidates: list[_Candidate]) -> None:
        self.record, self.candidates, self.num_taken = Record(), candidates, 0

    def served(self, written: Record | None) -> Record | None:
        if written is None:
            return self.record
        if written.version != self.record.version:
            return None
        self.num_taken += written.holder != self.record.holder
        self.record = dataclasses.replace(written, version=str(int(self.record.version or "0") + 1))
        return self.record

    def check(self, writer: _Candidate, at: float) -> None:
        """Fail where another may still write at a moment at which this one may begin to."""
        if writer.writes_until() > at:
            late = [each.name for each in self.candidates if each is not writer and each.writes_until() > at]
            assert not late, f"{writer.name} and {late} may write at {at:.2f}"


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 2**32))
def test_no_two_candidates_may_write_at_once(seed: int) -> None:
    chance = random.Random(seed)
    server = _Server([_Candidate(name, chance) for name in "abc"])
    at = 0.0
    while at < 600.0:
        candidate = min(server.candidates, key=lambda each: min(each.acts_at, each.served_at))
        at = min(candidate.acts_at, candidate.served_at)
        if candidate.served_at <= candidate.acts_at:
            candidate.serve(server)
        else:
            candidate.act(at, server)
    assert server.num_taken > 0
