from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class StatusRequest(_message.Message):
    __slots__ = ("interval_s",)
    INTERVAL_S_FIELD_NUMBER: _ClassVar[int]
    interval_s: float
    def __init__(self, interval_s: _Optional[float] = ...) -> None: ...

class StopRequest(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class StopReply(_message.Message):
    __slots__ = ("stop_after_step",)
    STOP_AFTER_STEP_FIELD_NUMBER: _ClassVar[int]
    stop_after_step: int
    def __init__(self, stop_after_step: _Optional[int] = ...) -> None: ...

class Waiting(_message.Message):
    __slots__ = ("role", "pod", "what", "on_role", "since")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    POD_FIELD_NUMBER: _ClassVar[int]
    WHAT_FIELD_NUMBER: _ClassVar[int]
    ON_ROLE_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    role: str
    pod: str
    what: str
    on_role: str
    since: float
    def __init__(self, role: _Optional[str] = ..., pod: _Optional[str] = ..., what: _Optional[str] = ..., on_role: _Optional[str] = ..., since: _Optional[float] = ...) -> None: ...

class PodStatus(_message.Message):
    __slots__ = ("role", "pod", "serving_version", "serving_step", "leases", "last_seen", "state", "attempt", "rank", "ready")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    POD_FIELD_NUMBER: _ClassVar[int]
    SERVING_VERSION_FIELD_NUMBER: _ClassVar[int]
    SERVING_STEP_FIELD_NUMBER: _ClassVar[int]
    LEASES_FIELD_NUMBER: _ClassVar[int]
    LAST_SEEN_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    role: str
    pod: str
    serving_version: int
    serving_step: int
    leases: int
    last_seen: float
    state: str
    attempt: int
    rank: int
    ready: bool
    def __init__(self, role: _Optional[str] = ..., pod: _Optional[str] = ..., serving_version: _Optional[int] = ..., serving_step: _Optional[int] = ..., leases: _Optional[int] = ..., last_seen: _Optional[float] = ..., state: _Optional[str] = ..., attempt: _Optional[int] = ..., rank: _Optional[int] = ..., ready: bool = ...) -> None: ...

class TrainerAttempt(_message.Message):
    __slots__ = ("attempt", "resume_step", "first_step_at")
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    RESUME_STEP_FIELD_NUMBER: _ClassVar[int]
    FIRST_STEP_AT_FIELD_NUMBER: _ClassVar[int]
    attempt: int
    resume_step: int
    first_step_at: float
    def __init__(self, attempt: _Optional[int] = ..., resume_step: _Optional[int] = ..., first_step_at: _Optional[float] = ...) -> None: ...

class EvaluationResult(_message.Message):
    __slots__ = ("suite", "step", "version", "accuracy", "n", "score", "pass_at_k")
    SUITE_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    ACCURACY_FIELD_NUMBER: _ClassVar[int]
    N_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    PASS_AT_K_FIELD_NUMBER: _ClassVar[int]
    suite: str
    step: int
    version: int
    accuracy: float
    n: int
    score: float
    pass_at_k: float
    def __init__(self, suite: _Optional[str] = ..., step: _Optional[int] = ..., version: _Optional[int] = ..., accuracy: _Optional[float] = ..., n: _Optional[int] = ..., score: _Optional[float] = ..., pass_at_k: _Optional[float] = ...) -> None: ...

class Concern(_message.Message):
    __slots__ = ("reason", "message")
    REASON_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    reason: str
    message: str
    def __init__(self, reason: _Optional[str] = ..., message: _Optional[str] = ...) -> None: ...

class StatusReply(_message.Message):
    __slots__ = ("job", "phase", "reason", "step", "max_steps", "published_version", "live_version", "oldest_serving_version", "version_lag_steps", "progress", "last_progress_at", "queue_depth", "trajectories", "reward_mean", "pods", "waiting", "evaluations", "checkpoint_step", "checkpoint_uri", "checkpoint_at", "trainer_wait_share", "rollout_wait_share", "tokens_per_s", "step_s", "config_generation", "started_at", "first_step_at", "evaluating", "reward_delta", "dump_failures", "failure", "failing_role", "left_out", "attempts", "tokens", "storage_problem", "concerns", "sft_steps", "said_at")
    class QueueDepthEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class TrajectoriesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class LeftOutEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class TokensEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    JOB_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    MAX_STEPS_FIELD_NUMBER: _ClassVar[int]
    PUBLISHED_VERSION_FIELD_NUMBER: _ClassVar[int]
    LIVE_VERSION_FIELD_NUMBER: _ClassVar[int]
    OLDEST_SERVING_VERSION_FIELD_NUMBER: _ClassVar[int]
    VERSION_LAG_STEPS_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    LAST_PROGRESS_AT_FIELD_NUMBER: _ClassVar[int]
    QUEUE_DEPTH_FIELD_NUMBER: _ClassVar[int]
    TRAJECTORIES_FIELD_NUMBER: _ClassVar[int]
    REWARD_MEAN_FIELD_NUMBER: _ClassVar[int]
    PODS_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    EVALUATIONS_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_STEP_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_URI_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_AT_FIELD_NUMBER: _ClassVar[int]
    TRAINER_WAIT_SHARE_FIELD_NUMBER: _ClassVar[int]
    ROLLOUT_WAIT_SHARE_FIELD_NUMBER: _ClassVar[int]
    TOKENS_PER_S_FIELD_NUMBER: _ClassVar[int]
    STEP_S_FIELD_NUMBER: _ClassVar[int]
    CONFIG_GENERATION_FIELD_NUMBER: _ClassVar[int]
    STARTED_AT_FIELD_NUMBER: _ClassVar[int]
    FIRST_STEP_AT_FIELD_NUMBER: _ClassVar[int]
    EVALUATING_FIELD_NUMBER: _ClassVar[int]
    REWARD_DELTA_FIELD_NUMBER: _ClassVar[int]
    DUMP_FAILURES_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    FAILING_ROLE_FIELD_NUMBER: _ClassVar[int]
    LEFT_OUT_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    STORAGE_PROBLEM_FIELD_NUMBER: _ClassVar[int]
    CONCERNS_FIELD_NUMBER: _ClassVar[int]
    SFT_STEPS_FIELD_NUMBER: _ClassVar[int]
    SAID_AT_FIELD_NUMBER: _ClassVar[int]
    job: str
    phase: str
    reason: str
    step: int
    max_steps: int
    published_version: int
    live_version: int
    oldest_serving_version: int
    version_lag_steps: int
    progress: int
    last_progress_at: float
    queue_depth: _containers.ScalarMap[str, int]
    trajectories: _containers.ScalarMap[str, int]
    reward_mean: float
    pods: _containers.RepeatedCompositeFieldContainer[PodStatus]
    waiting: _containers.RepeatedCompositeFieldContainer[Waiting]
    evaluations: _containers.RepeatedCompositeFieldContainer[EvaluationResult]
    checkpoint_step: int
    checkpoint_uri: str
    checkpoint_at: float
    trainer_wait_share: float
    rollout_wait_share: float
    tokens_per_s: float
    step_s: float
    config_generation: int
    started_at: float
    first_step_at: float
    evaluating: str
    reward_delta: float
    dump_failures: int
    failure: str
    failing_role: str
    left_out: _containers.ScalarMap[str, int]
    attempts: _containers.RepeatedCompositeFieldContainer[TrainerAttempt]
    tokens: _containers.ScalarMap[str, int]
    storage_problem: str
    concerns: _containers.RepeatedCompositeFieldContainer[Concern]
    sft_steps: int
    said_at: float
    def __init__(self, job: _Optional[str] = ..., phase: _Optional[str] = ..., reason: _Optional[str] = ..., step: _Optional[int] = ..., max_steps: _Optional[int] = ..., published_version: _Optional[int] = ..., live_version: _Optional[int] = ..., oldest_serving_version: _Optional[int] = ..., version_lag_steps: _Optional[int] = ..., progress: _Optional[int] = ..., last_progress_at: _Optional[float] = ..., queue_depth: _Optional[_Mapping[str, int]] = ..., trajectories: _Optional[_Mapping[str, int]] = ..., reward_mean: _Optional[float] = ..., pods: _Optional[_Iterable[_Union[PodStatus, _Mapping]]] = ..., waiting: _Optional[_Iterable[_Union[Waiting, _Mapping]]] = ..., evaluations: _Optional[_Iterable[_Union[EvaluationResult, _Mapping]]] = ..., checkpoint_step: _Optional[int] = ..., checkpoint_uri: _Optional[str] = ..., checkpoint_at: _Optional[float] = ..., trainer_wait_share: _Optional[float] = ..., rollout_wait_share: _Optional[float] = ..., tokens_per_s: _Optional[float] = ..., step_s: _Optional[float] = ..., config_generation: _Optional[int] = ..., started_at: _Optional[float] = ..., first_step_at: _Optional[float] = ..., evaluating: _Optional[str] = ..., reward_delta: _Optional[float] = ..., dump_failures: _Optional[int] = ..., failure: _Optional[str] = ..., failing_role: _Optional[str] = ..., left_out: _Optional[_Mapping[str, int]] = ..., attempts: _Optional[_Iterable[_Union[TrainerAttempt, _Mapping]]] = ..., tokens: _Optional[_Mapping[str, int]] = ..., storage_problem: _Optional[str] = ..., concerns: _Optional[_Iterable[_Union[Concern, _Mapping]]] = ..., sft_steps: _Optional[int] = ..., said_at: _Optional[float] = ...) -> None: ...
