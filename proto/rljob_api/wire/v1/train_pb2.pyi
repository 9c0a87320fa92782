from rljob_api.wire.v1 import work_pb2 as _work_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class FetchRequest(_message.Message):
    __slots__ = ("session", "step", "rank", "world_size", "wait_s", "stop")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    WORLD_SIZE_FIELD_NUMBER: _ClassVar[int]
    WAIT_S_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    session: str
    step: int
    rank: int
    world_size: int
    wait_s: float
    stop: bool
    def __init__(self, session: _Optional[str] = ..., step: _Optional[int] = ..., rank: _Optional[int] = ..., world_size: _Optional[int] = ..., wait_s: _Optional[float] = ..., stop: bool = ...) -> None: ...

class BatchPart(_message.Message):
    __slots__ = ("header", "micro_batch")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    MICRO_BATCH_FIELD_NUMBER: _ClassVar[int]
    header: BatchHeader
    micro_batch: MicroBatch
    def __init__(self, header: _Optional[_Union[BatchHeader, _Mapping]] = ..., micro_batch: _Optional[_Union[MicroBatch, _Mapping]] = ...) -> None: ...

class BatchHeader(_message.Message):
    __slots__ = ("kind", "step", "trainer_version", "num_updates", "num_micro_batches", "minibatches", "wait_reason", "lost_version", "sft_steps")
    class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        BATCH: _ClassVar[BatchHeader.Kind]
        NOT_READY: _ClassVar[BatchHeader.Kind]
        STOP: _ClassVar[BatchHeader.Kind]
        FINISHED: _ClassVar[BatchHeader.Kind]
    BATCH: BatchHeader.Kind
    NOT_READY: BatchHeader.Kind
    STOP: BatchHeader.Kind
    FINISHED: BatchHeader.Kind
    KIND_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    TRAINER_VERSION_FIELD_NUMBER: _ClassVar[int]
    NUM_UPDATES_FIELD_NUMBER: _ClassVar[int]
    NUM_MICRO_BATCHES_FIELD_NUMBER: _ClassVar[int]
    MINIBATCHES_FIELD_NUMBER: _ClassVar[int]
    WAIT_REASON_FIELD_NUMBER: _ClassVar[int]
    LOST_VERSION_FIELD_NUMBER: _ClassVar[int]
    SFT_STEPS_FIELD_NUMBER: _ClassVar[int]
    kind: BatchHeader.Kind
    step: int
    trainer_version: int
    num_updates: int
    num_micro_batches: int
    minibatches: _containers.RepeatedCompositeFieldContainer[Minibatch]
    wait_reason: str
    lost_version: int
    sft_steps: int
    def __init__(self, kind: _Optional[_Union[BatchHeader.Kind, str]] = ..., step: _Optional[int] = ..., trainer_version: _Optional[int] = ..., num_updates: _Optional[int] = ..., num_micro_batches: _Optional[int] = ..., minibatches: _Optional[_Iterable[_Union[Minibatch, _Mapping]]] = ..., wait_reason: _Optional[str] = ..., lost_version: _Optional[int] = ..., sft_steps: _Optional[int] = ...) -> None: ...

class Minibatch(_message.Message):
    __slots__ = ("num_tokens", "num_rows")
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_ROWS_FIELD_NUMBER: _ClassVar[int]
    num_tokens: int
    num_rows: int
    def __init__(self, num_tokens: _Optional[int] = ..., num_rows: _Optional[int] = ...) -> None: ...

class Segment(_message.Message):
    __slots__ = ("start", "end", "parent")
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    PARENT_FIELD_NUMBER: _ClassVar[int]
    start: int
    end: int
    parent: int
    def __init__(self, start: _Optional[int] = ..., end: _Optional[int] = ..., parent: _Optional[int] = ...) -> None: ...

class RowHeader(_message.Message):
    __slots__ = ("group_id", "sample_index", "num_tokens", "row", "raw_reward", "shaped_reward", "truncated", "masked", "group")
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_INDEX_FIELD_NUMBER: _ClassVar[int]
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ROW_FIELD_NUMBER: _ClassVar[int]
    RAW_REWARD_FIELD_NUMBER: _ClassVar[int]
    SHAPED_REWARD_FIELD_NUMBER: _ClassVar[int]
    TRUNCATED_FIELD_NUMBER: _ClassVar[int]
    MASKED_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    group_id: str
    sample_index: int
    num_tokens: int
    row: int
    raw_reward: float
    shaped_reward: float
    truncated: bool
    masked: bool
    group: int
    def __init__(self, group_id: _Optional[str] = ..., sample_index: _Optional[int] = ..., num_tokens: _Optional[int] = ..., row: _Optional[int] = ..., raw_reward: _Optional[float] = ..., shaped_reward: _Optional[float] = ..., truncated: bool = ..., masked: bool = ..., group: _Optional[int] = ...) -> None: ...

class MicroBatch(_message.Message):
    __slots__ = ("update", "tokens", "position_ids", "segments", "target_index", "predictor_index", "logprobs", "advantages", "version_steps", "row_index", "rows", "rewards", "turn_ids", "oldest_step", "pictures")
    UPDATE_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    POSITION_IDS_FIELD_NUMBER: _ClassVar[int]
    SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    TARGET_INDEX_FIELD_NUMBER: _ClassVar[int]
    PREDICTOR_INDEX_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    ADVANTAGES_FIELD_NUMBER: _ClassVar[int]
    VERSION_STEPS_FIELD_NUMBER: _ClassVar[int]
    ROW_INDEX_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    REWARDS_FIELD_NUMBER: _ClassVar[int]
    TURN_IDS_FIELD_NUMBER: _ClassVar[int]
    OLDEST_STEP_FIELD_NUMBER: _ClassVar[int]
    PICTURES_FIELD_NUMBER: _ClassVar[int]
    update: int
    tokens: bytes
    position_ids: bytes
    segments: _containers.RepeatedCompositeFieldContainer[Segment]
    target_index: bytes
    predictor_index: bytes
    logprobs: bytes
    advantages: bytes
    version_steps: bytes
    row_index: bytes
    rows: _containers.RepeatedCompositeFieldContainer[RowHeader]
    rewards: bytes
    turn_ids: bytes
    oldest_step: int
    pictures: _containers.RepeatedCompositeFieldContainer[_work_pb2.Picture]
    def __init__(self, update: _Optional[int] = ..., tokens: _Optional[bytes] = ..., position_ids: _Optional[bytes] = ..., segments: _Optional[_Iterable[_Union[Segment, _Mapping]]] = ..., target_index: _Optional[bytes] = ..., predictor_index: _Optional[bytes] = ..., logprobs: _Optional[bytes] = ..., advantages: _Optional[bytes] = ..., version_steps: _Optional[bytes] = ..., row_index: _Optional[bytes] = ..., rows: _Optional[_Iterable[_Union[RowHeader, _Mapping]]] = ..., rewards: _Optional[bytes] = ..., turn_ids: _Optional[bytes] = ..., oldest_step: _Optional[int] = ..., pictures: _Optional[_Iterable[_Union[_work_pb2.Picture, _Mapping]]] = ...) -> None: ...

class CommitStepRequest(_message.Message):
    __slots__ = ("session", "step", "stats", "started_at", "finished_at", "storage_problem")
    class StatsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    SESSION_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    STATS_FIELD_NUMBER: _ClassVar[int]
    STARTED_AT_FIELD_NUMBER: _ClassVar[int]
    FINISHED_AT_FIELD_NUMBER: _ClassVar[int]
    STORAGE_PROBLEM_FIELD_NUMBER: _ClassVar[int]
    session: str
    step: int
    stats: _containers.ScalarMap[str, float]
    started_at: float
    finished_at: float
    storage_problem: str
    def __init__(self, session: _Optional[str] = ..., step: _Optional[int] = ..., stats: _Optional[_Mapping[str, float]] = ..., started_at: _Optional[float] = ..., finished_at: _Optional[float] = ..., storage_problem: _Optional[str] = ...) -> None: ...

class CommitStepReply(_message.Message):
    __slots__ = ("duplicate",)
    DUPLICATE_FIELD_NUMBER: _ClassVar[int]
    duplicate: bool
    def __init__(self, duplicate: bool = ...) -> None: ...

class CommitCheckpointRequest(_message.Message):
    __slots__ = ("session", "step", "uri", "seconds", "final")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    URI_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    FINAL_FIELD_NUMBER: _ClassVar[int]
    session: str
    step: int
    uri: str
    seconds: float
    final: bool
    def __init__(self, session: _Optional[str] = ..., step: _Optional[int] = ..., uri: _Optional[str] = ..., seconds: _Optional[float] = ..., final: bool = ...) -> None: ...

class CommitCheckpointReply(_message.Message):
    __slots__ = ("deletable_steps",)
    DELETABLE_STEPS_FIELD_NUMBER: _ClassVar[int]
    deletable_steps: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, deletable_steps: _Optional[_Iterable[int]] = ...) -> None: ...
