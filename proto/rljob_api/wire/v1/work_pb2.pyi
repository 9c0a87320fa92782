from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class RegisterRequest(_message.Message):
    __slots__ = ("role", "pod", "boot_id", "attempt", "rank", "resume_step", "initial_state_hash")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    POD_FIELD_NUMBER: _ClassVar[int]
    BOOT_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    RESUME_STEP_FIELD_NUMBER: _ClassVar[int]
    INITIAL_STATE_HASH_FIELD_NUMBER: _ClassVar[int]
    role: str
    pod: str
    boot_id: str
    attempt: int
    rank: int
    resume_step: int
    initial_state_hash: str
    def __init__(self, role: _Optional[str] = ..., pod: _Optional[str] = ..., boot_id: _Optional[str] = ..., attempt: _Optional[int] = ..., rank: _Optional[int] = ..., resume_step: _Optional[int] = ..., initial_state_hash: _Optional[str] = ...) -> None: ...

class RegisterReply(_message.Message):
    __slots__ = ("token", "head_version", "head_step", "heartbeat_s")
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    HEAD_VERSION_FIELD_NUMBER: _ClassVar[int]
    HEAD_STEP_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_S_FIELD_NUMBER: _ClassVar[int]
    token: str
    head_version: int
    head_step: int
    heartbeat_s: float
    def __init__(self, token: _Optional[str] = ..., head_version: _Optional[int] = ..., head_step: _Optional[int] = ..., heartbeat_s: _Optional[float] = ...) -> None: ...

class Sampling(_message.Message):
    __slots__ = ("temperature", "top_p", "top_k", "min_p", "max_tokens", "min_tokens", "stop", "stop_token_ids", "ignore_eos", "greedy", "include_stop")
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    MIN_P_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MIN_TOKENS_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    IGNORE_EOS_FIELD_NUMBER: _ClassVar[int]
    GREEDY_FIELD_NUMBER: _ClassVar[int]
    INCLUDE_STOP_FIELD_NUMBER: _ClassVar[int]
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    max_tokens: int
    min_tokens: int
    stop: _containers.RepeatedScalarFieldContainer[str]
    stop_token_ids: _containers.RepeatedScalarFieldContainer[int]
    ignore_eos: bool
    greedy: bool
    include_stop: bool
    def __init__(self, temperature: _Optional[float] = ..., top_p: _Optional[float] = ..., top_k: _Optional[int] = ..., min_p: _Optional[float] = ..., max_tokens: _Optional[int] = ..., min_tokens: _Optional[int] = ..., stop: _Optional[_Iterable[str]] = ..., stop_token_ids: _Optional[_Iterable[int]] = ..., ignore_eos: bool = ..., greedy: bool = ..., include_stop: bool = ...) -> None: ...

class PromptRecord(_message.Message):
    __slots__ = ("prompt_id", "source", "columns", "epoch", "pictures")
    PROMPT_ID_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    PICTURES_FIELD_NUMBER: _ClassVar[int]
    prompt_id: str
    source: str
    columns: str
    epoch: int
    pictures: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, prompt_id: _Optional[str] = ..., source: _Optional[str] = ..., columns: _Optional[str] = ..., epoch: _Optional[int] = ..., pictures: _Optional[_Iterable[bytes]] = ...) -> None: ...

class Picture(_message.Message):
    __slots__ = ("start", "data")
    START_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    start: int
    data: bytes
    def __init__(self, start: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...

class GroupLease(_message.Message):
    __slots__ = ("lease_id", "group_id", "kind", "attempt", "deadline_s", "prompt", "group_size", "sampling", "seed", "version_floor_step", "pinned_version", "from_version", "lease_order")
    class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        TRAIN: _ClassVar[GroupLease.Kind]
        EVALUATION: _ClassVar[GroupLease.Kind]
        EXAMPLE: _ClassVar[GroupLease.Kind]
    TRAIN: GroupLease.Kind
    EVALUATION: GroupLease.Kind
    EXAMPLE: GroupLease.Kind
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_S_FIELD_NUMBER: _ClassVar[int]
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    GROUP_SIZE_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    VERSION_FLOOR_STEP_FIELD_NUMBER: _ClassVar[int]
    PINNED_VERSION_FIELD_NUMBER: _ClassVar[int]
    FROM_VERSION_FIELD_NUMBER: _ClassVar[int]
    LEASE_ORDER_FIELD_NUMBER: _ClassVar[int]
    lease_id: str
    group_id: str
    kind: GroupLease.Kind
    attempt: int
    deadline_s: float
    prompt: PromptRecord
    group_size: int
    sampling: Sampling
    seed: int
    version_floor_step: int
    pinned_version: int
    from_version: int
    lease_order: int
    def __init__(self, lease_id: _Optional[str] = ..., group_id: _Optional[str] = ..., kind: _Optional[_Union[GroupLease.Kind, str]] = ..., attempt: _Optional[int] = ..., deadline_s: _Optional[float] = ..., prompt: _Optional[_Union[PromptRecord, _Mapping]] = ..., group_size: _Optional[int] = ..., sampling: _Optional[_Union[Sampling, _Mapping]] = ..., seed: _Optional[int] = ..., version_floor_step: _Optional[int] = ..., pinned_version: _Optional[int] = ..., from_version: _Optional[int] = ..., lease_order: _Optional[int] = ...) -> None: ...

class LeaseRequest(_message.Message):
    __slots__ = ("session", "capacity", "serving_version", "wait_s", "ahead")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    CAPACITY_FIELD_NUMBER: _ClassVar[int]
    SERVING_VERSION_FIELD_NUMBER: _ClassVar[int]
    WAIT_S_FIELD_NUMBER: _ClassVar[int]
    AHEAD_FIELD_NUMBER: _ClassVar[int]
    session: str
    capacity: int
    serving_version: int
    wait_s: float
    ahead: bool
    def __init__(self, session: _Optional[str] = ..., capacity: _Optional[int] = ..., serving_version: _Optional[int] = ..., wait_s: _Optional[float] = ..., ahead: bool = ...) -> None: ...

class LeaseReply(_message.Message):
    __slots__ = ("leases", "wait_reason", "finished")
    LEASES_FIELD_NUMBER: _ClassVar[int]
    WAIT_REASON_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    leases: _containers.RepeatedCompositeFieldContainer[GroupLease]
    wait_reason: str
    finished: bool
    def __init__(self, leases: _Optional[_Iterable[_Union[GroupLease, _Mapping]]] = ..., wait_reason: _Optional[str] = ..., finished: bool = ...) -> None: ...

class WeightSync(_message.Message):
    __slots__ = ("version", "step", "fetch_s", "verify_s", "pause_s", "apply_s", "total_s", "num_bytes", "requests_in_flight", "failure", "finished_at", "delta_bytes")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    FETCH_S_FIELD_NUMBER: _ClassVar[int]
    VERIFY_S_FIELD_NUMBER: _ClassVar[int]
    PAUSE_S_FIELD_NUMBER: _ClassVar[int]
    APPLY_S_FIELD_NUMBER: _ClassVar[int]
    TOTAL_S_FIELD_NUMBER: _ClassVar[int]
    NUM_BYTES_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    FINISHED_AT_FIELD_NUMBER: _ClassVar[int]
    DELTA_BYTES_FIELD_NUMBER: _ClassVar[int]
    version: int
    step: int
    fetch_s: float
    verify_s: float
    pause_s: float
    apply_s: float
    total_s: float
    num_bytes: int
    requests_in_flight: int
    failure: str
    finished_at: float
    delta_bytes: int
    def __init__(self, version: _Optional[int] = ..., step: _Optional[int] = ..., fetch_s: _Optional[float] = ..., verify_s: _Optional[float] = ..., pause_s: _Optional[float] = ..., apply_s: _Optional[float] = ..., total_s: _Optional[float] = ..., num_bytes: _Optional[int] = ..., requests_in_flight: _Optional[int] = ..., failure: _Optional[str] = ..., finished_at: _Optional[float] = ..., delta_bytes: _Optional[int] = ...) -> None: ...

class RolloutLoad(_message.Message):
    __slots__ = ("running_sequences", "groups_in_flight", "generated_tokens", "prompt_tokens", "generating_s", "paused_s", "wait_s", "waiting_for", "waiting_since", "dump_failures")
    class WaitSEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    RUNNING_SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    GROUPS_IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    GENERATED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    GENERATING_S_FIELD_NUMBER: _ClassVar[int]
    PAUSED_S_FIELD_NUMBER: _ClassVar[int]
    WAIT_S_FIELD_NUMBER: _ClassVar[int]
    WAITING_FOR_FIELD_NUMBER: _ClassVar[int]
    WAITING_SINCE_FIELD_NUMBER: _ClassVar[int]
    DUMP_FAILURES_FIELD_NUMBER: _ClassVar[int]
    running_sequences: int
    groups_in_flight: int
    generated_tokens: int
    prompt_tokens: int
    generating_s: float
    paused_s: float
    wait_s: _containers.ScalarMap[str, float]
    waiting_for: str
    waiting_since: float
    dump_failures: int
    def __init__(self, running_sequences: _Optional[int] = ..., groups_in_flight: _Optional[int] = ..., generated_tokens: _Optional[int] = ..., prompt_tokens: _Optional[int] = ..., generating_s: _Optional[float] = ..., paused_s: _Optional[float] = ..., wait_s: _Optional[_Mapping[str, float]] = ..., waiting_for: _Optional[str] = ..., waiting_since: _Optional[float] = ..., dump_failures: _Optional[int] = ...) -> None: ...

class WeightOffer(_message.Message):
    __slots__ = ("address", "artifact_ids")
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    ARTIFACT_IDS_FIELD_NUMBER: _ClassVar[int]
    address: str
    artifact_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, address: _Optional[str] = ..., artifact_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class HeartbeatRequest(_message.Message):
    __slots__ = ("session", "lease_ids", "serving_version", "receiver_state", "load", "syncs", "draining", "offer")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    LEASE_IDS_FIELD_NUMBER: _ClassVar[int]
    SERVING_VERSION_FIELD_NUMBER: _ClassVar[int]
    RECEIVER_STATE_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    SYNCS_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    OFFER_FIELD_NUMBER: _ClassVar[int]
    session: str
    lease_ids: _containers.RepeatedScalarFieldContainer[str]
    serving_version: int
    receiver_state: str
    load: RolloutLoad
    syncs: _containers.RepeatedCompositeFieldContainer[WeightSync]
    draining: bool
    offer: WeightOffer
    def __init__(self, session: _Optional[str] = ..., lease_ids: _Optional[_Iterable[str]] = ..., serving_version: _Optional[int] = ..., receiver_state: _Optional[str] = ..., load: _Optional[_Union[RolloutLoad, _Mapping]] = ..., syncs: _Optional[_Iterable[_Union[WeightSync, _Mapping]]] = ..., draining: bool = ..., offer: _Optional[_Union[WeightOffer, _Mapping]] = ...) -> None: ...

class HeartbeatReply(_message.Message):
    __slots__ = ("drain", "cancel", "load_version", "finished")
    DRAIN_FIELD_NUMBER: _ClassVar[int]
    CANCEL_FIELD_NUMBER: _ClassVar[int]
    LOAD_VERSION_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    drain: bool
    cancel: _containers.RepeatedScalarFieldContainer[str]
    load_version: int
    finished: bool
    def __init__(self, drain: bool = ..., cancel: _Optional[_Iterable[str]] = ..., load_version: _Optional[int] = ..., finished: bool = ...) -> None: ...

class WatchRequest(_message.Message):
    __slots__ = ("session",)
    SESSION_FIELD_NUMBER: _ClassVar[int]
    session: str
    def __init__(self, session: _Optional[str] = ...) -> None: ...

class Announcement(_message.Message):
    __slots__ = ("cancel", "load_version")
    CANCEL_FIELD_NUMBER: _ClassVar[int]
    LOAD_VERSION_FIELD_NUMBER: _ClassVar[int]
    cancel: _containers.RepeatedScalarFieldContainer[str]
    load_version: int
    def __init__(self, cancel: _Optional[_Iterable[str]] = ..., load_version: _Optional[int] = ...) -> None: ...

class VersionSpan(_message.Message):
    __slots__ = ("start", "end", "version")
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    start: int
    end: int
    version: int
    def __init__(self, start: _Optional[int] = ..., end: _Optional[int] = ..., version: _Optional[int] = ...) -> None: ...

class Trajectory(_message.Message):
    __slots__ = ("tokens", "loss_mask", "logprobs", "versions", "turn_ids", "truncated", "reward", "raw_reward", "verdict", "sample_index", "stop_reason", "num_turns", "prompt_text", "output_text", "output_chars", "turn_rewards")
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    LOSS_MASK_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    TURN_IDS_FIELD_NUMBER: _ClassVar[int]
    TRUNCATED_FIELD_NUMBER: _ClassVar[int]
    REWARD_FIELD_NUMBER: _ClassVar[int]
    RAW_REWARD_FIELD_NUMBER: _ClassVar[int]
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_INDEX_FIELD_NUMBER: _ClassVar[int]
    STOP_REASON_FIELD_NUMBER: _ClassVar[int]
    NUM_TURNS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TEXT_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_TEXT_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_CHARS_FIELD_NUMBER: _ClassVar[int]
    TURN_REWARDS_FIELD_NUMBER: _ClassVar[int]
    tokens: bytes
    loss_mask: bytes
    logprobs: bytes
    versions: _containers.RepeatedCompositeFieldContainer[VersionSpan]
    turn_ids: bytes
    truncated: bool
    reward: float
    raw_reward: float
    verdict: Verdict
    sample_index: int
    stop_reason: str
    num_turns: int
    prompt_text: str
    output_text: str
    output_chars: int
    turn_rewards: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, tokens: _Optional[bytes] = ..., loss_mask: _Optional[bytes] = ..., logprobs: _Optional[bytes] = ..., versions: _Optional[_Iterable[_Union[VersionSpan, _Mapping]]] = ..., turn_ids: _Optional[bytes] = ..., truncated: bool = ..., reward: _Optional[float] = ..., raw_reward: _Optional[float] = ..., verdict: _Optional[_Union[Verdict, _Mapping]] = ..., sample_index: _Optional[int] = ..., stop_reason: _Optional[str] = ..., num_turns: _Optional[int] = ..., prompt_text: _Optional[str] = ..., output_text: _Optional[str] = ..., output_chars: _Optional[int] = ..., turn_rewards: _Optional[_Iterable[float]] = ...) -> None: ...

class Verdict(_message.Message):
    __slots__ = ("reward", "reason", "formatted", "truncated", "extracted", "detail", "parts", "outcome", "grader", "cpu_s", "wall_s", "attempt", "case_results", "error_code", "grader_version")
    class PartsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    REWARD_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    FORMATTED_FIELD_NUMBER: _ClassVar[int]
    TRUNCATED_FIELD_NUMBER: _ClassVar[int]
    EXTRACTED_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    GRADER_FIELD_NUMBER: _ClassVar[int]
    CPU_S_FIELD_NUMBER: _ClassVar[int]
    WALL_S_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    CASE_RESULTS_FIELD_NUMBER: _ClassVar[int]
    ERROR_CODE_FIELD_NUMBER: _ClassVar[int]
    GRADER_VERSION_FIELD_NUMBER: _ClassVar[int]
    reward: float
    reason: str
    formatted: bool
    truncated: bool
    extracted: str
    detail: str
    parts: _containers.ScalarMap[str, float]
    outcome: str
    grader: str
    cpu_s: float
    wall_s: float
    attempt: int
    case_results: _containers.RepeatedScalarFieldContainer[int]
    error_code: int
    grader_version: str
    def __init__(self, reward: _Optional[float] = ..., reason: _Optional[str] = ..., formatted: bool = ..., truncated: bool = ..., extracted: _Optional[str] = ..., detail: _Optional[str] = ..., parts: _Optional[_Mapping[str, float]] = ..., outcome: _Optional[str] = ..., grader: _Optional[str] = ..., cpu_s: _Optional[float] = ..., wall_s: _Optional[float] = ..., attempt: _Optional[int] = ..., case_results: _Optional[_Iterable[int]] = ..., error_code: _Optional[int] = ..., grader_version: _Optional[str] = ...) -> None: ...

class MemberFailure(_message.Message):
    __slots__ = ("sample_index", "role", "reason", "detail", "infra")
    SAMPLE_INDEX_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    INFRA_FIELD_NUMBER: _ClassVar[int]
    sample_index: int
    role: str
    reason: str
    detail: str
    infra: bool
    def __init__(self, sample_index: _Optional[int] = ..., role: _Optional[str] = ..., reason: _Optional[str] = ..., detail: _Optional[str] = ..., infra: bool = ...) -> None: ...

class SubmitRequest(_message.Message):
    __slots__ = ("session", "lease_id", "group_id", "attempt", "trajectories", "failures", "generate_started_at", "generate_finished_at", "verify_s", "rejected", "repeated_tokens", "cached_tokens", "pictures")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    TRAJECTORIES_FIELD_NUMBER: _ClassVar[int]
    FAILURES_FIELD_NUMBER: _ClassVar[int]
    GENERATE_STARTED_AT_FIELD_NUMBER: _ClassVar[int]
    GENERATE_FINISHED_AT_FIELD_NUMBER: _ClassVar[int]
    VERIFY_S_FIELD_NUMBER: _ClassVar[int]
    REJECTED_FIELD_NUMBER: _ClassVar[int]
    REPEATED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PICTURES_FIELD_NUMBER: _ClassVar[int]
    session: str
    lease_id: str
    group_id: str
    attempt: int
    trajectories: _containers.RepeatedCompositeFieldContainer[Trajectory]
    failures: _containers.RepeatedCompositeFieldContainer[MemberFailure]
    generate_started_at: float
    generate_finished_at: float
    verify_s: float
    rejected: bool
    repeated_tokens: int
    cached_tokens: int
    pictures: _containers.RepeatedCompositeFieldContainer[Picture]
    def __init__(self, session: _Optional[str] = ..., lease_id: _Optional[str] = ..., group_id: _Optional[str] = ..., attempt: _Optional[int] = ..., trajectories: _Optional[_Iterable[_Union[Trajectory, _Mapping]]] = ..., failures: _Optional[_Iterable[_Union[MemberFailure, _Mapping]]] = ..., generate_started_at: _Optional[float] = ..., generate_finished_at: _Optional[float] = ..., verify_s: _Optional[float] = ..., rejected: bool = ..., repeated_tokens: _Optional[int] = ..., cached_tokens: _Optional[int] = ..., pictures: _Optional[_Iterable[_Union[Picture, _Mapping]]] = ...) -> None: ...

class SubmitReply(_message.Message):
    __slots__ = ("outcome", "detail", "duplicate")
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    DUPLICATE_FIELD_NUMBER: _ClassVar[int]
    outcome: str
    detail: str
    duplicate: bool
    def __init__(self, outcome: _Optional[str] = ..., detail: _Optional[str] = ..., duplicate: bool = ...) -> None: ...

class ReleaseRequest(_message.Message):
    __slots__ = ("session", "lease_id", "reason")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    session: str
    lease_id: str
    reason: str
    def __init__(self, session: _Optional[str] = ..., lease_id: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class ReleaseReply(_message.Message):
    __slots__ = ("released",)
    RELEASED_FIELD_NUMBER: _ClassVar[int]
    released: bool
    def __init__(self, released: bool = ...) -> None: ...
