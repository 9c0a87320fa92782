"""CO: what one core of the coordinator does a second, against what it has to: groups into the ledger, a housekeeping
tick, tokens into batches.

The other side of a pair is the figure required, so a ratio of 1 is the bar. Ours is by CPU seconds of this process,
which other work on the machine leaves alone; groups are leased, submitted, packed, trained and published by the calls
that the coordinator's services make, in commits of 64 as its ledger thread makes them. docs/design/performance.md#s-1
and #s-9.
"""

import dataclasses
import pathlib
import random
import shutil
import statistics
import time
from collections.abc import Callable, Iterator, Sequence

from tests.bench import runner

from rljob_api import enums, process_config, types
from rljob_api.wire import codec
from rljob_testing import makers
from rljob_testing.sections import make_config, make_spec
from rljob_workers.coordinator import changes
from rljob_workers.coordinator.batching import packing, samples
from rljob_workers.coordinator.ledger import (
    checkpoints,
    database,
    evaluations,
    groups,
    leases,
    queries,
    retention,
    sessions,
    steps,
    submissions,
    versions,
)
from rljob_workers.coordinator.policy import prompts

GROUPS_PER_S, TICK_S, TOKENS_PER_S = 3000.0, 0.020, 5e6
B, G, TOGETHER = 256, 2, 64
# In one measurement: a step is a twentieth of a second.
STEPS = 4
TENSORS = 272


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How large the ledger is, and how often it is measured."""

    pairs: int
    versions: int
    groups: int
    build_groups: int


SIZES = {
    "smoke": Size(pairs=3, versions=300, groups=5_000, build_groups=4),
    "full": Size(pairs=9, versions=10_000, groups=1_000_000, build_groups=32),
}


class Played:
    """A ledger with one rollout and one trainer that play steps."""

    def __init__(self, folder: pathlib.Path) -> None:
        """Make the ledger again."""
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        config = make_config(
            process_config.CoordinatorConfig,
            folder,
            group_size=G,
            prompts_per_step=B,
            max_steps=10**9,
            max_extra_groups=1000,
        )
        index = prompts.SourceIndex(name="train", prompt_ids=tuple(f"p{i}" for i in range(20_000)))
        self.order = prompts.TaskOrder([index], seed=7)
        self.ledger = database.Ledger(folder / "ledger.sqlite", config, now=1.0)
        self.rollout, _ = sessions.open_session(
            self.ledger,
            role=enums.Role.ROLLOUT,
            pod="rollout-0",
            boot_id="a",
            attempt=0,
            rank=0,
            resume_step=0,
            now=1.0,
        )
        self.trainer, _ = sessions.open_session(
            self.ledger,
            role=enums.Role.TRAINER,
            pod="trainer-0",
            boot_id="b",
            attempt=1,
            rank=0,
            resume_step=0,
            now=1.0,
        )
        checkpoints.begin_attempt(self.ledger, attempt=1, rank=0, resume_step=0, replaced=False, now=1.0)
        self.serving, self.checkpointed = 0, 0

    def step(self) -> tuple[int, float]:
        """Play a step; return its groups and the CPU seconds of leasing and submitting them."""
        made = self._leases()
        groups = [
            makers.make_group(
                lease_id=lease.lease_id, group_id=lease.group_id, attempt=lease.attempt, rewards=(1.0, 0.0),
                versions=self.serving,
            )
            for lease in made[0]
        ]  # fmt: skip
        payloads = [codec.encode(group) for group in groups]
        began = time.process_time()
        for start in range(0, len(groups), TOGETHER):
            with self.ledger.transaction():
                for group, payload in zip(groups[start:][:TOGETHER], payloads[start:][:TOGETHER], strict=True):
                    answer = submissions.accept(self.ledger, token=self.rollout, group=group, now=1.0, payload=payload)
                    assert answer.outcome is enums.TrajectoryOutcome.ACCEPTED, answer
            changes.of(self.ledger)
        spent = made[1] + time.process_time() - began
        self._train()
        return len(groups), spent

    def _leases(self) -> tuple[list[leases.Lease], float]:
        began = time.process_time()
        granted = []
        with self.ledger.transaction():
            while len(granted) < B:
                some, reason = leases.lease(
                    self.ledger,
                    token=self.rollout,
                    capacity=4,
                    serving_version=self.serving,
                    take=self.order.take,
                    now=1.0,
                )
                assert some, reason
                granted += some
        return granted, time.process_time() - began

    def _train(self) -> None:
        choice = steps.choose(self.ledger, more_prompts=True)
        assert choice.candidates is not None, choice.wait_reason
        frozen = steps.FrozenStep(
            step=choice.step,
            group_ids=tuple(candidate.group_id for candidate in choice.candidates),
            world_size=1,
            minibatches=(types.Minibatch(num_tokens=1, num_rows=1),),
            summary={"reward_mean": 0.5},
        )
        steps.stage(self.ledger, step=choice.step, parts=[steps.Part(rank=0, seq=0, data=b"batch")], fresh=True)
        assert steps.freeze(self.ledger, frozen, now=1.0)
        steps.commit_step(
            self.ledger, token=self.trainer, step=choice.step, stats={}, started_at=1.0, finished_at=1.0, now=1.0
        )
        self.publish(choice.step)

    def publish(self, step: int) -> None:
        """Publish the next version, with a manifest as large as one of a small model."""
        version = versions.head(self.ledger).version + 1
        manifest = types.WeightVersion(
            job="job", version=types.VersionId(version), step=step, attempt=1, parent=version - 1, created_at=0.0,
            layout_id="layout", digests=dict.fromkeys(range(TENSORS), b"0123456789abcdef"),
            state_hash=f"hash-{version}",
            artifacts=(types.Artifact(artifact_id=f"a{version}", encoding=enums.Encoding.WHOLE, num_bytes=8),),
        )  # fmt: skip
        answer = versions.publish(self.ledger,
            token=self.trainer, proposal=manifest,
            layout=types.Layout(layout_id="layout", tensors=(), image_bytes=8), stored={f"a{version}": 8},
            evaluate=False, now=1.0,
        )  # fmt: skip
        assert answer.outcome == "accepted", answer
        versions.retire(self.ledger, [version - 3])
        self.serving = version

    def publish_many(self, count: int) -> None:
        """Publish versions of the same step, as after skipped updates."""
        step = groups.committed(self.ledger)
        with self.ledger.transaction():
            for _ in range(count):
                self.publish(step)

    def fill(self, count: int) -> None:
        """Make trained groups that a checkpoint does not cover yet, each with its lease, answer and step's row."""
        first = self.ledger.number("SELECT value AS n FROM counters WHERE name = 'groups_opened'") + 1
        steps = count // B
        done = groups.committed(self.ledger)
        database = self.ledger.db
        with self.ledger.transaction():
            database.many(
                "INSERT INTO groups (group_id, kind, state, source, prompt_index, prompt_id, epoch, position, copy,"
                " queue_key, group_size, attempt, lease_order, granted_step, min_step, max_step, finished_step,"
                " num_rows, num_failures, created_at, leased_at, submitted_at, closed_at, generate_started_at,"
                " generate_finished_at, verify_s, step, step_position) VALUES (?, 'train', 'trained', 'train', ?, ?,"
                " 0, ?, 0, ?, 2, 0, ?, ?, ?, ?, ?, 2, 0, 1, 1, 1, 1, 1, 1, 1, ?, ?)",
                (
                    (f"g{first + i:08d}", i % 20_000, f"p{i % 20_000}", i, first + i, i, *[done + i // B] * 4,
                     done + 1 + i // B, i % B)
                    for i in range(steps * B)
                ),
            )  # fmt: skip
            ids = [f"g{first + i:08d}" for i in range(steps * B)]
            database.many(
                "INSERT INTO leases VALUES (?, ?, 0, 'old', 'done', 1, 1, 0, 0, 0, 0)", ((f"{i}-x", i) for i in ids)
            )
            database.many("INSERT INTO answers VALUES (?, 0, 'accepted', '', 1)", ((i,) for i in ids))
            database.many(
                "INSERT INTO steps (step, state, world_size, minibatches, summary, num_groups, packed_at, trained_at,"
                " attempt, stats) VALUES (?, 'trained', 1, '[[1, 1]]', ?, ?, 1, 1, 1, '{}')",
                ((done + 1 + i, '{"reward_mean": 0.5, "x": "' + "a" * 3000 + '"}', B) for i in range(steps)),
            )
            self.ledger.count("groups_opened", steps * B)
        self.publish(groups.committed(self.ledger))

    def checkpoint(self) -> None:
        """Record a checkpoint of the newest step, so that there is much to prune."""
        step = groups.committed(self.ledger)
        checkpoints.commit_checkpoint(
            self.ledger, token=self.trainer, step=step, uri=f"c{step}", seconds=1.0, final=False, now=1.0
        )

    def tick(self) -> float:
        """Return the CPU seconds of what a housekeeping tick asks of the ledger."""
        began = time.process_time()
        with self.ledger.transaction():
            leases.expire(self.ledger, now=1.0)
            queries.completion(self.ledger)
            evaluations.running_evaluation(self.ledger)
            versions.stored_versions(self.ledger)
            evaluations.pinned_versions(self.ledger)
            queries.history_after(self.ledger, self.ledger.number("SELECT MAX(seq) AS n FROM history") - 20)
            retention.prune(self.ledger, history_seq=0, now=1.0)
            queries.snapshot(self.ledger, {self.serving})
        return time.process_time() - began


def measure(size: str, out: pathlib.Path) -> Sequence[runner.Measured]:
    """Return the rows of groups a second, of the tick and of tokens a second; ledgers are made below `out`."""
    return list(_rows(SIZES[size], out / "coordinator"))


def _rows(size: Size, folder: pathlib.Path) -> Iterator[runner.Measured]:
    played = Played(folder)
    yield _throughput("CO1", "groups/s leased and submitted, new ledger", played, size, {})
    played.publish_many(size.versions)
    yield _throughput("CO1-versions", "the same with many versions", played, size, {"versions": size.versions})
    played.fill(size.groups)
    large = {"versions": size.versions, "groups": size.groups}
    yield _throughput("CO1-groups", "the same with many versions and groups", played, size, large)
    played.checkpoint()
    yield _row(
        "CO2", "CPU seconds of a housekeeping tick, pruning", "s", _pairs(size, _mean(played.tick), TICK_S), large
    )
    played.ledger.close()
    shutil.rmtree(folder)
    build = Build(size.build_groups)
    tokens = {"tokens": build.num_tokens, "rows": len(build.payloads) * build.ROWS}
    yield _row("CO3", "tokens/s built into batches", "tokens/s", _pairs(size, build.rate, TOKENS_PER_S), tokens)


def _throughput(row: str, title: str, played: Played, size: Size, params: dict[str, object]) -> runner.Measured:
    def rate() -> float:
        played_steps = [played.step() for _ in range(STEPS)]
        return sum(count for count, _ in played_steps) / sum(spent for _, spent in played_steps)

    rate()
    return _row(row, title, "groups/s", _pairs(size, rate, GROUPS_PER_S), params | {"group": G, "step": B})


def _pairs(size: Size, ours: Callable[[], float], required: float) -> list[runner.Pair]:
    return [runner.Pair(ours=ours(), peer=required) for _ in range(size.pairs)]


def _mean(one: Callable[[], float]) -> Callable[[], float]:
    return lambda: statistics.fmean(one() for _ in range(STEPS))


def _row(row: str, title: str, unit: str, pairs: Sequence[runner.Pair], params: dict[str, object]) -> runner.Measured:
    return runner.Measured(row=row, title=title, unit=unit, pairs=pairs, params=params)


class Build:
    """The groups of a step as the ledger keeps them: 8 answers of 3,840 tokens on a prompt of 256."""

    ROWS, PROMPT, ANSWER, RANKS = 8, 256, 3840, 8

    def __init__(self, num_groups: int) -> None:
        """Make the payloads."""
        rng = random.Random(0)
        self.payloads: list[bytes] = []
        for number in range(num_groups):
            prompt = [rng.randrange(50_000) for _ in range(self.PROMPT)]
            rows = tuple(
                makers.make_trajectory(
                    prompt=prompt, completion=[rng.randrange(50_000) for _ in range(self.ANSWER)],
                    reward=float(index % 2), sample_index=index,
                )
                for index in range(self.ROWS)
            )  # fmt: skip
            group = types.PromptGroup(
                lease_id=types.LeaseId("l"), group_id=types.GroupId(f"g{number}"), attempt=0, trajectories=rows,
                generate_finished_at=1.0,
            )  # fmt: skip
            self.payloads.append(codec.encode(group))
        self.num_tokens = num_groups * self.ROWS * (self.PROMPT + self.ANSWER)
        self._algorithm = make_spec(group_size=self.ROWS, prompts_per_step=num_groups).algorithm
        self._shape = packing.Shape(seed=0, minibatches=1, epochs=1, world_size=self.RANKS, max_tokens=16_384)

    def rate(self) -> float:
        """Build the batch, from payloads to parts; return tokens per CPU second."""
        began = time.process_time()
        choice = steps.Choice(
            step=1,
            candidates=tuple(
                steps.Candidate(
                    group_id=types.GroupId(f"g{number}"), lease_order=number, min_step=0, finished_step=0,
                    num_failures=0, queued_s=0.0, generate_started_at=0.0, generate_finished_at=1.0, verify_s=0.0,
                    payload=payload,
                )
                for number, payload in enumerate(self.payloads)
            ),
            version_steps={0: 0},
        )  # fmt: skip
        assembled = samples.assemble(choice, self._algorithm)
        packed = packing.pack(assembled.samples, step=1, shape=self._shape)
        parts = [codec.encode_micro_batch(batch) for rank in packed.micro_batches for batch in rank]
        assert len(parts) >= self.RANKS
        return self.num_tokens / (time.process_time() - began)
