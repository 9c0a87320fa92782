"""Types to messages and back. The only module that touches `*_pb2`; arrays are views of the message's bytes."""

import array
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import TypeVar, cast

from rljob_api import errors, names, types
from rljob_api.wire.v1 import status_pb2, train_pb2, verify_pb2, weights_pb2, work_pb2

E = TypeVar("E", bound=StrEnum)

if sys.byteorder != "little":
    raise ImportError("rljob's wire arrays are little-endian; this machine is not")


def ints_from(data: bytes) -> types.Ints:
    """Return an int32 view of raw bytes. Raises WireError if the length is no multiple of 4."""
    return _view(data, "i", 4)


def floats_from(data: bytes) -> types.Floats:
    """Return a float32 view of raw bytes. Raises WireError if the length is no multiple of 4."""
    return cast(types.Floats, _view(data, "f", 4))


def mask_from(data: bytes) -> types.Mask:
    """Return a uint8 view of raw bytes."""
    return memoryview(data)


def _view(data: bytes, code: str, width: int) -> memoryview:
    if len(data) % width:
        raise errors.WireError(f"{len(data)} bytes are no whole number of {width}-byte values")
    view: memoryview = memoryview(data)
    return view.cast(code)  # type: ignore[call-overload,no-any-return]  # typeshed wants a literal code


def sampling_to(sampling: types.Sampling) -> work_pb2.Sampling:
    """Return the message of a Sampling."""
    return work_pb2.Sampling(
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        min_p=sampling.min_p,
        max_tokens=sampling.max_tokens,
        min_tokens=sampling.min_tokens,
        stop=sampling.stop,
        stop_token_ids=sampling.stop_token_ids,
        ignore_eos=sampling.ignore_eos,
        greedy=sampling.greedy,
        include_stop=sampling.include_stop,
    )


def sampling_from(message: work_pb2.Sampling) -> types.Sampling:
    """Return the Sampling of a message."""
    return types.Sampling(
        temperature=message.temperature,
        top_p=message.top_p,
        top_k=message.top_k,
        min_p=message.min_p,
        max_tokens=message.max_tokens,
        min_tokens=message.min_tokens,
        stop=tuple(message.stop),
        stop_token_ids=tuple(message.stop_token_ids),
        ignore_eos=message.ignore_eos,
        greedy=message.greedy,
        include_stop=message.include_stop,
    )


def record_to(record: types.PromptRecord) -> work_pb2.PromptRecord:
    """Return the message of a PromptRecord."""
    return work_pb2.PromptRecord(
        prompt_id=record.prompt_id,
        source=record.source,
        record_json=json.dumps(dict(record.columns), ensure_ascii=False),
        epoch=record.epoch,
    )


def record_from(message: work_pb2.PromptRecord) -> types.PromptRecord:
    """Return the PromptRecord of a message. Raises WireError if its columns are no JSON object."""
    return types.PromptRecord(
        prompt_id=message.prompt_id,
        source=message.source,
        columns=columns_from(message.record_json),
        epoch=message.epoch,
    )


def columns_from(text: str) -> Mapping[str, object]:
    """Parse a record's columns. Raises WireError if they are no JSON object."""
    try:
        columns = json.loads(text)
    except ValueError as error:
        raise errors.WireError(f"record is not JSON: {error}") from error
    if not isinstance(columns, dict):
        raise errors.WireError(f"record is a JSON {type(columns).__name__}, not an object")
    return columns


_KIND_TO = {
    names.GroupKind.TRAIN: work_pb2.GroupLease.TRAIN,
    names.GroupKind.EVALUATION: work_pb2.GroupLease.EVALUATION,
}
_KIND_FROM = {number: kind for kind, number in _KIND_TO.items()}


def lease_to(lease: types.GroupLease) -> work_pb2.GroupLease:
    """Return the message of a GroupLease."""
    return work_pb2.GroupLease(
        lease_id=lease.lease_id,
        group_id=lease.group_id,
        kind=_KIND_TO[lease.kind],
        attempt=lease.attempt,
        deadline_seconds=lease.deadline_s,
        prompt=record_to(lease.prompt),
        group_size=lease.group_size,
        sampling=sampling_to(lease.sampling),
        seed=lease.seed,
        version_floor_step=lease.version_floor_step,
        pinned_version=0 if lease.pinned_version is None else lease.pinned_version,
    )


def lease_from(message: work_pb2.GroupLease) -> types.GroupLease:
    """Return the GroupLease of a message."""
    kind = _KIND_FROM[message.kind]
    return types.GroupLease(
        lease_id=types.LeaseId(message.lease_id),
        group_id=types.GroupId(message.group_id),
        kind=kind,
        attempt=message.attempt,
        deadline_s=message.deadline_seconds,
        prompt=record_from(message.prompt),
        group_size=message.group_size,
        sampling=sampling_from(message.sampling),
        seed=message.seed,
        version_floor_step=message.version_floor_step,
        pinned_version=types.VersionId(message.pinned_version) if kind is names.GroupKind.EVALUATION else None,
    )


def verdict_to(verdict: types.Verdict) -> work_pb2.Verdict:
    """Return the message of a Verdict."""
    return work_pb2.Verdict(
        reward=verdict.reward,
        reason=verdict.reason,
        outcome=verdict.outcome,
        formatted=verdict.formatted,
        truncated=verdict.truncated,
        extracted=verdict.extracted,
        detail=verdict.detail,
        parts=dict(verdict.parts),
        grader=verdict.grader,
        cpu_seconds=verdict.cpu_s,
        wall_seconds=verdict.wall_s,
        attempt=verdict.attempt,
        case_results=verdict.case_results,
        error_code=verdict.error_code,
        grader_version=verdict.grader_version,
    )


def verdict_from(message: work_pb2.Verdict) -> types.Verdict:
    """Return the Verdict of a message. Raises WireError for an unknown reason or outcome or a wrong reward."""
    return types.Verdict(
        reward=message.reward if message.HasField("reward") else None,
        reason=_enum(names.VerdictReason, message.reason),
        outcome=_enum(names.VerifyOutcome, message.outcome),
        formatted=message.formatted,
        truncated=message.truncated,
        extracted=message.extracted,
        detail=message.detail,
        parts=dict(message.parts),
        grader=message.grader,
        cpu_s=message.cpu_seconds,
        wall_s=message.wall_seconds,
        attempt=message.attempt,
        case_results=tuple(message.case_results),
        error_code=message.error_code if message.HasField("error_code") else None,
        grader_version=message.grader_version,
    )


def _enum(kind: type[E], value: str) -> E:
    try:
        return kind(value)
    except ValueError as error:
        raise errors.WireError(f"{value!r} is no {kind.__name__}; known: {', '.join(kind)}") from error


def version_spans(versions: types.Ints) -> Iterable[work_pb2.VersionSpan]:
    """Yield runs of equal version ids, leaving out -1. versions [L]."""
    start = 0
    for index in range(1, len(versions) + 1):
        if index == len(versions) or versions[index] != versions[start]:
            if versions[start] != types.NO_VERSION:
                yield work_pb2.VersionSpan(start=start, end=index, version=versions[start])
            start = index


def _repeated(value: int, count: int) -> types.Ints:
    return memoryview(array.array("i", (value,)) * count)


def versions_from(spans: Iterable[work_pb2.VersionSpan], length: int) -> types.Ints:
    """Return the version id of each token, -1 outside every span. Raises WireError for overlapping spans."""
    versions = _repeated(types.NO_VERSION, length)
    end = 0
    for span in spans:
        if not end <= span.start < span.end <= length:
            raise errors.WireError(
                f"version span [{span.start}, {span.end}) does not fit after {end} in {length} tokens"
            )
        versions[span.start : span.end] = _repeated(span.version, span.end - span.start)
        end = span.end
    return versions


def trajectory_to(row: types.Trajectory) -> work_pb2.Trajectory:
    """Return the message of a Trajectory."""
    return work_pb2.Trajectory(
        tokens=row.tokens.tobytes(),
        loss_mask=row.loss_mask.tobytes(),
        logprobs=row.logprobs.tobytes(),
        versions=version_spans(row.versions),
        turn_ids=row.turn_ids.tobytes(),
        truncated=row.truncated,
        reward=row.reward,
        raw_reward=row.raw_reward,
        verdict=verdict_to(row.verdict),
        sample_index=row.sample_index,
        stop_reason=row.stop_reason,
        num_turns=row.num_turns,
        prompt_text=row.prompt_text,
        output_text=row.output_text,
        output_chars=row.output_chars,
        turn_rewards=row.turn_rewards,
    )


def trajectory_from(message: work_pb2.Trajectory, *, checked: bool = False) -> types.Trajectory:
    """Return the Trajectory of a message. Raises WireError if it breaks the rules; `checked`: known not to."""
    tokens = ints_from(message.tokens)
    return types.Trajectory(
        tokens=tokens,
        loss_mask=mask_from(message.loss_mask),
        logprobs=floats_from(message.logprobs),
        versions=versions_from(message.versions, len(tokens)),
        turn_ids=ints_from(message.turn_ids),
        truncated=message.truncated,
        reward=message.reward,
        raw_reward=message.raw_reward,
        verdict=verdict_from(message.verdict),
        sample_index=message.sample_index,
        stop_reason=message.stop_reason,
        num_turns=message.num_turns,
        prompt_text=message.prompt_text,
        output_text=message.output_text,
        output_chars=message.output_chars if message.HasField("output_chars") else None,
        turn_rewards=tuple(message.turn_rewards),
        checked=checked,
    )


def group_to(group: types.PromptGroup, session: str) -> work_pb2.SubmitRequest:
    """Return the SubmitGroup request of a PromptGroup."""
    return work_pb2.SubmitRequest(
        session=session,
        lease_id=group.lease_id,
        group_id=group.group_id,
        attempt=group.attempt,
        trajectories=[trajectory_to(row) for row in group.trajectories],
        failures=[
            work_pb2.MemberFailure(
                sample_index=failure.sample_index,
                role=failure.role,
                reason=failure.reason,
                detail=failure.detail,
                infra=failure.infra,
            )
            for failure in group.failures
        ],
        generate_started_at=group.generate_started_at,
        generate_finished_at=group.generate_finished_at,
        verify_seconds=group.verify_s,
        rejected=group.rejected,
    )


def group_from(message: work_pb2.SubmitRequest, *, checked: bool = False) -> types.PromptGroup:
    """Return the PromptGroup of a SubmitGroup request. Raises WireError if a trajectory breaks the row's rules."""
    return types.PromptGroup(
        lease_id=types.LeaseId(message.lease_id),
        group_id=types.GroupId(message.group_id),
        attempt=message.attempt,
        trajectories=tuple(trajectory_from(row, checked=checked) for row in message.trajectories),
        failures=tuple(
            types.MemberFailure(
                sample_index=failure.sample_index,
                role=failure.role,
                reason=failure.reason,
                detail=failure.detail,
                infra=failure.infra,
            )
            for failure in message.failures
        ),
        generate_started_at=message.generate_started_at,
        generate_finished_at=message.generate_finished_at,
        verify_s=message.verify_seconds,
        rejected=message.rejected,
    )


def encode_group(group: types.PromptGroup) -> bytes:
    """Return the bytes under which the ledger keeps a group's payload."""
    return group_to(group, "").SerializeToString()


def decode_group(data: bytes, *, checked: bool = False) -> types.PromptGroup:
    """Return the group of `encode_group` bytes; `checked`: its rows were, when it was accepted."""
    return group_from(work_pb2.SubmitRequest.FromString(data), checked=checked)


def load_to(load: types.RolloutLoad) -> work_pb2.RolloutLoad:
    """Return the message of a RolloutLoad."""
    return work_pb2.RolloutLoad(
        running_sequences=load.running_sequences,
        groups_in_flight=load.groups_in_flight,
        generated_tokens=load.generated_tokens,
        prompt_tokens=load.prompt_tokens,
        generating_seconds=load.generating_s,
        paused_seconds=load.paused_s,
        wait_seconds=dict(load.wait_s),
        waiting_for=load.waiting_for,
        waiting_since=load.waiting_since,
        dump_failures=load.dump_failures,
    )


def load_from(message: work_pb2.RolloutLoad) -> types.RolloutLoad:
    """Return the RolloutLoad of a message."""
    return types.RolloutLoad(
        running_sequences=message.running_sequences,
        groups_in_flight=message.groups_in_flight,
        generated_tokens=message.generated_tokens,
        prompt_tokens=message.prompt_tokens,
        generating_s=message.generating_seconds,
        paused_s=message.paused_seconds,
        wait_s=dict(message.wait_seconds),
        waiting_for=message.waiting_for,
        waiting_since=message.waiting_since,
        dump_failures=message.dump_failures,
    )


def sync_to(sync: types.WeightSync) -> work_pb2.WeightSyncReport:
    """Return the message of a WeightSync."""
    return work_pb2.WeightSyncReport(
        version=sync.version,
        step=sync.step,
        fetch_seconds=sync.fetch_s,
        verify_seconds=sync.verify_s,
        pause_seconds=sync.pause_s,
        apply_seconds=sync.apply_s,
        total_seconds=sync.total_s,
        bytes=sync.num_bytes,
        requests_in_flight=sync.requests_in_flight,
        failure=sync.failure,
        finished_at=sync.finished_at,
    )


def sync_from(message: work_pb2.WeightSyncReport) -> types.WeightSync:
    """Return the WeightSync of a message."""
    return types.WeightSync(
        version=types.VersionId(message.version),
        step=message.step,
        fetch_s=message.fetch_seconds,
        verify_s=message.verify_seconds,
        pause_s=message.pause_seconds,
        apply_s=message.apply_seconds,
        total_s=message.total_seconds,
        num_bytes=message.bytes,
        requests_in_flight=message.requests_in_flight,
        finished_at=message.finished_at,
        failure=message.failure,
    )


def item_to(item: types.VerifyItem) -> verify_pb2.VerifyItem:
    """Return the message of a VerifyItem."""
    return verify_pb2.VerifyItem(
        sample_id=item.sample_id,
        attempt=item.attempt,
        prompt=item.prompt,
        completion=item.completion,
        record_json=json.dumps(dict(item.columns), ensure_ascii=False),
        truncated=item.truncated,
        prompt_ids=item.prompt_ids,
        completion_ids=item.completion_ids,
        suite=item.suite,
    )


def item_from(message: verify_pb2.VerifyItem) -> types.VerifyItem:
    """Return the VerifyItem of a message. Raises WireError if its record is no JSON object."""
    return types.VerifyItem(
        sample_id=message.sample_id,
        attempt=message.attempt,
        prompt=message.prompt,
        completion=message.completion,
        columns=columns_from(message.record_json),
        truncated=message.truncated,
        prompt_ids=tuple(message.prompt_ids),
        completion_ids=tuple(message.completion_ids),
        suite=message.suite,
    )


_BATCH_TO = {
    names.BatchKind.BATCH: train_pb2.BatchHeader.BATCH,
    names.BatchKind.NOT_READY: train_pb2.BatchHeader.NOT_READY,
    names.BatchKind.STOP: train_pb2.BatchHeader.STOP,
    names.BatchKind.FINISHED: train_pb2.BatchHeader.FINISHED,
}
_BATCH_FROM = {number: kind for kind, number in _BATCH_TO.items()}


def header_to(header: types.BatchHeader) -> train_pb2.BatchPart:
    """Return the first message of a FetchBatch stream."""
    return train_pb2.BatchPart(
        header=train_pb2.BatchHeader(
            kind=_BATCH_TO[header.kind],
            step=header.step,
            trainer_version=header.trainer_version,
            num_updates=header.num_updates,
            num_micro_batches=header.num_micro_batches,
            minibatches=[
                train_pb2.MinibatchHeader(num_tokens=part.num_tokens, num_rows=part.num_rows)
                for part in header.minibatches
            ],
            wait_reason=header.wait_reason,
        )
    )


def header_from(message: train_pb2.BatchHeader) -> types.BatchHeader:
    """Return the BatchHeader of a message."""
    return types.BatchHeader(
        kind=_BATCH_FROM[message.kind],
        step=message.step,
        trainer_version=message.trainer_version,
        num_updates=message.num_updates,
        num_micro_batches=message.num_micro_batches,
        minibatches=tuple(
            types.Minibatch(num_tokens=part.num_tokens, num_rows=part.num_rows) for part in message.minibatches
        ),
        wait_reason=message.wait_reason,
    )


def micro_batch_to(batch: types.MicroBatch) -> train_pb2.BatchPart:
    """Return a later message of a FetchBatch stream."""
    return train_pb2.BatchPart(
        micro_batch=train_pb2.MicroBatch(
            update=batch.update,
            tokens=batch.tokens.tobytes(),
            position_ids=batch.position_ids.tobytes(),
            segments=[train_pb2.Segment(start=s.start, end=s.end, parent=s.parent) for s in batch.segments],
            target_index=batch.target_index.tobytes(),
            predictor_index=batch.predictor_index.tobytes(),
            logprobs=batch.logprobs.tobytes(),
            advantages=batch.advantages.tobytes(),
            version_steps=batch.version_steps.tobytes(),
            row_index=batch.row_index.tobytes(),
            rewards=batch.rewards.tobytes(),
            turn_ids=batch.turn_ids.tobytes(),
            rows=[
                train_pb2.RowHeader(
                    group_id=row.group_id,
                    sample_index=row.sample_index,
                    num_tokens=row.num_tokens,
                    row=row.row,
                    reward=row.raw_reward,
                    shaped_reward=row.shaped_reward,
                    truncated=row.truncated,
                    masked=row.masked,
                    group=row.group,
                )
                for row in batch.rows
            ],
        )
    )


def micro_batch_from(message: train_pb2.MicroBatch) -> types.MicroBatch:
    """Return the MicroBatch of a message; its arrays are views of the message's bytes."""
    return types.MicroBatch(
        update=message.update,
        tokens=ints_from(message.tokens),
        position_ids=ints_from(message.position_ids),
        segments=tuple(types.Segment(start=s.start, end=s.end, parent=s.parent) for s in message.segments),
        target_index=ints_from(message.target_index),
        predictor_index=ints_from(message.predictor_index),
        logprobs=floats_from(message.logprobs),
        advantages=floats_from(message.advantages),
        version_steps=ints_from(message.version_steps),
        row_index=ints_from(message.row_index),
        rewards=floats_from(message.rewards),
        turn_ids=ints_from(message.turn_ids),
        rows=tuple(
            types.RowHeader(
                group_id=types.GroupId(row.group_id),
                sample_index=row.sample_index,
                num_tokens=row.num_tokens,
                row=row.row,
                raw_reward=row.reward,
                shaped_reward=row.shaped_reward,
                truncated=row.truncated,
                masked=row.masked,
                group=row.group,
            )
            for row in message.rows
        ),
    )


def layout_to(layout: types.Layout) -> weights_pb2.Layout:
    """Return the message of a Layout."""
    return weights_pb2.Layout(
        layout_id=layout.layout_id,
        image_bytes=layout.image_bytes,
        tensors=[
            weights_pb2.TensorSpec(
                name=tensor.name,
                dtype=tensor.dtype,
                shape=tensor.shape,
                offset=tensor.offset,
                length=tensor.length,
                tied=tensor.tied,
            )
            for tensor in layout.tensors
        ],
    )


def layout_from(message: weights_pb2.Layout) -> types.Layout:
    """Return the Layout of a message."""
    return types.Layout(
        layout_id=message.layout_id,
        image_bytes=message.image_bytes,
        tensors=tuple(
            types.TensorSpec(
                name=tensor.name,
                dtype=tensor.dtype,
                shape=tuple(tensor.shape),
                offset=tensor.offset,
                length=tensor.length,
                tied=tuple(tensor.tied),
            )
            for tensor in message.tensors
        ),
    )


def version_to(version: types.WeightVersion) -> weights_pb2.VersionManifest:
    """Return the manifest message of a WeightVersion."""
    return weights_pb2.VersionManifest(
        job=version.job,
        version=version.version,
        step=version.step,
        attempt=version.attempt,
        parent=version.parent,
        created_at=version.created_at,
        layout_id=version.layout_id,
        digests=[weights_pb2.TensorDigest(index=index, xxh3_128=digest) for index, digest in version.digests.items()],
        state_hash=version.state_hash,
        kind=version.kind,
        base=max(version.base, 0),
        base_state_hash=version.base_state_hash,
        artifacts=[
            weights_pb2.Artifact(
                artifact_id=artifact.artifact_id,
                encoding=artifact.encoding,
                bytes=artifact.num_bytes,
                blake3=artifact.artifact_id,
            )
            for artifact in version.artifacts
        ],
        changed=version.changed,
        changed_ratio=version.changed_ratio,
        fallback_reason=version.fallback_reason,
        exporter=version.exporter,
    )


def version_from(message: weights_pb2.VersionManifest) -> types.WeightVersion:
    """Return the WeightVersion of a manifest message."""
    return types.WeightVersion(
        job=message.job,
        version=types.VersionId(message.version),
        step=message.step,
        attempt=message.attempt,
        parent=message.parent,
        created_at=message.created_at,
        layout_id=message.layout_id,
        digests={digest.index: digest.xxh3_128 for digest in message.digests},
        state_hash=message.state_hash,
        kind=message.kind,
        base=message.base if message.kind == "delta" else types.NO_VERSION,
        base_state_hash=message.base_state_hash,
        artifacts=tuple(
            types.Artifact(artifact_id=a.artifact_id, encoding=a.encoding, num_bytes=a.bytes) for a in message.artifacts
        ),
        changed=message.changed,
        changed_ratio=message.changed_ratio,
        fallback_reason=message.fallback_reason,
        exporter=message.exporter,
    )


def encode_version(version: types.WeightVersion) -> bytes:
    """Return the bytes under which the registry keeps a manifest."""
    return version_to(version).SerializeToString()


def decode_version(data: bytes) -> types.WeightVersion:
    """Return the manifest of `encode_version` bytes."""
    return version_from(weights_pb2.VersionManifest.FromString(data))


def encode_layout(layout: types.Layout) -> bytes:
    """Return the bytes under which the registry keeps a layout."""
    return layout_to(layout).SerializeToString()


def decode_layout(data: bytes) -> types.Layout:
    """Return the layout of `encode_layout` bytes."""
    return layout_from(weights_pb2.Layout.FromString(data))


def encode_micro_batch(batch: types.MicroBatch) -> bytes:
    """Return the bytes of a BatchPart, as they are stored and re-served."""
    return micro_batch_to(batch).SerializeToString()


def register_to(
    *,
    role: names.Role,
    pod: str,
    boot_id: str,
    attempt: int = 0,
    rank: int = 0,
    resume_step: int = 0,
    initial_state_hash: str = "",
) -> work_pb2.RegisterRequest:
    """Return a Register request."""
    return work_pb2.RegisterRequest(
        role=role,
        pod=pod,
        boot_id=boot_id,
        attempt=attempt,
        rank=rank,
        resume_step=resume_step,
        initial_state_hash=initial_state_hash,
    )


def session_to(session: types.Session) -> work_pb2.RegisterReply:
    """Return the Register reply of a Session."""
    return work_pb2.RegisterReply(
        session=session.token,
        head_version=session.head_version,
        head_step=session.head_step,
        heartbeat_seconds=session.heartbeat_s,
    )


def session_from(message: work_pb2.RegisterReply) -> types.Session:
    """Return the Session of a Register reply."""
    return types.Session(
        token=types.SessionToken(message.session),
        head_version=types.VersionId(message.head_version),
        head_step=message.head_step,
        heartbeat_s=message.heartbeat_seconds,
    )


def lease_request_to(
    *, session: str, capacity: int, serving_version: types.VersionId, wait_s: float
) -> work_pb2.LeaseRequest:
    """Return a LeaseGroups request."""
    return work_pb2.LeaseRequest(
        session=session, capacity=capacity, serving_version=serving_version, wait_seconds=wait_s
    )


def grant_to(grant: types.LeaseGrant) -> work_pb2.LeaseReply:
    """Return the LeaseGroups reply of a LeaseGrant."""
    return work_pb2.LeaseReply(
        leases=[lease_to(lease) for lease in grant.leases], wait_reason=grant.wait_reason, finished=grant.finished
    )


def grant_from(message: work_pb2.LeaseReply) -> types.LeaseGrant:
    """Return the LeaseGrant of a LeaseGroups reply."""
    return types.LeaseGrant(
        leases=tuple(lease_from(lease) for lease in message.leases),
        wait_reason=message.wait_reason,
        finished=message.finished,
    )


def heartbeat_to(
    *,
    session: str,
    lease_ids: Sequence[types.LeaseId],
    serving_version: types.VersionId,
    receiver_state: names.ReceiverState,
    load: types.RolloutLoad,
    syncs: Sequence[types.WeightSync],
    draining: bool,
) -> work_pb2.HeartbeatRequest:
    """Return a Heartbeat request."""
    return work_pb2.HeartbeatRequest(
        session=session,
        lease_ids=lease_ids,
        serving_version=serving_version,
        receiver_state=receiver_state,
        load=load_to(load),
        syncs=[sync_to(sync) for sync in syncs],
        draining=draining,
    )


def order_to(order: types.HeartbeatOrder) -> work_pb2.HeartbeatReply:
    """Return the Heartbeat reply of a HeartbeatOrder."""
    return work_pb2.HeartbeatReply(
        drain=order.drain, cancel=order.cancel, load_version=order.load_version, finished=order.finished
    )


def order_from(message: work_pb2.HeartbeatReply) -> types.HeartbeatOrder:
    """Return the HeartbeatOrder of a Heartbeat reply."""
    return types.HeartbeatOrder(
        drain=message.drain,
        cancel=tuple(types.LeaseId(lease_id) for lease_id in message.cancel),
        load_version=types.VersionId(message.load_version),
        finished=message.finished,
    )


def answer_to(answer: types.SubmitAnswer) -> work_pb2.SubmitReply:
    """Return the SubmitGroup reply of a SubmitAnswer."""
    return work_pb2.SubmitReply(outcome=answer.outcome, detail=answer.detail, duplicate=answer.duplicate)


def answer_from(message: work_pb2.SubmitReply) -> types.SubmitAnswer:
    """Return the SubmitAnswer of a SubmitGroup reply."""
    return types.SubmitAnswer(
        outcome=_enum(names.TrajectoryOutcome, message.outcome), detail=message.detail, duplicate=message.duplicate
    )


def release_to(*, session: str, lease_id: types.LeaseId, reason: str) -> work_pb2.ReleaseRequest:
    """Return a ReleaseGroup request."""
    return work_pb2.ReleaseRequest(session=session, lease_id=lease_id, reason=reason)


def verify_to(items: Sequence[types.VerifyItem]) -> verify_pb2.VerifyRequest:
    """Return a Verify request."""
    return verify_pb2.VerifyRequest(items=[item_to(item) for item in items])


def verdicts_to(verdicts: Sequence[types.Verdict]) -> verify_pb2.VerifyReply:
    """Return a Verify reply."""
    return verify_pb2.VerifyReply(verdicts=[verdict_to(verdict) for verdict in verdicts])


def fetch_to(
    *, session: str, step: int, rank: int, world_size: int, wait_s: float, stop: bool
) -> train_pb2.FetchRequest:
    """Return a FetchBatch request."""
    return train_pb2.FetchRequest(
        session=session, step=step, rank=rank, world_size=world_size, wait_seconds=wait_s, stop=stop
    )


def commit_step_to(
    *, session: str, step: int, stats: Mapping[str, float], started_at: float, finished_at: float
) -> train_pb2.CommitStepRequest:
    """Return a CommitStep request."""
    return train_pb2.CommitStepRequest(
        session=session, step=step, stats=dict(stats), started_at=started_at, finished_at=finished_at
    )


def commit_checkpoint_to(
    *, session: str, step: int, uri: str, seconds: float, final: bool
) -> train_pb2.CommitCheckpointRequest:
    """Return a CommitCheckpoint request."""
    return train_pb2.CommitCheckpointRequest(session=session, step=step, uri=uri, seconds=seconds, final=final)


def publish_to(
    *, session: str, version: types.WeightVersion, layout: types.Layout | None
) -> weights_pb2.PublishRequest:
    """Return a Publish request; the layout goes along once per job."""
    return weights_pb2.PublishRequest(
        session=session, manifest=version_to(version), layout=None if layout is None else layout_to(layout)
    )


def plan_request_to(*, session: str, want: int, have: int, layout: bool) -> weights_pb2.ManifestRequest:
    """Return a Manifest request; `have` is -1 for nothing."""
    return weights_pb2.ManifestRequest(session=session, want=want, have=max(have, 0), layout=layout)


def plan_to(plan: types.VersionPlan) -> weights_pb2.ManifestReply:
    """Return the Manifest reply of a VersionPlan."""
    return weights_pb2.ManifestReply(
        chain=[version_to(version) for version in plan.chain],
        layout=None if plan.layout is None else layout_to(plan.layout),
        sources=[weights_pb2.Source(address=s.address, kind=s.kind, path=s.path) for s in plan.sources],
    )


def plan_from(message: weights_pb2.ManifestReply) -> types.VersionPlan:
    """Return the VersionPlan of a Manifest reply."""
    return types.VersionPlan(
        chain=tuple(version_from(version) for version in message.chain),
        sources=tuple(types.WeightSource(address=s.address, kind=s.kind, path=s.path) for s in message.sources),
        layout=layout_from(message.layout) if message.HasField("layout") else None,
    )


def pull_to(*, session: str, artifact_id: str, offset: int, length: int) -> bytes:
    """Return the serialised Pull request of the raw store service."""
    return weights_pb2.PullRequest(
        session=session, artifact_id=artifact_id, offset=offset, length=length
    ).SerializeToString()


def pull_from(data: bytes) -> tuple[str, int, int]:
    """Return artifact id, offset and length of a serialised Pull request."""
    message = weights_pb2.PullRequest.FromString(data)
    return message.artifact_id, message.offset, message.length


def upload_reply_to(artifact_id: str, num_bytes: int) -> bytes:
    """Return the serialised Upload reply of the raw store service."""
    return weights_pb2.UploadReply(artifact_id=artifact_id, bytes=num_bytes).SerializeToString()


def upload_reply_from(data: bytes) -> tuple[str, int]:
    """Return artifact id and size of a serialised Upload reply."""
    message = weights_pb2.UploadReply.FromString(data)
    return message.artifact_id, message.bytes


def publish_reply_to(*, outcome: str, head_version: int, detail: str = "") -> weights_pb2.PublishReply:
    """Return a Publish reply; outcome is accepted, repeated, conflict or missing."""
    return weights_pb2.PublishReply(outcome=outcome, head_version=head_version, detail=detail)


def release_reply_to(*, released: bool) -> work_pb2.ReleaseReply:
    """Return a ReleaseGroup reply."""
    return work_pb2.ReleaseReply(released=released)


def commit_step_reply_to(*, duplicate: bool) -> train_pb2.CommitStepReply:
    """Return a CommitStep reply."""
    return train_pb2.CommitStepReply(duplicate=duplicate)


def commit_checkpoint_reply_to(deletable_steps: Sequence[int]) -> train_pb2.CommitCheckpointReply:
    """Return a CommitCheckpoint reply."""
    return train_pb2.CommitCheckpointReply(deletable_steps=deletable_steps)


def decode_micro_batch(data: bytes) -> types.MicroBatch:
    """Return the micro-batch of `encode_micro_batch` bytes."""
    return micro_batch_from(train_pb2.BatchPart.FromString(data).micro_batch)


def batch_part_from(data: bytes) -> train_pb2.BatchPart:
    """Return the stored stream part of `encode_micro_batch` bytes, ready to be sent again."""
    return train_pb2.BatchPart.FromString(data)


def head_change_to(*, version: int, step: int) -> weights_pb2.HeadChange:
    """Return a Watch message."""
    return weights_pb2.HeadChange(version=version, step=step)


def head_from(message: weights_pb2.HeadChange) -> types.VersionId:
    """Return the version that a Watch message names."""
    return types.VersionId(message.version)


def watch_to(session: str) -> weights_pb2.WatchRequest:
    """Return a Watch request."""
    return weights_pb2.WatchRequest(session=session)


def stop_to(reason: str) -> status_pb2.StopRequest:
    """Return a Stop request."""
    return status_pb2.StopRequest(reason=reason)


def stop_reply_to(stop_after_step: int) -> status_pb2.StopReply:
    """Return a Stop reply."""
    return status_pb2.StopReply(stop_after_step=stop_after_step)


def status_request_to(interval_s: float = 0.0) -> status_pb2.StatusRequest:
    """Return a Status or WatchStatus request."""
    return status_pb2.StatusRequest(interval_seconds=interval_s)


def status_to(status: types.RunStatus) -> status_pb2.StatusReply:
    """Return the Status reply of a RunStatus."""
    return status_pb2.StatusReply(
        job=status.job,
        phase=status.phase,
        reason=status.reason,
        step=status.step,
        max_steps=status.max_steps,
        published_version=status.published_version,
        live_version=status.live_version,
        oldest_serving_version=status.oldest_serving_version,
        version_lag_steps=status.version_lag_steps,
        progress=status.progress,
        last_progress_at=status.last_progress_at,
        queue_depth=dict(status.queue_depth),
        trajectories=dict(status.trajectories),
        reward_mean=status.reward_mean,
        reward_delta=status.reward_delta,
        pods=[
            status_pb2.PodStatus(
                role=pod.role,
                pod=pod.pod,
                serving_version=max(pod.serving_version, 0),
                serving_step=pod.serving_step,
                leases=pod.leases,
                last_seen=pod.last_seen,
                state=pod.state,
                attempt=pod.attempt,
                rank=pod.rank,
                ready=pod.ready,
            )
            for pod in status.pods
        ],
        waiting=[
            status_pb2.Waiting(role=w.role, pod=w.pod, what=w.what, on_role=w.on_role, since=w.since)
            for w in status.waiting
        ],
        evaluations=[
            status_pb2.EvaluationResult(
                suite=e.suite,
                step=e.step,
                version=e.version,
                accuracy=e.accuracy,
                n=e.n,
                score=e.score,
                pass_at_k=e.pass_at_k,
            )
            for e in status.evaluations
        ],
        checkpoint_step=status.checkpoint_step,
        checkpoint_uri=status.checkpoint_uri,
        checkpoint_at=status.checkpoint_at,
        trainer_wait_share=status.trainer_wait_share,
        rollout_wait_share=status.rollout_wait_share,
        tokens_per_second=status.tokens_per_s,
        step_seconds=status.step_s,
        config_generation=status.config_generation,
        started_at=status.started_at,
        first_step_at=status.first_step_at,
        evaluating=status.evaluating,
        dump_failures=status.dump_failures,
        failure=status.failure,
        left_out=dict(status.left_out),
        failing_role=status.failing_role,
        attempts=[
            status_pb2.TrainerAttempt(attempt=one.attempt, resume_step=one.resume_step, first_step_at=one.first_step_at)
            for one in status.attempts
        ],
        said_at=status.said_at,
    )


def status_from(message: status_pb2.StatusReply) -> types.RunStatus:
    """Return the RunStatus of a Status reply. Raises WireError for an unknown phase."""
    return types.RunStatus(
        job=message.job,
        phase=_enum(names.Phase, message.phase),
        reason=message.reason,
        step=message.step,
        max_steps=message.max_steps,
        published_version=message.published_version,
        live_version=message.live_version,
        oldest_serving_version=message.oldest_serving_version,
        version_lag_steps=message.version_lag_steps,
        progress=message.progress,
        last_progress_at=message.last_progress_at,
        queue_depth=dict(message.queue_depth),
        trajectories=dict(message.trajectories),
        reward_mean=message.reward_mean if message.HasField("reward_mean") else None,
        reward_delta=message.reward_delta if message.HasField("reward_delta") else None,
        pods=tuple(
            types.PodStatus(
                role=pod.role,
                pod=pod.pod,
                serving_version=pod.serving_version,
                serving_step=pod.serving_step,
                leases=pod.leases,
                last_seen=pod.last_seen,
                state=pod.state,
                attempt=pod.attempt,
                rank=pod.rank,
                ready=pod.ready,
            )
            for pod in message.pods
        ),
        waiting=tuple(
            types.Waiting(role=w.role, pod=w.pod, what=w.what, on_role=w.on_role, since=w.since)
            for w in message.waiting
        ),
        evaluations=tuple(
            types.EvaluationResult(
                suite=e.suite,
                step=e.step,
                version=e.version,
                accuracy=e.accuracy,
                n=e.n,
                score=e.score,
                pass_at_k=e.pass_at_k,
            )
            for e in message.evaluations
        ),
        checkpoint_step=message.checkpoint_step,
        checkpoint_uri=message.checkpoint_uri,
        checkpoint_at=message.checkpoint_at,
        trainer_wait_share=message.trainer_wait_share,
        rollout_wait_share=message.rollout_wait_share,
        tokens_per_s=message.tokens_per_second,
        step_s=message.step_seconds,
        config_generation=message.config_generation,
        started_at=message.started_at,
        first_step_at=message.first_step_at,
        evaluating=message.evaluating,
        dump_failures=message.dump_failures,
        failure=message.failure,
        left_out=dict(message.left_out),
        failing_role=message.failing_role,
        attempts=tuple(
            types.TrainerAttempt(attempt=one.attempt, resume_step=one.resume_step, first_step_at=one.first_step_at)
            for one in message.attempts
        ),
        said_at=message.said_at,
    )
