import dataclasses
import enum
import typing
from collections.abc import Mapping
from typing import Any

import hypothesis
import hypothesis.strategies as st
import pytest
from google.protobuf.descriptor import FieldDescriptor

from rljob_api import enums, errors, types
from rljob_api.wire import codec
from rljob_testing import makers

token = st.integers(0, 2**31 - 1)
# What only a peer of the same name sends along with the value.
BESIDE = {"session"}
WIRE = {
    FieldDescriptor.CPPTYPE_DOUBLE: st.floats(allow_nan=False),
    FieldDescriptor.CPPTYPE_INT32: st.integers(-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_INT64: st.integers(-(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_UINT32: st.integers(0, 2**32 - 1),
    FieldDescriptor.CPPTYPE_UINT64: st.integers(0, 2**64 - 1),
    FieldDescriptor.CPPTYPE_BOOL: st.booleans(),
    FieldDescriptor.CPPTYPE_STRING: st.text(max_size=9),
}
logprob = st.floats(-50, 0, width=32)


@st.composite
def trajectories(draw: st.DrawFn) -> types.Trajectory:
    prompt = draw(st.lists(token, min_size=1, max_size=20))
    completion = draw(st.lists(token, min_size=1, max_size=20))
    count = len(completion)
    made = makers.make_trajectory(
        prompt=prompt,
        completion=completion,
        versions=sorted(draw(st.lists(st.integers(0, 9), min_size=count, max_size=count))),
        logprobs=draw(st.lists(logprob, min_size=count, max_size=count)),
        reward=draw(st.floats(-1e6, 1e6)),
        sample_index=draw(st.integers(0, 63)),
        truncated=draw(st.booleans()),
    )
    return dataclasses.replace(made, turn_rewards=tuple(draw(st.lists(st.floats(-1e6, 1e6), max_size=1))))


@st.composite
def artifacts(draw: st.DrawFn) -> types.Artifact:
    num_bytes, piece_bytes = draw(st.integers(0, 2**64 - 1)), 0
    num_pieces = draw(st.integers(0, 4))
    if num_pieces:
        piece_bytes = draw(st.integers(1, 2**32))
        num_bytes = num_pieces * piece_bytes - draw(st.integers(0, piece_bytes - 1))
    return types.Artifact(
        artifact_id=draw(st.text(max_size=9)),
        encoding=draw(st.sampled_from(enums.Encoding)),
        num_bytes=num_bytes,
        piece_bytes=piece_bytes,
        pieces=draw(st.binary(min_size=16 * num_pieces, max_size=16 * num_pieces)),
    )


def scalars(wire: FieldDescriptor) -> st.SearchStrategy[Any]:
    """Return values of a field of the wire that is no message."""
    return st.binary(max_size=5) if wire.type == wire.TYPE_BYTES else WIRE[wire.cpp_type]


def values(kind: type, field: "dataclasses.Field[Any]", wire: FieldDescriptor) -> st.SearchStrategy[Any]:
    """Return values of one field, by its annotation and by what its message can carry."""
    own, _ = codec._kind_of(field.type)
    # Not as the codec finds out: it has to come to the same.
    optional = type(None) in typing.get_args(field.type)
    if typing.get_origin(own) is typing.Annotated:
        code = typing.get_args(own)[1]
        made: st.SearchStrategy[Any] = st.lists(logprob if code == "f" else st.integers(0, 1), max_size=5).map(
            {"i": types.ints, "f": types.floats, "B": types.mask}[code]  # type: ignore[arg-type]
        )
    elif typing.get_origin(own) is Mapping and wire.message_type is None:
        made = st.dictionaries(st.text(max_size=3), st.none() | st.integers() | st.text(max_size=3), max_size=3)
    elif typing.get_origin(own) is Mapping:
        key, value = map(scalars, wire.message_type.fields)
        made = st.dictionaries(key, value, max_size=3)
    elif wire.message_type is not None:
        made = instances(next(k for k, m in codec.MESSAGES.items() if m.DESCRIPTOR is wire.message_type))
    elif isinstance(own, type) and issubclass(own, enum.StrEnum):
        made = st.sampled_from(list(own))
    else:
        made = scalars(wire)
    if wire.is_repeated and typing.get_origin(own) not in (Mapping, typing.Annotated):
        made = st.lists(made, max_size=3).map(tuple)
    return st.none() | made if optional else made


def instances(kind: type) -> st.SearchStrategy[Any]:
    """Return values of a type of the wire, with every field that its message has."""
    if kind is types.Trajectory:
        return trajectories()
    if kind is types.Artifact:
        return artifacts()
    if kind is types.Verdict:
        return st.builds(makers.make_verdict, st.floats(-9, 9))
    wire = codec.MESSAGES[kind].DESCRIPTOR.fields_by_name
    return st.builds(kind, **{one.name: values(kind, one, wire[one.name]) for one in dataclasses.fields(kind)})


@pytest.mark.parametrize("kind", codec.MESSAGES, ids=lambda kind: kind.__name__)
@hypothesis.settings(max_examples=25, suppress_health_check=[hypothesis.HealthCheck.too_slow])
@hypothesis.given(data=st.data())
def test_every_type_comes_back_from_its_bytes_as_it_was(kind: type, data: st.DataObject) -> None:
    value = data.draw(instances(kind))
    assert codec.decode(kind, codec.encode(value)) == value


@pytest.mark.parametrize("kind", codec.MESSAGES, ids=lambda kind: kind.__name__)
def test_a_message_has_the_fields_of_its_type_under_the_same_names(kind: type) -> None:
    fields = {field.name for field in dataclasses.fields(kind)}
    assert set(codec.MESSAGES[kind].DESCRIPTOR.fields_by_name) - BESIDE == fields


@hypothesis.given(st.lists(st.tuples(st.integers(-1, 3), st.integers(1, 40)), max_size=9))
def test_version_spans_give_the_versions_back_whatever_their_runs(runs: list[tuple[int, int]]) -> None:
    versions = types.ints(value for value, count in runs for _ in range(count))
    spans = list(codec.version_spans(versions))
    assert codec.versions_from(spans, len(versions)) == versions
    borders = [(span.start, span.end) for span in spans]
    assert all(versions[start - 1] != versions[start] for start, _ in borders if start)


@pytest.mark.covers("workflows 1.3")
@hypothesis.given(st.lists(trajectories(), max_size=4))
def test_group_comes_back_from_its_bytes_as_it_was(rows: list[types.Trajectory]) -> None:
    failure = types.MemberFailure(sample_index=7, role="verifier", reason="timeout", detail="no answer", infra=True)
    group = types.PromptGroup(
        lease_id=types.LeaseId("l"),
        group_id=types.GroupId("g"),
        attempt=3,
        trajectories=tuple(rows),
        failures=(failure,),
        generate_started_at=1.5,
        generate_finished_at=2.5,
        verify_s=0.25,
        rejected=True,
    )
    assert codec.decode(types.PromptGroup, codec.encode(group)) == group


def test_the_texts_of_an_evaluation_row_come_back() -> None:
    row = dataclasses.replace(makers.make_trajectory(), prompt_text="Q", output_text="A<|im_end|>", output_chars=1)
    assert codec.from_message(types.Trajectory, codec.to_message(row)) == row


def test_decoded_arrays_are_views_of_the_message_not_copies() -> None:
    data = bytes(range(8))
    assert codec.view(data, "i").obj is data


def test_bytes_that_are_no_whole_values_are_refused() -> None:
    with pytest.raises(errors.WireError, match="not a multiple of 4-byte values"):
        codec.view(b"12345", "i")


@pytest.mark.parametrize("spans", [[(0, 3, 1), (2, 4, 2)], [(3, 3, 1)], [(2, 9, 1)]])
def test_version_spans_that_overlap_or_stick_out_are_refused(spans: list[tuple[int, int, int]]) -> None:
    request = codec.to_message(makers.make_group())
    row = request.trajectories[0]
    del row.versions[:]
    for start, end, version in spans:
        row.versions.add(start=start, end=end, version=version)
    with pytest.raises(errors.WireError, match="does not fit"):
        codec.from_message(types.PromptGroup, request)


def test_version_spans_are_runs_of_equal_ids_without_the_prompt() -> None:
    row = makers.make_trajectory(prompt=(1, 2), completion=(3, 4, 5), versions=[6, 6, 7])
    message = codec.to_message(row)
    assert [(span.start, span.end, span.version) for span in message.versions] == [(2, 4, 6), (4, 5, 7)]


def test_micro_batch_comes_back_from_its_bytes_as_it_was() -> None:
    batch = types.MicroBatch(
        update=1,
        tokens=types.ints([1, 2, 3, 4]),
        position_ids=types.ints([0, 1, 2, 2]),
        segments=(
            types.Segment(start=0, end=2),
            types.Segment(start=2, end=3, parent=0),
            types.Segment(start=3, end=4, parent=0),
        ),
        target_index=types.ints([2, 3]),
        predictor_index=types.ints([1, 1]),
        logprobs=types.floats([-0.5, -1.5]),
        advantages=types.floats([1.0, -1.0]),
        version_steps=types.ints([0, 1]),
        row_index=types.ints([0, 1]),
        rows=(
            types.RowHeader(
                group_id=types.GroupId("g"), sample_index=0, num_tokens=1, row=0, raw_reward=1, shaped_reward=1
            ),
            types.RowHeader(
                group_id=types.GroupId("g"), sample_index=1, num_tokens=1, row=1, raw_reward=0, shaped_reward=0, group=3
            ),
        ),
        rewards=types.floats([0.0, 0.5]),
        turn_ids=types.ints([0, 2]),
    )
    assert codec.decode_micro_batch(codec.encode_micro_batch(batch)) == batch


def test_lease_of_an_evaluation_keeps_its_pinned_version_zero() -> None:
    lease = types.GroupLease(
        lease_id=types.LeaseId("l"),
        group_id=types.GroupId("g"),
        kind=enums.GroupKind.EVALUATION,
        attempt=1,
        deadline_s=60.0,
        prompt=types.PromptRecord(prompt_id="p", source="s", columns={"prompt": "é", "answer": 3}),
        group_size=1,
        sampling=types.Sampling(greedy=True, stop=("\n",)),
        seed=2**63 + 5,
        pinned_version=types.VersionId(0),
    )
    assert codec.from_message(types.GroupLease, codec.to_message(lease)) == lease
    free = dataclasses.replace(lease, kind=enums.GroupKind.TRAIN, pinned_version=None)
    assert codec.from_message(types.GroupLease, codec.to_message(free)).pinned_version is None


def test_record_that_is_no_json_object_is_refused() -> None:
    with pytest.raises(errors.WireError, match="JSON list, not an object"):
        codec.columns_from("[1]")


def test_unknown_reason_of_a_newer_peer_is_refused_with_the_known_ones() -> None:
    message = codec.to_message(makers.make_verdict(1.0))
    message.reason = "moon_phase"
    with pytest.raises(errors.WireError, match="moon_phase.*expected one of ok, wrong"):
        codec.from_message(types.Verdict, message)


def test_status_comes_back_from_its_message_as_it_was() -> None:
    status = types.RunStatus(
        job="j",
        phase=enums.Phase.RUNNING,
        step=4,
        max_steps=9,
        queue_depth={"queued": 2},
        reward_mean=0.5,
        pods=(types.PodStatus(role="rollout", pod="rollout-0", serving_version=3, ready=True),),
        waiting=(types.Waiting(role="trainer", pod="trainer-0", what="batch 5", on_role="rollout", since=1.0),),
        evaluations=(
            types.EvaluationResult(suite="s", step=0, version=0, accuracy=0.25, n=4, score=0.375, pass_at_k=0.75),
        ),
        dump_failures=2,
        left_out={"too_long": 3},
        failure="record 7 cannot be used",
        attempts=(types.TrainerAttempt(attempt=2, resume_step=3, first_step_at=5.5), types.TrainerAttempt(attempt=3)),
        said_at=9.25,
    )
    assert codec.from_message(types.RunStatus, codec.to_message(status)) == status


@pytest.mark.covers("graders 2.1")
@hypothesis.given(
    prompt_ids=st.lists(token, max_size=9),
    completion_ids=st.lists(token, max_size=9),
    results=st.lists(st.sampled_from((1, 0, -1, -2)), max_size=4),
    code=st.sampled_from((None, -1, -2, -3, -4)),
)
def test_item_and_verdict_come_back_with_ids_and_case_results(
    prompt_ids: list[int], completion_ids: list[int], results: list[int], code: int | None
) -> None:
    item = types.VerifyItem(
        sample_id="s",
        attempt=1,
        prompt="p",
        completion="c",
        columns={"answer": "5"},
        prompt_ids=tuple(prompt_ids),
        completion_ids=tuple(completion_ids),
        suite="held-out",
    )
    assert codec.from_message(types.VerifyItem, codec.to_message(item)) == item
    verdict = types.Verdict(
        reward=0.0,
        reason=enums.VerdictReason.WRONG,
        outcome=enums.VerifyOutcome.FAIL,
        case_results=tuple(results),
        error_code=code,
        grader_version="1.2.3",
    )
    assert codec.from_message(types.Verdict, codec.to_message(verdict)) == verdict
