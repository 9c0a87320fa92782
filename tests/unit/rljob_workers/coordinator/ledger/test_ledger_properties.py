"""Random events, with a crash of any process between any two, and after each the promises of the design.

Slices of what is behind a checkpoint are pruned between any two as well. Checked after every event, by `audit`: an
acknowledged trajectory is in exactly one place (1), groups keep their true sizes (2), no infrastructure failure becomes
a row (3), no consumed group breaks the age bound (4), prompts follow their order (6); and against a model kept here:
answers never change, batches keep their bytes, version ids never repeat.
"""

import pathlib
import tempfile
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from rljob_api import enums, errors, types
from rljob_testing.every_example import as_many
from rljob_workers.coordinator.ledger import audit, checkpoints, groups, leases, retention, steps, versions
from rljob_workers.coordinator.policy import staleness

# Events that undo a lot: too many of them, and nothing is ever under way.
RARELY = st.sampled_from([False, False, False, True])
PODS = ("rollout-0", "rollout-1")


def machine(make: Callable[..., Any]) -> type[RuleBasedStateMachine]:
    """Return the state machine on benches that `make` makes."""

    class LedgerMachine(RuleBasedStateMachine):
        @initialize(
            eta=st.integers(0, 2),
            groups=st.integers(1, 3),
            fraction=st.sampled_from([1.0, 0.5]),
            infra=st.integers(1, 3),
        )
        def start(self, eta: int, groups: int, fraction: float, infra: int) -> None:
            self.folder = tempfile.TemporaryDirectory()
            self.bench = make(
                path=pathlib.Path(self.folder.name) / "ledger.sqlite",
                max_off_policy_steps=eta, prompts_per_step=groups, group_size=3, min_group_fraction=fraction,
                max_infra_attempts_per_prompt=infra, num_prompts=7, lease_s=30,
            )  # fmt: skip
            self.tokens = {pod: self.bench.rollout(pod) for pod in PODS}
            self.fenced: list[str] = []
            self.leases: list[tuple[str, Any]] = []
            self.answers: dict[tuple[str, int], str] = {}
            self.accepted: set[str] = set()
            self.parts: dict[int, list[bytes]] = {}
            self.versions: set[int] = set()
            self.attempt = 0
            self.checkpoints = [0]
            self._restart_trainer(deep=False)

        def teardown(self) -> None:
            if hasattr(self, "bench"):
                self.bench.ledger.close()
                self.folder.cleanup()

        def serving(self, behind: int) -> int:
            return max(0, int(versions.head(self.bench.ledger).version) - behind)

        @rule(pod=st.sampled_from(PODS), capacity=st.integers(1, 4), behind=st.integers(0, 2), ahead=st.booleans())
        def lease(self, pod: str, capacity: int, behind: int, ahead: bool = False) -> None:
            serving = self.serving(behind)
            coming = self.serving(0) if ahead and behind else None
            spec, published = self.bench.spec, groups.published_step(self.bench.ledger)
            open_groups = self.bench.ledger.number(
                "SELECT COUNT(*) AS n FROM groups WHERE state IN ('leased', 'submitted')"
            )
            before = groups.recorded(self.bench.ledger) * spec.algorithm.prompts_per_step + open_groups
            for number, lease in enumerate(self.bench.lease(self.tokens[pod], capacity, serving, coming)):
                held = before + number
                assert held < (spec.async_.max_off_policy_steps + published + 1) * spec.algorithm.prompts_per_step
                assert lease.floor_step == staleness.version_floor(spec, accepted=held, running=0)
                assert lease.from_version in (serving, coming)
                self.leases.append((pod, lease))

        @rule(pod=st.sampled_from(PODS), count=st.integers(1, 6), train=st.booleans(), publish=st.booleans())
        def work_as_usual(self, pod: str, count: int, train: bool, publish: bool) -> None:
            """Without such a stretch random events rarely get past the first step. Older leases stay open:
            stragglers.
            """
            stragglers = len(self.leases)
            self.lease(pod, count, 0)
            while len(self.leases) > stragglers:
                self._submit(*self.leases.pop(), shift=0, good=3)
            self.pack()
            if train:
                self.train()
            if publish:
                self.publish()

        @precondition(lambda self: self.leases)
        @rule(
            data=st.data(),
            shift=st.integers(0, 1),
            good=st.sampled_from([3, 3, 3, 2, 1]),
            keep=st.booleans(),
        )
        def submit(self, data: st.DataObject, shift: int, good: int, keep: bool) -> None:
            index = data.draw(st.integers(0, len(self.leases) - 1))
            pod, lease = self.leases[index] if keep else self.leases.pop(index)
            self._submit(pod, lease, shift=shift, good=good)

        def _submit(self, pod: str, lease: Any, *, shift: int, good: int) -> None:
            oldest = self.bench.ledger.number(
                "SELECT granted_version AS n FROM leases WHERE lease_id = ?", lease.lease_id
            )
            versions = (oldest, min(oldest + shift, self.serving(0)))
            failures = [types.MemberFailure(sample_index=i, role="r", reason="lost") for i in range(good, 3)]
            key = (lease.group_id, lease.attempt)
            answer = self.bench.submit(
                self.tokens[pod], lease, rewards=[1.0, 0.0, 0.5][:good], versions=versions, failures=failures
            )
            if key in self.answers:
                # What became of an answer other than accepted is forgotten with its group.
                known = {self.answers[key]} | ({"duplicate"} if self._is_pruned(lease.group_id) else set())
                if self.answers[key] == enums.TrajectoryOutcome.ACCEPTED:
                    known = {self.answers[key]}
                assert answer.outcome in known
                assert answer.duplicate
                return
            assert answer.duplicate == self._is_pruned(lease.group_id)
            if answer.duplicate:
                return
            self.answers[key] = answer.outcome
            if answer.outcome == enums.TrajectoryOutcome.ACCEPTED:
                assert lease.group_id not in self.accepted
                assert good >= min(3, staleness.smallest_group(self.bench.spec))
                self.accepted.add(lease.group_id)

        def _is_pruned(self, group_id: str) -> bool:
            return retention.find(self.bench.ledger.db, group_id) is not None

        @precondition(lambda self: self.leases)
        @rule(data=st.data(), reason=st.sampled_from(["drain", "weights", "engine"]))
        def release(self, data: st.DataObject, reason: str) -> None:
            pod, lease = self.leases[data.draw(st.integers(0, len(self.leases) - 1))]
            leases.release(
                self.bench.ledger, token=self.tokens[pod], lease_id=lease.lease_id, reason=reason, now=self.bench.now
            )

        @rule(seconds=st.sampled_from([1.0, 1.0, 20.0, 31.0]), pod=st.sampled_from(PODS), lists=st.booleans())
        def time_passes(self, seconds: float, pod: str, lists: bool) -> None:
            self.bench.now += seconds
            held = [lease.lease_id for holder, lease in self.leases if lists and holder == pod]
            leases.renew(self.bench.ledger, token=self.tokens[pod], lease_ids=held, now=self.bench.now)
            leases.expire(self.bench.ledger, now=self.bench.now)

        @rule(pod=st.sampled_from(PODS), really=RARELY)
        def rollout_restarts(self, pod: str, really: bool) -> None:
            if not really:
                return
            self.fenced.append(self.tokens[pod])
            self.tokens[pod] = self.bench.rollout(pod)

        @precondition(lambda self: self.fenced)
        @rule()
        def a_fenced_process_speaks(self) -> None:
            with pytest.raises(errors.FencedError):
                self.bench.lease(self.fenced[-1])

        @rule()
        def pack(self) -> None:
            ahead = groups.recorded(self.bench.ledger) > groups.committed(self.bench.ledger)
            stale = self.bench.ledger.counters().get("dropped:stale", 0)
            step = self.bench.pack()
            if ahead:
                assert self.bench.ledger.counters().get("dropped:stale", 0) == stale, "nobody is dropped for it"
            if step is not None:
                self.parts[step] = steps.parts(self.bench.ledger, step=step, rank=0)

        @rule()
        def train(self) -> None:
            step = groups.committed(self.bench.ledger) + 1
            header = steps.decide(self.bench.ledger, token=self.trainer, step=step, rank=0, world_size=1, stop=False)
            if header.kind is enums.BatchKind.BATCH:
                assert steps.parts(self.bench.ledger, step=step, rank=0) == self.parts[step]
                assert self.bench.commit(self.trainer, step) is False
                assert self.bench.commit(self.trainer, step) is True

        @rule()
        def publish(self) -> None:
            version = self.bench.publish(self.trainer, groups.committed(self.bench.ledger), self.attempt)
            assert version not in self.versions
            self.versions.add(version)

        @rule()
        def checkpoint(self) -> None:
            step = groups.committed(self.bench.ledger)
            if step > 0:
                checkpoints.commit_checkpoint(
                    self.bench.ledger,
                    token=self.trainer,
                    step=step,
                    uri=f"c{step}",
                    seconds=0.1,
                    final=False,
                    now=self.bench.now,
                )
                self.checkpoints.append(step)

        @rule(most=st.integers(1, 4), seq=st.integers(0, 5))
        def prune(self, most: int, seq: int) -> None:
            """One slice, however small: a crash may come before the next one."""
            counts, counters = groups.counts(self.bench.ledger), self.bench.ledger.counters()
            retention.prune(self.bench.ledger, history_seq=seq, now=self.bench.now, most=most)
            assert groups.counts(self.bench.ledger) == counts
            assert self.bench.ledger.counters() == counters

        @rule(deep=RARELY, really=RARELY)
        def trainer_restarts(self, deep: bool, really: bool) -> None:
            if really:
                self._restart_trainer(deep=deep)

        def _restart_trainer(self, *, deep: bool) -> None:
            resume_step = min(self.checkpoints) if deep else self.checkpoints[-1]
            self.attempt += 1
            self.trainer = self.bench.trainer(attempt=self.attempt, resume_step=resume_step)
            self.checkpoints = [step for step in self.checkpoints if step <= resume_step]
            assert groups.committed(self.bench.ledger) == resume_step
            recorded = groups.recorded(self.bench.ledger)
            self.parts = {step: parts for step, parts in self.parts.items() if step <= recorded}

        @rule()
        def coordinator_restarts(self) -> None:
            before = groups.counts(self.bench.ledger)
            self.bench.reopen()
            assert groups.counts(self.bench.ledger) == before

        @invariant()
        def promises_hold(self) -> None:
            if not hasattr(self, "bench"):
                return
            database = self.bench.ledger.db
            bound = self.bench.spec.async_.max_off_policy_steps
            assert audit.audit(database, max_off_policy_steps=bound) == []
            found = {row["group_id"] for row in database.all("SELECT group_id FROM answers WHERE outcome = 'accepted'")}
            pruned = {member.group_id for member in retention.everything(database) if member.accepted}
            assert found | pruned == self.accepted

        @invariant()
        def prompts_follow_their_order(self) -> None:
            if not hasattr(self, "bench"):
                return
            drawn = [use.ref.prompt_id for use in audit.first_uses(self.bench.ledger.db)]
            order = [ref.prompt_id for epoch in range(len(drawn) // 7 + 1) for ref in self.bench.order.order(epoch)]
            assert drawn == order[: len(drawn)]

    return LedgerMachine


@pytest.mark.covers("algorithms 2.1")
def test_the_promises_hold_whatever_happens_in_whatever_order(make_bench: Callable[..., Any]) -> None:
    run_state_machine_as_test(
        machine(make_bench),
        settings=settings(
            max_examples=as_many(100, usually=30),
            stateful_step_count=60,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
        ),
    )
