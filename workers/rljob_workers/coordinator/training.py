"""The trainer's conversation: fetch, commit. A batch is recorded (building.py), then handed out."""

import dataclasses
from collections.abc import Mapping

from rljob_api import enums, types
from rljob_workers.coordinator import context
from rljob_workers.coordinator.batching import builder, samples
from rljob_workers.coordinator.ledger import checkpoints, steps
from rljob_workers.coordinator.reporting import oat_metrics

Reply = tuple[types.BatchHeader, list[bytes]]
# Series of reward means at most: 16 rewards with a few parts each.
MOST_PARTS = 64
_MOST_PROBLEM_CHARS = 500


class Training:
    """Answers the `Train` service."""

    def __init__(self, parts: context.CoordinatorContext) -> None:
        self._context = parts
        self.builder = builder.Builder(parts, self._observe)
        self._parts: set[str] = set()

    async def fetch(self, *, token: str, step: int, rank: int, world_size: int, wait_s: float, stop: bool) -> Reply:
        """Long poll for a rank's batch of `step`; the same bytes every time. All ranks learn of a stop at the same
        step.
        """
        end, since = self._context.clock.monotonic() + wait_s, self._context.clock.now()
        while True:
            mark = self._context.changes.batches.mark
            self._context.pods.record_contact(token, now=self._context.clock.now())
            header = await self._context.ledger.run(
                steps.decide, token=token, step=step, rank=rank, world_size=world_size, stop=stop
            )
            left_s = end - self._context.clock.monotonic()
            if header.kind is enums.BatchKind.NOT_READY and not header.wait_reason:
                reason = await self.builder.needed(left_s)
                if not reason:
                    continue
                header = types.BatchHeader(kind=enums.BatchKind.NOT_READY, step=step, wait_reason=reason)
                left_s = end - self._context.clock.monotonic()
            if (
                header.kind is enums.BatchKind.NOT_READY
                and rank == 0
                and self._context.lost_version != types.NO_VERSION
            ):
                # Asked for once; a rollout that still cannot get it says so again.
                lost, self._context.lost_version = self._context.lost_version, types.NO_VERSION
                return dataclasses.replace(header, lost_version=lost), []
            if header.kind is not enums.BatchKind.NOT_READY or left_s <= 0:
                break
            on = enums.Role.COORDINATOR if header.wait_reason == builder.BEING_BUILT else enums.Role.ROLLOUT
            self._context.pods.waits(token, what=header.wait_reason, on=on, since=since)
            await self._context.changes.batches.wait(mark, left_s)
        if header.kind is not enums.BatchKind.NOT_READY:
            self._context.pods.waits(token, what="", on="", since=0.0)
        if header.kind is not enums.BatchKind.BATCH:
            return header, []
        return header, await self._context.ledger.read(lambda database: steps.parts_of(database, step=step, rank=rank))

    def _observe(self, choice: steps.Choice, assembled: samples.Assembled, summary: Mapping[str, object]) -> None:
        metrics, now = self._context.metrics, self._context.clock.now()
        for row in assembled.samples:
            metrics.histogram("rljob_response_tokens").observe(len(row.advantages))
        if choice.supervised:
            return
        for candidate in choice.candidates or ():
            metrics.histogram("rljob_trajectory_staleness_steps").observe(samples.trained_age(choice, candidate))
            seconds = metrics.histogram("rljob_group_seconds")
            seconds.observe(max(0.0, candidate.queued_s), phase="queued")
            seconds.observe(max(0.0, candidate.generate_finished_at - candidate.generate_started_at), phase="generate")
            seconds.observe(candidate.verify_s, phase="verify")
            seconds.observe(max(0.0, now - candidate.generate_finished_at), phase="packed")
        for name, key in (
            ("rljob_reward_mean", "reward_mean"),
            ("rljob_reward_std", "reward_std"),
            ("rljob_sampled_reward_mean", "sampled_reward_mean"),
            ("rljob_sampled_reward_std", "sampled_reward_std"),
            ("rljob_truncated_ratio", "truncated_ratio"),
            *((name, key) for key, name in oat_metrics.GAUGES.items() if key in summary),
        ):
            metrics.gauge(name).set(float(str(summary[key])))
        parts = summary["rewards"]
        assert isinstance(parts, dict), "the summary's rewards are a map"
        for reward, mean in parts.items():
            # A user's function names its parts, and may name them by what it was asked.
            if reward in self._parts or len(self._parts) < MOST_PARTS:
                self._parts.add(reward)
                metrics.gauge("rljob_reward_component_mean").set(mean, reward=reward)

    async def commit_step(
        self,
        *,
        token: str,
        step: int,
        stats: Mapping[str, float],
        started_at: float,
        finished_at: float,
        storage_problem: str = "",
    ) -> bool:
        """Record a finished step; True if it was already."""
        now = self._context.clock.now()
        self._context.pods.record_contact(token, now=now)
        duplicate = await self._context.ledger.run(
            steps.commit_step,
            token=token,
            step=step,
            stats=stats,
            started_at=started_at,
            finished_at=finished_at,
            now=now,
        )
        # After the ledger, which refuses a trainer that was replaced.
        self._context.storage_problem = storage_problem[:_MOST_PROBLEM_CHARS]
        return duplicate

    async def commit_checkpoint(self, *, token: str, step: int, uri: str, seconds: float, final: bool) -> list[int]:
        """Record a checkpoint and prune. Which older ones may go is the trainer's decision: the answer is empty."""
        now = self._context.clock.now()
        self._context.pods.record_contact(token, now=now)
        await self._context.ledger.run(
            checkpoints.commit_checkpoint, token=token, step=step, uri=uri, seconds=seconds, final=final, now=now
        )
        return []

    async def stop(self) -> int:
        """Ask the current trainer attempt to end; return the last step that it trains."""
        return await self._context.ledger.run(steps.request_stop)
