"""Closed vocabularies that processes share: roles, states, reasons, outcomes, exit codes, and limits of messages."""

import enum

API_GROUP = "rljob.dev"
API_VERSION = "v1alpha1"
KIND = "RLJob"

# vLLM's mark for a log-probability that is missing or was clamped.
VLLM_MISSING_LOGPROB = -9999.0
# A log-probability may exceed 0 by float32 rounding, never by more.
LOGPROB_ROUNDING = 1e-4


class Role(enum.StrEnum):
    """The programs of a job; a judge where a reward asks a language model, agents where spec.agents says how they
    start: theirs are the user's; an environment where spec.environment is (`suites.roles`).
    """

    COORDINATOR = "coordinator"
    ROLLOUT = "rollout"
    VERIFIER = "verifier"
    TRAINER = "trainer"
    JUDGE = "judge"
    AGENTS = "agents"
    ENVIRONMENT = "environment"


_SOME_HAVE = (Role.JUDGE, Role.AGENTS, Role.ENVIRONMENT)
# What every job has.
STANDARD_ROLES: tuple[Role, ...] = tuple(role for role in Role if role not in _SOME_HAVE)

# Who asks a coordinator for its status, in certificates.
OPERATOR = "operator"


def identity(trust_domain: str, namespace: str, job: str, caller: str) -> str:
    """Return the SPIFFE id of a role of a job, or of the operator: the one URI of its certificate."""
    return f"spiffe://{trust_domain}/ns/{namespace}/rljob/{job}/role/{caller}"


class GroupKind(enum.StrEnum):
    """What a lease is for. TRAIN alone enters the staleness counters: EVALUATION is not trained, and the answer of an
    EXAMPLE is its record's, which no weights sampled.
    """

    TRAIN = "train"
    EVALUATION = "evaluation"
    EXAMPLE = "example"


class GroupState(enum.StrEnum):
    """Life of a prompt group in the ledger: QUEUED > LEASED > SUBMITTED > PACKED > TRAINED, or DROPPED(reason)."""

    QUEUED = "queued"
    LEASED = "leased"
    SUBMITTED = "submitted"
    PACKED = "packed"
    TRAINED = "trained"
    DROPPED = "dropped"


class DropReason(enum.StrEnum):
    """Why a group will not be trained. Its prompt returns to the queue unless the prompt itself is exhausted or
    left out: too_long by maxPromptTokens, and invalid_record where onInvalidRecord: Drop asks for it.
    """

    STALE = "stale"
    ZERO_SPREAD = "zero_spread"
    TOO_LOW = "too_low"
    TOO_HIGH = "too_high"
    INFRA_EXHAUSTED = "infra_exhausted"
    DATA_EXHAUSTED = "data_exhausted"
    TOO_LONG = "too_long"
    INVALID_RECORD = "invalid_record"
    REJECTED = "rejected"
    REWOUND = "rewound"


# The record cannot be used, whoever tries.
LEFT_OUT = (DropReason.TOO_LONG, DropReason.INVALID_RECORD)


class AnswerFate(enum.StrEnum):
    """What became of a generated answer, the label of rljob_answers_total. CANCELLED: its group grew too old while it
    was generated, so its length is not known; STALE: too old once it was whole; FILTERED: by data.filterGroups.
    """

    TRAINED = "trained"
    STALE = "stale"
    CANCELLED = "cancelled"
    FILTERED = "filtered"


class TrajectoryOutcome(enum.StrEnum):
    """Answer to a submitted group, and the label of rljob_trajectories_total."""

    ACCEPTED = "accepted"
    STALE = "stale"
    INFRA_FAILURE = "infra_failure"
    FILTERED = "filtered"
    INVALID = "invalid"
    DUPLICATE = "duplicate"
    RECORDED = "recorded"


class VerdictReason(enum.StrEnum):
    """Why a verdict is what it is."""

    OK = "ok"
    WRONG = "wrong"
    NO_ANSWER = "no_answer"
    PARSE_ERROR = "parse_error"
    TIMEOUT = "timeout"
    RESOURCE_LIMIT = "resource_limit"
    CRASH = "crash"
    INFRA_FAILURE = "infra_failure"


# What is reported of several graders' reasons: the first of these that any of them gave.
VERDICT_RANK = (
    VerdictReason.INFRA_FAILURE,
    VerdictReason.TIMEOUT,
    VerdictReason.RESOURCE_LIMIT,
    VerdictReason.CRASH,
    VerdictReason.PARSE_ERROR,
    VerdictReason.NO_ANSWER,
    VerdictReason.WRONG,
    VerdictReason.OK,
)
# Begins the detail of a verdict that a judge could not give.
JUDGE_UNAVAILABLE = "judge_unavailable"


class JudgeCall(enum.StrEnum):
    """What became of a question to a judge (label of rljob_judge_calls_total). CACHED: it was not called; BUSY: 429.

    UNREADABLE: an answer without a verdict in it. UNREACHABLE: no connection, or it broke off.
    """

    ANSWERED = "answered"
    CACHED = "cached"
    BUSY = "busy"
    REFUSED = "refused"
    FAILED = "failed"
    UNREACHABLE = "unreachable"
    TIMEOUT = "timeout"
    UNREADABLE = "unreadable"


class VerifyOutcome(enum.StrEnum):
    """How a grading ended, as a metric label."""

    PASS = "pass"
    FAIL = "fail"
    FORCED_EXIT = "forced_exit"
    TIMEOUT_CPU = "timeout_cpu"
    TIMEOUT_WALL = "timeout_wall"
    OOM = "oom"
    OUTPUT_FLOOD = "output_flood"
    FORBIDDEN = "forbidden"
    INFRA_ERROR = "infra_error"


class BatchKind(enum.StrEnum):
    """Answer to FetchBatch."""

    BATCH = "batch"
    NOT_READY = "not_ready"
    STOP = "stop"
    FINISHED = "finished"


class VersionState(enum.StrEnum):
    """Life of a published weight version."""

    PUBLISHED = "published"
    LIVE = "live"
    RETIRED = "retired"


class Encoding(enum.StrEnum):
    """What an artifact's bytes are: a whole image, the changes of `rljob_workers/weights/delta.py`, or a whole image
    that is not stored: rollouts that changes have led to it serve it under its version's state hash.
    """

    WHOLE = "raw"
    DELTA = "delta-1"
    IMAGE = "image"


class SourceKind(enum.StrEnum):
    """Where bytes of a version come from: the coordinator's store, another rollout, a shared folder, or a broadcast of
    the trainer.
    """

    STORE = "store"
    PEER = "peer"
    FILE = "file"
    TRAINER = "trainer"


class VersionKind(enum.StrEnum):
    """Whether a version can be had by itself: an anchor has its whole image stored, a delta only its changes."""

    ANCHOR = "anchor"
    DELTA = "delta"


class ReceiverState(enum.StrEnum):
    """State of a rollout's weight client."""

    STARTING = "STARTING"
    SERVING = "SERVING"
    FETCHING = "FETCHING"
    STAGED = "STAGED"
    PAUSED = "PAUSED"
    APPLYING = "APPLYING"
    VERIFYING = "VERIFYING"
    REFUSING = "REFUSING"


class WaitReason(enum.StrEnum):
    """What a rollout slot waits for (label of rljob_rollout_wait_seconds_total)."""

    STALENESS = "staleness"
    WEIGHTS = "weights"
    VERIFIER = "verifier"
    JUDGE = "judge"
    AGENTS = "agents"
    ENVIRONMENT = "environment"
    NO_PROMPTS = "no_prompts"
    COORDINATOR = "coordinator"


class SyncFailure(enum.StrEnum):
    """Why a weight update failed (label of rljob_weight_sync_failures_total)."""

    DIGEST = "digest"
    FETCH = "fetch"
    APPLY = "apply"
    TIMEOUT = "timeout"


class SourceFailure(enum.StrEnum):
    """Why a source did not give a piece (label of rljob_weight_source_failures_total).

    DIGEST: other bytes. UNAVAILABLE: not reached, broken off, or too slow. BUSY: it serves as many as it may. MOVED: it
    no longer holds it. REFUSED: it may not be asked.
    """

    DIGEST = "digest"
    UNAVAILABLE = "unavailable"
    BUSY = "busy"
    MOVED = "moved"
    REFUSED = "refused"


class DrainResult(enum.StrEnum):
    """What became of the groups of a rollout that drains (label of rljob_drain_seconds).

    KILLED: given up while no one took them back; their leases run out.
    """

    FINISHED = "finished"
    HANDED_BACK = "handed_back"
    KILLED = "killed"


class Phase(enum.StrEnum):
    """Phase of a run as the coordinator sees it."""

    STARTING = "Starting"
    RUNNING = "Running"
    EVALUATING = "Evaluating"
    STOPPING = "Stopping"
    STOPPED = "Stopped"
    FINISHED = "Finished"
    FAILED = "Failed"


class TrainingPhase(enum.StrEnum):
    """What a step learns from, as its history line has it: examples; without the key, the policy's own answers."""

    SFT = "SFT"


class StepStat(enum.StrEnum):
    """Keys of CommitStep.stats. Seconds, nats, ratios; definitions: docs/design/algorithms.md#s-11.

    TOTAL_S: from one finished step to the next. KL_LOSS and ENTROPY_LOSS: what the two terms add to LOSS.
    """

    TOTAL_S = "total_s"
    WAIT_S = "wait_s"
    FORWARD_BACKWARD_S = "forward_backward_s"
    OPTIMIZER_S = "optimizer_s"
    PUBLISH_S = "publish_s"
    CHECKPOINT_S = "checkpoint_s"
    PROXIMAL_S = "proximal_s"
    LOSS = "policy/loss"
    KL_LOSS = "policy/kl_loss"
    ENTROPY_LOSS = "policy/entropy_loss"
    ENTROPY = "policy/entropy"
    ENTROPY_COEF = "policy/entropy_coef"
    REF_KL = "policy/ref_kl"
    TEACHER_KL = "policy/teacher_kl"
    ZERO_ADVANTAGE_GROUPS = "groups/zero_adv"
    ADVANTAGE_MEAN = "adv/mean"
    ADVANTAGE_STD = "adv/std"
    ADVANTAGE_MIN = "adv/min"
    ADVANTAGE_MAX = "adv/max"
    VALUE_LOSS = "critic/loss"
    VALUE_CLIP = "critic/clip"
    EXPLAINED_VARIANCE = "critic/explained_variance"
    CRITIC_GRAD_NORM = "critic/grad_norm"
    RATIO_MEAN = "policy/ratio_mean"
    RATIO_MAX = "policy/ratio_max"
    APPROX_KL = "policy/approx_kl"
    CLIP_LOW = "policy/clip_low"
    CLIP_HIGH = "policy/clip_high"
    CLIP_DUAL = "policy/clip_dual"
    GRAD_NORM = "optim/grad_norm"
    LEARNING_RATE = "optim/lr"
    SKIPPED = "optim/skipped"
    MISMATCH_KL = "mismatch/kl"
    LOGPROB_ABS_DIFF = "mismatch/abs_diff"
    MULT_PROB_ERROR = "mismatch/mult_prob_error"
    MISMATCH_TOKENS = "mismatch/tokens"
    STALE_CACHE_ABS_DIFF = "mismatch/stale_cache_abs_diff"
    STALE_CACHE_TOKENS = "mismatch/stale_cache_tokens"
    BEHAVIOR_ABS_DIFF = "behavior/abs_diff"
    BEHAVIOR_KL = "behavior/kl"
    BEHAVIOR_CHI2_TOKEN = "behavior/chi2_token"
    BEHAVIOR_CHI2_SEQ = "behavior/chi2_seq"
    BEHAVIOR_ESS = "behavior/ess"
    BEHAVIOR_PPL_RATIO = "behavior/ppl_ratio"
    WEIGHT_MEAN = "behavior/weight_mean"
    WEIGHT_MAX = "behavior/weight_max"
    MASKED_RATIO = "behavior/masked_ratio"
    TOKENS_TRAINED = "batch/tokens"
    TOKENS_COMPUTED = "batch/computed_tokens"
    ROWS = "batch/rows"
    DENOMINATOR = "batch/denominator"
    PEAK_RSS_BYTES = "peak_rss_bytes"
    PEAK_GPU_ALLOCATED_BYTES = "peak_gpu_allocated_bytes"
    PEAK_GPU_RESERVED_BYTES = "peak_gpu_reserved_bytes"
    MFU = "mfu"


class ExitCode(enum.IntEnum):
    """Exit codes of the programs and of the CLI."""

    OK = 0
    FAILED = 1
    BAD_INPUT = 2
    INFRASTRUCTURE = 75
    CONFIGURATION = 78
    ISOLATION_REFUSED = 79
    STOPPED_ON_REQUEST = 80
    INTERRUPTED = 130


# gRPC: one limit in both directions; weight chunks of 2 MiB stay in the cache and far below it.
MAX_BATCH_PART_BYTES = 64 << 20
# Of a handed-in group: id, mask, log-probability and turn of each token.
GROUP_BYTES_PER_TOKEN = 13
# Pictures of a record, and what they may have together; of a lease each rollout gets them, so a reply has this many.
MAX_PICTURES, MAX_PICTURES_BYTES, LEASES_WITH_PICTURES = 4, 2 << 20, 16
# Of a micro-batch; a group's, which are never divided, fit.
MAX_BATCH_PICTURES_BYTES = 32 << 20
CHUNK_BYTES = 2 << 20
# What is verified, and asked of another source, by itself: 17,500 pieces of 140 GB have 280 kB of digests.
PIECE_BYTES = 8 << 20
PIECE_DIGEST_BYTES = 16
