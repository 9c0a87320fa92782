"""The rollouts' conversation: register, lease, heartbeat, submit, release. The ledger decides; this waits and
reports.
"""

import dataclasses
import functools
from collections.abc import AsyncIterator, Sequence

from rljob_api import enums, errors, process_config, types
from rljob_workers.coordinator import changes, context
from rljob_workers.coordinator.ledger import (
    checkpoints,
    database,
    evaluations,
    groups,
    leases,
    queries,
    sessions,
    submissions,
    versions,
)
from rljob_workers.coordinator.policy import prompts, version_rules
from rljob_workers.coordinator.reporting import evaluation, processes, status

# Announcements end that soon after their session was closed, even if nothing changes.
_WATCH_S = 10.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """A Register call."""

    role: enums.Role
    pod: str
    boot_id: str
    attempt: int
    rank: int
    resume_step: int
    initial_state_hash: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A Heartbeat call."""

    lease_ids: Sequence[str]
    serving_version: int
    receiver_state: str
    load: types.RolloutLoad
    syncs: Sequence[types.WeightSync]
    draining: bool
    offer: types.WeightOffer = types.NO_OFFER


class Dispatch:
    """Answers the `Work` service."""

    def __init__(self, parts: context.CoordinatorContext) -> None:
        self._context = parts
        self._live: set[int] = set()
        self._members_of: tuple[object, ...] = ()
        self._looked_at = 0.0

    async def register(self, call: Registration) -> types.Session:
        """Open a session; a newer process or trainer attempt fences the older, whose leases are offered again at
        once.
        """
        now = self._context.clock.now()

        def open_session(ledger: database.Ledger) -> tuple[types.SessionToken, list[str], version_rules.Registered]:
            sessions.agree_on_initial_state(ledger, call.initial_state_hash)
            token, replaced = sessions.open_session(ledger,
                role=call.role, pod=call.pod, boot_id=call.boot_id, attempt=call.attempt, rank=call.rank,
                resume_step=call.resume_step, now=now,
            )  # fmt: skip
            for old in replaced:
                leases.lose_all_of(ledger, old, now=now)
            # In the transaction that fenced the ranks before: none of them commits a step between the two.
            if call.role is enums.Role.TRAINER:
                checkpoints.begin_attempt(
                    ledger,
                    attempt=call.attempt,
                    rank=call.rank,
                    resume_step=call.resume_step,
                    replaced=bool(replaced),
                    now=now,
                )
            elif replaced:
                ledger.note({"kind": "restart", "at": now, "role": call.role, "pod": call.pod})
            return token, replaced, versions.head(ledger)

        token, replaced, head = await self._context.ledger.run(open_session)
        pod = processes.Pod(
            token=token, role=call.role, pod=call.pod, attempt=call.attempt, rank=call.rank, last_seen=now
        )
        self._context.pods.add(pod, replaced=replaced)
        if replaced:
            # The announcements of the sessions that it replaced end.
            self._context.changes.loads.notify()
        return types.Session(
            token=token,
            head_version=types.VersionId(head.version),
            head_step=head.step,
            heartbeat_s=self._context.config.heartbeat_s,
        )

    async def lease(
        self, *, token: str, capacity: int, serving_version: int, wait_s: float, ahead: bool = False
    ) -> types.LeaseGrant:
        """Long poll for leases; answers at once when there are any, when the run is finished, or when the rollout has
        reported another version since: it asks again for that one. `ahead`: also for the version that it is told to
        load, from the moment that it is told.
        """
        capacity = most_leases(capacity, shows=self._context.config.spec.data.has_pictures)
        end = self._context.clock.monotonic() + wait_s
        reported = self._context.pods.serving(token)
        while True:
            mark = self._context.changes.mark
            self._context.pods.record_contact(token, now=self._context.clock.now())
            evaluates = token in await self._evaluators()
            leases, reason, finished, step = await self._context.ledger.run(
                functools.partial(self._lease, token, capacity, serving_version, ahead, evaluates)
            )
            self._context.pods.granted(token, [lease.lease_id for lease in leases])
            left_s = end - self._context.clock.monotonic()
            if leases or finished or left_s <= 0 or self._context.pods.serving(token) != reported:
                return types.LeaseGrant(leases=leases, wait_reason="" if leases else reason, finished=finished)
            demand = changes.LeaseDemand(
                token=token, version=serving_version, step=step, capacity=capacity, reason=reason,
                evaluates=evaluates, ahead=ahead,
            )  # fmt: skip
            await self._context.changes.wait_for_lease(demand, mark, left_s)

    def _lease(
        self, token: str, capacity: int, serving_version: int, ahead: bool, evaluates: bool, ledger: database.Ledger
    ) -> tuple[list[types.GroupLease], str, bool, int | None]:
        """Return the leases, why there are not more, whether the run is finished, and the step that is served."""
        running = evaluations.oldest_evaluation(ledger) if evaluates else None
        if running is not None and serving_version > running[1]:
            # It is to go back to what is evaluated, and does once it holds nothing more.
            return [], str(enums.WaitReason.WEIGHTS), False, None
        load = version_rules.version_to_load(
            head=versions.head(ledger).version,
            evaluating=None if running is None else running[1],
            serving=serving_version,
            idle=False,
        )
        granted, reason = leases.lease(
            ledger,
            token=token,
            capacity=capacity,
            serving_version=serving_version,
            take=self._context.order.take,
            now=self._context.clock.now(),
            evaluates=evaluates,
            coming_version=load if ahead and load > serving_version else None,
            take_examples=None if self._context.examples is None else self._context.examples.take,
        )
        finished = not granted and status.is_finished(self._context.config, queries.completion(ledger))
        step = None if granted else groups.version_steps(ledger, [serving_version]).get(serving_version)
        return [self._group_lease(lease) for lease in granted], str(reason or ""), finished, step

    async def _evaluators(self) -> frozenset[str]:
        """Return who serves the version that is evaluated; looked at again for another one, another fleet, or later."""
        pulse, pods_, now = self._context.changes.pulse, self._context.pods, self._context.clock.monotonic()
        if pulse.evaluating is None:
            pods_.evaluators = frozenset()
            return pods_.evaluators
        ended = pulse.committed >= pulse.completion.last_step
        key = (pulse.evaluating, pulse.evaluations, ended, pods_.num_changes)
        if key != self._members_of or now - self._looked_at >= self._context.config.heartbeat_s:
            holders = await self._context.ledger.run(evaluations.evaluating_sessions)
            silent_s = status.silent_s(self._context.config)
            servers = [
                evaluation.Server(token=pod.token, pod=pod.pod, version=pod.serving_version, holds=pod.token in holders)
                for pod in pods_.all(enums.Role.ROLLOUT)
                if self._context.clock.now() - pod.last_seen <= silent_s and not pod.draining
            ]
            pods_.evaluators = evaluation.members(
                servers,
                version=pulse.evaluating,
                fraction=self._context.config.spec.evaluation.rollout_fraction,
                waiting=pulse.evaluations,
                training_ended=ended,
            )
            self._members_of, self._looked_at = key, now
        return pods_.evaluators

    def _group_lease(self, lease: leases.Lease) -> types.GroupLease:
        evaluating = lease.kind is enums.GroupKind.EVALUATION
        config = self._context.config
        return types.GroupLease(
            lease_id=lease.lease_id,
            group_id=lease.group_id,
            kind=lease.kind,
            attempt=lease.attempt,
            deadline_s=config.lease_s,
            prompt=self._context.record(lease.ref, evaluating=evaluating),
            group_size=lease.group_size,
            sampling=config.sampling_of(lease.ref.source) if evaluating else config.sampling,
            seed=prompts.group_seed(seed=_seed(config, evaluating=evaluating), ref=lease.ref, attempt=lease.attempt),
            version_floor_step=lease.floor_step,
            from_version=types.VersionId(lease.from_version),
            pinned_version=None if lease.pinned_version is None else types.VersionId(lease.pinned_version),
            lease_order=lease.lease_order,
        )

    async def heartbeat(self, token: str, report: Report) -> types.HeartbeatReply:
        """Renew leases, take the report, and say what to cancel and which version to serve."""
        now = self._context.clock.now()
        before = self._context.pods.serving(token)
        pod = self._context.pods.report(
            token, serving_version=report.serving_version, receiver_state=report.receiver_state, load=report.load,
            draining=report.draining, now=now, lease_ids=report.lease_ids,
        )  # fmt: skip
        if before != report.serving_version:
            self._context.changes.serves(token)
        if pod is not None:
            self._context.tracker.offers(token, report.offer, now=self._context.clock.monotonic())

        def beat(ledger: database.Ledger) -> list[types.LeaseId]:
            cancel = leases.renew(ledger, token=token, lease_ids=report.lease_ids, now=now)
            if report.syncs:
                name = sessions.check_session(ledger, token, enums.Role.ROLLOUT)["pod"]
                for sync in sorted(report.syncs, key=lambda sync: sync.finished_at):
                    versions.note_sync(ledger, pod=name, sync=sync, now=now)
            if pod is not None:
                self._note_live(ledger, pod, now)
            return cancel

        cancel = await self._context.ledger.run(beat)
        # As of this commit or a later one: what is to be cancelled was cancelled before the head moved.
        load = await self._to_load(token, serving=report.serving_version, idle=not report.lease_ids)
        finished = status.is_finished(self._context.config, self._context.changes.pulse.completion)
        return types.HeartbeatReply(drain=False, cancel=cancel, load_version=types.VersionId(load), finished=finished)

    async def watch(self, token: str) -> AsyncIterator[types.Announcement]:
        """Yield what a rollout is to cancel and to load, whenever that is newer than what it reported last; the groups
        are those that it named in its last heartbeat or was granted since. Raises FencedError once the session was
        replaced.

        It never sends anyone back: only a rollout that holds nothing goes back, and only its heartbeat says so. Nor
        does it tell a rollout anything that has not reported, as after a restart of this process: what that would have
        to cancel first is not known.
        """
        announced: tuple[int, int] | None = None
        while True:
            mark = self._context.changes.loads.mark
            cancel = await self._context.ledger.run(
                leases.withdrawn, token=token, lease_ids=self._context.pods.leases_of(token)
            )
            # As of that commit or a later one: what is to be cancelled was cancelled before the head moved.
            serving = self._context.pods.serving(token)
            load = await self._to_load(token, serving=serving, idle=False)
            if types.NO_VERSION < serving < load and announced != (serving, load):
                announced = (serving, load)
                yield types.Announcement(cancel=cancel, load_version=types.VersionId(load))
            await self._context.changes.loads.wait(mark, _WATCH_S)

    async def _to_load(self, token: str, *, serving: int, idle: bool) -> int:
        pulse = self._context.changes.pulse
        evaluates = token in await self._evaluators()
        return version_rules.version_to_load(
            head=pulse.head_version,
            evaluating=pulse.evaluating if evaluates else None,
            serving=serving,
            idle=idle,
        )

    def _note_live(self, ledger: database.Ledger, pod: processes.Pod, now: float) -> None:
        if pod.serving_version in self._live:
            return
        version = versions.find(ledger, pod.serving_version)
        if version is None:
            return
        config = self._context.config
        ready = processes.is_ready(
            pod, serving_step=version.step, head_step=versions.head(ledger).step,
            bound=config.spec.async_.max_off_policy_steps, now=now, silent_s=status.silent_s(config),
        )  # fmt: skip
        if ready:
            versions.mark_live(ledger, version.version, now=now)
            self._live.add(version.version)

    async def submit(self, token: str, group: types.PromptGroup, payload: bytes = b"") -> types.SubmitReply:
        """Accept a group, or say why not; what is answered is durable. `payload`: the group's message as it came."""
        now = self._context.clock.now()
        self._context.pods.record_contact(token, now=now)
        return await self._context.ledger.run(
            submissions.accept,
            token=token,
            group=group,
            now=now,
            payload=payload,
        )

    async def release(self, *, token: str, lease_id: str, reason: str) -> bool:
        now = self._context.clock.now()
        return await self._context.ledger.run(leases.release, token=token, lease_id=lease_id, reason=reason, now=now)


def most_leases(capacity: int, *, shows: bool) -> int:
    """Return how many leases an answer has at most; a rollout asks again for the rest. shows: with pictures, which a
    message holds of a few records.
    """
    return min(capacity, enums.LEASES_WITH_PICTURES) if shows else capacity


def _seed(config: process_config.CoordinatorConfig, *, evaluating: bool) -> int:
    return prompts.derive("evaluation", config.spec.seed) if evaluating else config.spec.seed


def role_of(name: str) -> enums.Role:
    """Raises WireError for an unknown one."""
    try:
        return enums.Role(name)
    except ValueError as error:
        raise errors.WireError(f"unknown role {name!r}; expected one of {', '.join(enums.Role)}") from error
