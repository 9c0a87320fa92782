"""Types to messages and back, by the names of their fields: one table says which message carries which type.

A field has one name in the dataclass and in the .proto. Its annotation and its descriptor say how it travels: enums by
name or value, arrays as raw little-endian bytes (decoded as views of the message's bytes, never copied), open mappings
as JSON, everything else as it is. For each pair two functions are written out and compiled once, at import, as
`dataclasses` does with `__init__`; a converter that looked at fields for each row would be several times slower.
"""

import array
import dataclasses
import enum
import json
import sys
import types as python_types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

from google.protobuf.descriptor import FieldDescriptor

from rljob_api import errors, types
from rljob_api.wire.v1 import status_pb2, train_pb2, verify_pb2, weights_pb2, work_pb2

T = TypeVar("T")

if sys.byteorder != "little":
    raise ImportError("rljob's wire arrays are little-endian; this machine is not")

# A type stands below those that it is made of.
MESSAGES: dict[type, Any] = {
    types.Sampling: work_pb2.Sampling,
    types.PromptRecord: work_pb2.PromptRecord,
    types.Picture: work_pb2.Picture,
    types.GroupLease: work_pb2.GroupLease,
    types.LeaseGrant: work_pb2.LeaseReply,
    types.Session: work_pb2.RegisterReply,
    types.RolloutLoad: work_pb2.RolloutLoad,
    types.WeightSync: work_pb2.WeightSync,
    types.HeartbeatReply: work_pb2.HeartbeatReply,
    types.Announcement: work_pb2.Announcement,
    types.Verdict: work_pb2.Verdict,
    types.Trajectory: work_pb2.Trajectory,
    types.MemberFailure: work_pb2.MemberFailure,
    types.PromptGroup: work_pb2.SubmitRequest,
    types.SubmitReply: work_pb2.SubmitReply,
    types.VerifyItem: verify_pb2.VerifyItem,
    types.Minibatch: train_pb2.Minibatch,
    types.BatchHeader: train_pb2.BatchHeader,
    types.Segment: train_pb2.Segment,
    types.RowHeader: train_pb2.RowHeader,
    types.MicroBatch: train_pb2.MicroBatch,
    types.TensorSpec: weights_pb2.TensorSpec,
    types.Layout: weights_pb2.Layout,
    types.Artifact: weights_pb2.Artifact,
    types.WeightVersion: weights_pb2.WeightVersion,
    types.WeightSource: weights_pb2.WeightSource,
    types.VersionPlan: weights_pb2.ManifestReply,
    types.PieceSources: weights_pb2.PiecesReply,
    types.WeightOffer: work_pb2.WeightOffer,
    types.Waiting: status_pb2.Waiting,
    types.PodStatus: status_pb2.PodStatus,
    types.EvaluationResult: status_pb2.EvaluationResult,
    types.Concern: status_pb2.Concern,
    types.TrainerAttempt: status_pb2.TrainerAttempt,
    types.RunStatus: status_pb2.StatusReply,
}
_ENCODERS: dict[type, Callable[[Any], Any]] = {}
_DECODERS: dict[type, Callable[[Any, bool], Any]] = {}


def to_message(value: object) -> Any:
    """Return the message of a value whose type is in `MESSAGES`."""
    return _ENCODERS[type(value)](value)


def from_message(kind: type[T], message: Any, *, checked: bool = False) -> T:
    """Return the value that a message carries; `checked`: its rows were, when they were accepted.

    Raises WireError for what `kind` does not allow: arrays cut short, unknown members of an enum, rows that break the
    rules of rows.
    """
    value: T = _DECODERS[kind](message, checked)
    return value


def encode(value: object) -> bytes:
    """Return the bytes of a value's message; the ledger keeps groups, versions and layouts so."""
    data: bytes = to_message(value).SerializeToString()
    return data


def decode(kind: type[T], data: bytes, *, checked: bool = False) -> T:
    """Return the value of `encode` bytes; see `from_message`."""
    return from_message(kind, MESSAGES[kind].FromString(data), checked=checked)


def encode_micro_batch(batch: types.MicroBatch) -> bytes:
    """Return the bytes of a part of a FetchBatch stream, as they are stored and sent again and again."""
    return train_pb2.BatchPart(micro_batch=to_message(batch)).SerializeToString()


def decode_micro_batch(data: bytes) -> types.MicroBatch:
    return from_message(types.MicroBatch, train_pb2.BatchPart.FromString(data).micro_batch)


def view(data: bytes, code: str) -> Any:
    """Return a view of raw bytes as elements of format `code`. Raises WireError for a length that does not fit."""
    if code == "B":
        return memoryview(data)
    if len(data) % 4:
        raise errors.WireError(f"{len(data)} bytes are not a multiple of 4-byte values")
    return memoryview(data).cast(code)  # type: ignore[call-overload]  # typeshed wants a literal code


def columns_from(text: str) -> Mapping[str, object]:
    """Parse a record's columns. Raises WireError if they are no JSON object."""
    try:
        columns = json.loads(text)
    except ValueError as error:
        raise errors.WireError(f"record is not JSON: {error}") from error
    if not isinstance(columns, dict):
        raise errors.WireError(f"record is a JSON {type(columns).__name__}, not an object")
    return columns


def version_spans(versions: types.Ints) -> Iterator[work_pb2.VersionSpan]:
    """Yield runs of equal version ids, leaving out -1. versions [L]."""
    data, length, start = versions.tobytes(), len(versions), 0
    while start < length:
        value, end, size = data[4 * start : 4 * start + 4], start + 1, 1
        # Twice as many at a time while they are equal, then half as many: whole stretches are compared in C.
        while end < length and data[4 * end : 4 * (end + size)] == value * min(size, length - end):
            end, size = min(length, end + size), 2 * size
        while end < length and size > 1:
            size //= 2
            if data[4 * end : 4 * (end + size)] == value * size:
                end += size
        version = int.from_bytes(value, "little", signed=True)
        if version != types.NO_VERSION:
            yield work_pb2.VersionSpan(start=start, end=end, version=version)
        start = end


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


def _repeated(value: int, count: int) -> types.Ints:
    return memoryview(array.array("i", (value,)) * count)


def _member(kind: type[enum.StrEnum], value: str) -> enum.StrEnum:
    try:
        return kind(value)
    except ValueError as error:
        raise errors.WireError(f"unknown {kind.__name__} {value!r}; expected one of {', '.join(kind)}") from error


@dataclasses.dataclass(frozen=True, slots=True)
class _Field:
    """How one field travels: expressions of `v`, the value, and `m`, the message."""

    name: str
    to: str
    back: str


def _kind_of(annotation: Any) -> tuple[Any, bool]:
    """Return an annotation without its None and its NewType, and whether it had None."""
    # `VersionId | None` is a typing.Union, since a NewType is no class; `int | None` is a types.UnionType.
    if typing.get_origin(annotation) in (python_types.UnionType, typing.Union):
        (annotation,) = (kind for kind in typing.get_args(annotation) if kind is not type(None))
        return _kind_of(annotation)[0], True
    return getattr(annotation, "__supertype__", annotation), False


def _field(field: "dataclasses.Field[Any]", wire: FieldDescriptor, scope: dict[str, Any]) -> _Field:
    """Return how a field travels; what its expressions call is added to `scope`."""
    name, (kind, optional) = field.name, _kind_of(field.type)
    to, back = f"v.{name}", f"m.{name}"
    nested = None if wire.message_type is None else _BY_MESSAGE.get(wire.message_type.full_name)
    is_map = wire.message_type is not None and wire.message_type.GetOptions().map_entry
    if wire.message_type is work_pb2.VersionSpan.DESCRIPTOR:
        to, back = f"version_spans({to})", f"versions_from({back}, len(m.tokens) // 4)"
    elif nested is not None:
        scope[f"to_{name}"], scope[f"from_{name}"] = _ENCODERS[nested], _DECODERS[nested]
        if wire.is_repeated:
            to, back = f"[to_{name}(x) for x in {to}]", f"tuple([from_{name}(x, checked) for x in {back}])"
        else:
            to = f"None if {to} is None else to_{name}({to})" if optional else f"to_{name}({to})"
            back = f"from_{name}({back}, checked)"
    elif is_map:
        to, back = f"dict({to})", f"dict({back})"
    elif typing.get_origin(kind) is typing.Annotated:
        to, back = f"{to}.tobytes()", f"view({back}, {typing.get_args(kind)[1]!r})"
    elif typing.get_origin(kind) is Mapping:
        to, back = f"dumps(dict({to}), ensure_ascii=False)", f"columns_from({back})"
    elif wire.enum_type is not None:
        members = {member: wire.enum_type.values_by_name[member.name].number for member in kind}
        scope[f"to_{name}"], scope[f"from_{name}"] = members, {number: member for member, number in members.items()}
        to, back = f"to_{name}[{to}]", f"from_{name}[{back}]"
    elif isinstance(kind, type) and issubclass(kind, enum.StrEnum):
        scope[f"from_{name}"] = kind
        back = f"member(from_{name}, {back})"
    elif wire.is_repeated:
        back = f"tuple({back})"
    if optional:
        back = f"{back} if m.HasField({name!r}) else None"
    return _Field(name, to, back)


def _compile(kind: type, message: Any) -> None:
    scope: dict[str, Any] = {
        "kind": kind, "message": message, "view": view, "member": _member, "dumps": json.dumps,
        "columns_from": columns_from, "version_spans": version_spans, "versions_from": versions_from,
    }  # fmt: skip
    wire = message.DESCRIPTOR.fields_by_name
    fields = [_field(field, wire[field.name], scope) for field in dataclasses.fields(kind)]
    to = ", ".join(f"{field.name}={field.to}" for field in fields)
    back = ", ".join(f"{field.name}={field.back}" for field in fields)
    if kind is types.Trajectory:
        back += ", checked=checked"
    exec(f"def encode(v): return message({to})\ndef decode(m, checked): return kind({back})", scope)  # noqa: S102
    _ENCODERS[kind], _DECODERS[kind] = scope["encode"], scope["decode"]


_BY_MESSAGE = {message.DESCRIPTOR.full_name: kind for kind, message in MESSAGES.items()}
for _kind, _message in MESSAGES.items():
    _compile(_kind, _message)
