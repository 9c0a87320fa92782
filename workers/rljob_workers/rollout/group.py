"""One leased prompt group from lease to scored group: G members, each with its own seed, retried on its own.

A member that fails is tried again while the others continue and keep their results; one that cannot be had becomes a
MemberFailure with its true size counted, never a row with reward zero. Source: docs/design/workflows.md#s-6.
"""

import asyncio
import dataclasses
import logging
from collections.abc import Mapping, Sequence

from rljob_api import enums, errors, types
from rljob_workers.models import vision
from rljob_workers.rollout import examples, filters, generation, grading, wait_accounting
from rljob_workers.rollout.episodes import protocols
from rljob_workers.rollout.sync import receiver
from rljob_workers.rpc import verify
from rljob_workers.runtime import clock as clocks
from rljob_workers.runtime import metrics as metrics_module
from rljob_workers.runtime import redaction, retry

logger = logging.getLogger(__name__)
# How many records that cannot be used a process reports on, one by one.
NUM_TOLD = 20


@dataclasses.dataclass(slots=True)
class _PrefixTokens:
    """Prompt tokens of all calls of a group: `repeated` ones that earlier requests began with, and `cached` ones."""

    repeated: int = 0
    cached: int = 0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Timed:
    """A generator that shows the group's times and its pictures, counts what the prefix cache had, keeps the group's
    place in the order of groups, and holds evaluation to its version.
    """

    inner: generation.Generator
    times: wait_accounting.GroupTimes
    prefix_tokens: _PrefixTokens
    priority: int
    pinned: types.VersionId | None
    pictures: tuple[bytes, ...] = ()

    async def generate(self, request: generation.GenerationRequest) -> generation.GenerationResult:
        """Raises EngineError if a pinned version is asked for and another one sampled."""
        with self.times.generating():
            result = await self.inner.generate(
                dataclasses.replace(request, priority=self.priority, pictures=self.pictures)
            )
        self.prefix_tokens.repeated += result.repeated_tokens
        self.prefix_tokens.cached += result.cached_tokens
        if self.pinned is not None and set(result.versions) != {self.pinned}:
            raise errors.EngineError(f"versions {sorted(set(result.versions))} sampled where {self.pinned} is pinned")
        return result


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ScoredGroup:
    """What is submitted, and what dumps report on the turns of each member's episode."""

    group: types.PromptGroup
    turns: Mapping[int, tuple[protocols.TurnRecord, ...]]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """How a template's prompts become ids and episodes: training has one, and each suite with a template of its own.

    between: what an episode waits for between two generations: agents from outside that make the calls, or a shell.
    """

    tokens: protocols.Tokens
    collector: protocols.RolloutCollector
    between: enums.WaitReason | None = None


class GroupRunner:
    """Runs groups; holds what they share."""

    def __init__(
        self,
        *,
        generator: generation.Generator,
        flow: Flow,
        flow_by_suite: Mapping[str, Flow],
        verifiers: verify.Grading,
        receiver: receiver.WeightReceiver,
        max_attempts: int,
        clock: clocks.Clock,
        metrics: metrics_module.Metrics,
        predicate: filters.Predicate | None = None,
        sources: filters.Sources | None = None,
        example_tokens: examples.ExampleTokens | None = None,
        judge: grading.Judge | None = None,
        picture_tokens: vision.PictureTokens | None = None,
    ) -> None:
        """`flow` serves training and every suite that is not in `flow_by_suite`; `example_tokens` supervised steps.

        `max_attempts` bounds the attempts of one member; `predicate` says which groups are to be trained;
        `picture_tokens` what stands for a picture in prompts.
        """
        self._picture_tokens = picture_tokens
        self._generator, self._flow, self._flow_by_suite = generator, flow, flow_by_suite
        self._verifiers, self._receiver, self._max_attempts = verifiers, receiver, max_attempts
        self._judge = judge
        self._clock, self._metrics, self._predicate = clock, metrics, predicate
        self._sources, self._num_unusable = sources or filters.Sources(), 0
        self._examples = example_tokens

    async def run(self, lease: types.GroupLease, slot: wait_accounting.Slot) -> ScoredGroup:
        """Return the scored group; cancelling it aborts its generations. Raises WeightsError if the version that it is
        to begin with is not to be had soon.
        """
        if lease.kind is enums.GroupKind.EXAMPLE:
            return self._example(lease)
        # Before the version is there, which a group may be leased ahead of.
        try:
            task: protocols.Task | errors.DataError = _task(lease.prompt, self._flow_of(lease).tokens)
        except errors.DataError as error:
            task = error
        await self._receiver.serves(lease)
        times = wait_accounting.GroupTimes(clock=self._clock, slot=slot, between=self._flow_of(lease).between)
        batch = grading.GradingBatch(client=self._verifiers, times=times, judge=self._judge)
        prefix_tokens = _PrefixTokens()
        client = _Timed(
            inner=self._generator,
            times=times,
            prefix_tokens=prefix_tokens,
            priority=lease.lease_order,
            pinned=lease.pinned_version,
            pictures=lease.prompt.pictures,
        )
        if isinstance(task, errors.DataError):
            outcomes: list[protocols.Episode | types.MemberFailure] = [
                self._failure(index, lease, task) for index in range(lease.group_size)
            ]
        else:
            why = filters.too_long(lease.prompt, len(task.input_ids), self._sources.of(lease))
            if why:
                outcomes = [_too_long(index, why) for index in range(lease.group_size)]
            else:
                outcomes = await self._members(lease, task, client, batch)
        self._tell_if_unusable(lease, outcomes)
        try:
            rejected = self._rejected(lease, outcomes)
        except errors.EpisodeError as error:
            # No answer is neither yes nor no: the group is tried again, and ends when its attempts do.
            rejected, outcomes = False, [self._failure(index, lease, error) for index in range(lease.group_size)]
        details = {
            index: outcome.turns for index, outcome in enumerate(outcomes) if isinstance(outcome, protocols.Episode)
        }
        group = dataclasses.replace(
            self._group(lease, outcomes, times),
            pictures=self._pictures(lease, task),
            rejected=rejected,
            repeated_tokens=prefix_tokens.repeated,
            cached_tokens=prefix_tokens.cached,
        )
        counter = self._metrics.counter("rljob_prefix_tokens_total")
        counter.inc(prefix_tokens.repeated, kind="repeated")
        counter.inc(prefix_tokens.cached, kind="cached")
        return ScoredGroup(group=group, turns=details)

    def _pictures(self, lease: types.GroupLease, task: protocols.Task | errors.DataError) -> tuple[types.Picture, ...]:
        """Return the pictures of a group that is to be trained, by where they begin in each of its rows."""
        shown = lease.prompt.pictures
        if not shown or isinstance(task, errors.DataError) or lease.kind is enums.GroupKind.EVALUATION:
            return ()
        assert self._picture_tokens is not None, "a prompt with pictures has ids where the model reads them alone"
        starts = self._picture_tokens.starts(task.input_ids, len(shown))
        return tuple(types.Picture(start=start, data=data) for start, data in zip(starts, shown, strict=True))

    def _example(self, lease: types.GroupLease) -> ScoredGroup:
        """Return the row of an example, or why it has none."""
        assert self._examples is not None, "examples are leased where spec.sft is set"
        rows: list[types.Trajectory] = []
        failures: list[types.MemberFailure] = []
        try:
            prompt, answer = self._examples.example_ids(lease.prompt, lease.sampling)
        except errors.DataError as error:
            failures = [self._failure(0, lease, error)]
        else:
            why = filters.too_long(lease.prompt, len(prompt), self._sources.of(lease)) or examples.too_long(
                lease.prompt, len(answer), lease.sampling
            )
            if why:
                failures = [_too_long(0, why)]
            else:
                rows = [examples.row(prompt, answer, version=lease.from_version)]
        self._tell_if_unusable(lease, failures)
        now = self._clock.now()
        group = types.PromptGroup(
            lease_id=lease.lease_id,
            group_id=lease.group_id,
            attempt=lease.attempt,
            trajectories=rows,
            failures=failures,
            generate_started_at=now,
            generate_finished_at=now,
        )
        return ScoredGroup(group=group, turns={})

    def _flow_of(self, lease: types.GroupLease) -> Flow:
        return self._flow_by_suite.get(_suite(lease), self._flow)

    def _tell_if_unusable(
        self, lease: types.GroupLease, outcomes: Sequence[protocols.Episode | types.MemberFailure]
    ) -> None:
        for outcome in outcomes:
            if isinstance(outcome, types.MemberFailure) and outcome.reason in enums.LEFT_OUT:
                self._num_unusable += 1
                if self._num_unusable <= NUM_TOLD:
                    logger.warning("cannot use a record: %s", outcome.detail, extra={"group": lease.group_id})
                return

    def _rejected(self, lease: types.GroupLease, outcomes: list[protocols.Episode | types.MemberFailure]) -> bool:
        """Return whether the user's predicate leaves out the group; of an evaluation it is not asked."""
        rows = _rows(outcomes)
        if self._predicate is None or not rows or lease.kind is enums.GroupKind.EVALUATION:
            return False
        return not filters.keeps_group(self._predicate, lease.prompt, rows)

    async def _members(
        self,
        lease: types.GroupLease,
        task: protocols.Task,
        client: _Timed,
        batch: grading.GradingBatch,
    ) -> list[protocols.Episode | types.MemberFailure]:
        # All join before one begins: verdicts are asked for together once every member that is in waits for its own.
        for _ in range(lease.group_size):
            batch.join()
        async with asyncio.TaskGroup() as members:
            running = [
                members.create_task(self._member(index, lease, task, client, batch))
                for index in range(lease.group_size)
            ]
        return [member.result() for member in running]

    async def _member(
        self,
        index: int,
        lease: types.GroupLease,
        task: protocols.Task,
        client: _Timed,
        batch: grading.GradingBatch,
    ) -> protocols.Episode | types.MemberFailure:
        backoff = retry.Backoff(first_s=0.1, most_s=5.0)
        last: errors.RLJobError = errors.EpisodeError("no attempt was made")
        for attempt in range(self._max_attempts):
            if attempt:
                await self._clock.sleep(backoff.next_delay_s())
                batch.join()
            try:
                return await self._episode(index, attempt, lease, task, client, batch)
            except (errors.GraderError, errors.SandboxError, errors.JudgeError) as error:
                # No verdict after the client's own attempts: generating again would not help.
                return self._failure(index, lease, error)
            except errors.DataError as error:
                # The same record would fail again.
                return self._failure(index, lease, error)
            except (errors.EngineError, errors.EpisodeError, errors.PlaceError, errors.WireError) as error:
                logger.warning("member failed: %s", error, extra=_keys(lease, index, error))
                last = error
            finally:
                batch.leave()
        return self._failure(index, lease, last)

    async def _episode(
        self,
        index: int,
        attempt: int,
        lease: types.GroupLease,
        task: protocols.Task,
        client: generation.Generator,
        batch: grading.GradingBatch,
    ) -> protocols.Episode | types.MemberFailure:
        grader = grading.MemberGrader(
            batch=batch,
            record=lease.prompt,
            sample_id=f"{lease.group_id}.{lease.attempt}.{index}.{attempt}",
            attempt=1,
            suite=_suite(lease),
        )
        began = self._clock.monotonic()
        seed = generation.derived_seed(lease.seed, index, attempt)
        try:
            episode = await self._flow_of(lease).collector.arun_episode(
                llm_client=client, gconfig=lease.sampling, task=task, grader=grader, seed=seed
            )
        except errors.RLJobError:
            raise
        except Exception as error:  # boundary: a user's workflow may raise anything
            redaction.log(logger, "the workflow", error, keys={"group": lease.group_id, "sample": index})
            raise errors.EpisodeError(f"the workflow raised {redaction.describe(error)}") from error
        self._metrics.histogram("rljob_episode_seconds").observe(self._clock.monotonic() - began)
        if episode is None or not episode.rows:
            return types.MemberFailure(sample_index=index, role="rollout", reason="rejected", infra=False)
        rows = tuple(dataclasses.replace(row, sample_index=index) for row in episode.rows)
        return dataclasses.replace(episode, rows=rows)

    def _failure(self, index: int, lease: types.GroupLease, error: errors.RLJobError) -> types.MemberFailure:
        return types.MemberFailure(
            sample_index=index,
            role=_role_of(error),
            reason=filters.failure_reason(error, self._sources.of(lease)),
            detail=str(error)[:512],
            infra=error.fault is errors.Fault.INFRA,
        )

    def _group(
        self,
        lease: types.GroupLease,
        outcomes: list[protocols.Episode | types.MemberFailure],
        times: wait_accounting.GroupTimes,
    ) -> types.PromptGroup:
        rows = _rows(outcomes)
        if lease.kind is enums.GroupKind.EVALUATION:
            # The coordinator writes the responses, and holds no tokenizer.
            rows = [_with_text(row, self._flow.tokens) for row in rows]
        tokens = self._metrics.counter("rljob_tokens_total")
        tokens.inc(sum(row.num_sampled for row in rows), kind="generated")
        tokens.inc(sum(row.prompt_len for row in rows), kind="prompt")
        return types.PromptGroup(
            lease_id=lease.lease_id,
            group_id=lease.group_id,
            attempt=lease.attempt,
            trajectories=rows,
            failures=[outcome for outcome in outcomes if isinstance(outcome, types.MemberFailure)],
            generate_started_at=times.started_at,
            generate_finished_at=times.finished_at,
            verify_s=times.verify_s,
        )


def _role_of(error: errors.RLJobError) -> enums.Role:
    """Return whose failure an error is."""
    if isinstance(error, errors.JudgeError):
        return enums.Role.JUDGE
    if isinstance(error, errors.PlaceError):
        return enums.Role.ENVIRONMENT
    of_verifier = isinstance(error, (errors.GraderError, errors.SandboxError))
    return enums.Role.VERIFIER if of_verifier else enums.Role.ROLLOUT


def _rows(outcomes: list[protocols.Episode | types.MemberFailure]) -> list[types.Trajectory]:
    return [row for outcome in outcomes if isinstance(outcome, protocols.Episode) for row in outcome.rows]


def _suite(lease: types.GroupLease) -> str:
    return lease.prompt.source if lease.kind is enums.GroupKind.EVALUATION else ""


def _task(record: types.PromptRecord, tokens: protocols.Tokens) -> protocols.Task:
    ids = tokens.prompt_ids(record)
    if not ids:
        raise errors.DataError(f"record {record.prompt_id} of {record.source} has an empty prompt")
    return protocols.Task(record=record, input_ids=ids, prompt_text=tokens.decode_exact(ids))


def _with_text(row: types.Trajectory, tokens: protocols.Tokens) -> types.Trajectory:
    ids, before = list(row.tokens), row.prompt_len
    return dataclasses.replace(
        row, prompt_text=tokens.decode_exact(ids[:before]), output_text=tokens.decode_exact(ids[before:])
    )


def _too_long(index: int, why: str) -> types.MemberFailure:
    return types.MemberFailure(
        sample_index=index, role=enums.Role.ROLLOUT, reason=enums.DropReason.TOO_LONG, detail=why[:512], infra=False
    )


def _keys(lease: types.GroupLease, index: int, error: errors.RLJobError) -> dict[str, object]:
    return {"group": lease.group_id, "lease": lease.lease_id, "sample": index, "error_class": error.name}
