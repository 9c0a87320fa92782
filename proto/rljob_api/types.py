"""The frozen types that cross process boundaries.

Conventions, said once: log-probabilities are in nats, of softmax(logits / temperature) at the sampling temperature.
Steps count from 1; V is the number of completed steps. A weight *version* is the publish counter that names bytes,
0 being the initial weights; the version's *step* is what every staleness formula uses. Times named `_at` are unix
seconds. Arrays are flat memoryviews in native little-endian order: `Ints` int32, `Floats` float32, `Mask` uint8;
numpy and torch read them without a copy. Suffixes: [L] tokens of a row, [T] tokens of a micro-batch, [N] its
sampled tokens.
"""

import array
import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, NewType, TypeAlias

from rljob_api import enums, errors

# The second argument is the format of an element, as `memoryview.cast` and the wire have it.
Ints: TypeAlias = Annotated["memoryview[int]", "i"]
Floats: TypeAlias = Annotated["memoryview[float]", "f"]
Mask: TypeAlias = Annotated["memoryview[int]", "B"]

SessionToken = NewType("SessionToken", str)
LeaseId = NewType("LeaseId", str)
GroupId = NewType("GroupId", str)
VersionId = NewType("VersionId", int)

NO_VERSION = -1
NO_TURN = -1


def ints(values: Iterable[int]) -> Ints:
    """Return an int32 view of `values`. Raises OverflowError beyond 32 bits."""
    return memoryview(array.array("i", values))


def floats(values: Iterable[float]) -> Floats:
    """Return a float32 view of `values`."""
    return memoryview(array.array("f", values))


def mask(values: Iterable[int]) -> Mask:
    """Return a uint8 view of `values`."""
    return memoryview(array.array("B", values))


NO_INTS, NO_FLOATS = ints(()), floats(())


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How tokens are drawn. `greedy` means temperature 0 and is for evaluation only. `top_k` 0 is off."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    max_tokens: int = 1024
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    greedy: bool = False
    include_stop: bool = False


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PromptRecord:
    """One record of a data source. `columns` holds the record's own columns; `prompt`, `answer`, `id` are canonical.

    pictures: files as they are, in the order of their marks in the prompt; what graders and users' code read of a
    record has none. (An image, here and everywhere, is the bytes of a weight version.)
    """

    prompt_id: str
    source: str
    columns: Mapping[str, object]
    epoch: int = 0
    pictures: tuple[bytes, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """A picture among tokens: the file, and the index of the first of the tokens that stand for it."""

    start: int
    data: bytes


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GroupLease:
    """The right to generate one prompt group until its deadline. `pinned_version` is set for evaluation only.

    from_version: the group begins once its rollout serves this version or a later one; it may be leased before that.
    lease_order: batches take groups in this order, and an engine that cannot decode all at once those of lower orders
    first.
    """

    lease_id: LeaseId
    group_id: GroupId
    kind: enums.GroupKind
    attempt: int
    deadline_s: float
    prompt: PromptRecord
    group_size: int
    sampling: Sampling
    seed: int
    version_floor_step: int = 0
    from_version: VersionId = VersionId(0)
    pinned_version: VersionId | None = None
    lease_order: int = 0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What a grader says of one completion. `reward` is None exactly for reason infra_failure.

    case_results and error_code are of programs that ran, codes as in docs/design/graders.md#s-6-5: a case is 1 passed,
    0 wrong, -1 failed at run time, -2 not compiled. grader_version is the release that graded.
    """

    reward: float | None
    reason: enums.VerdictReason
    outcome: enums.VerifyOutcome
    formatted: bool = False
    truncated: bool = False
    extracted: str = ""
    detail: str = ""
    parts: Mapping[str, float] = dataclasses.field(default_factory=dict)
    grader: str = ""
    cpu_s: float = 0.0
    wall_s: float = 0.0
    attempt: int = 0
    case_results: tuple[int, ...] = ()
    error_code: int | None = None
    grader_version: str = ""

    def __post_init__(self) -> None:
        """Refuse a reward where there must be none, and the reverse."""
        if (self.reward is None) != (self.reason is enums.VerdictReason.INFRA_FAILURE):
            raise errors.WireError(f"a verdict with reason {self.reason} cannot have reward {self.reward}")
        if self.reward is not None and not math.isfinite(self.reward):
            raise errors.WireError(f"reward {self.reward} is not finite")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class VerifyItem:
    """One completion to grade. Idempotent on (sample_id, attempt). The ids are what the texts were made from.

    suite: the evaluation suite that it is of, whose own rewards grade it; "" in training.
    """

    sample_id: str
    attempt: int
    prompt: str
    completion: str
    columns: Mapping[str, object]
    truncated: bool = False
    prompt_ids: tuple[int, ...] = ()
    completion_ids: tuple[int, ...] = ()
    suite: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory:
    """One row: prompt, sampled and inserted tokens in order, checked at construction.

    tokens [L] int32. loss_mask [L]: 1 on tokens that the policy sampled. logprobs [L]: behavior log-probability of
    the token at the same index, 0.0 where loss_mask is 0. versions [L]: id of the version that sampled the token as
    the engine asserted it, -1 elsewhere; ids never decrease along a row. turn_ids [L]: 0, 1, 2, ... on sampled
    tokens, never decreasing, -1 elsewhere. `truncated` comes from the engine's finish reason. turn_rewards: one per
    turn id, where a workflow rewards turns one by one; empty for one reward of the whole row.
    prompt_text, output_text: what the ids before and from the first sampled token spell; for evaluation rows alone.
    output_chars: characters of the answer that was graded; None where the workflow does not say.
    Raises WireError if lengths differ, no prompt or sampled token exists, or a value breaks these rules.
    """

    tokens: Ints
    loss_mask: Mask
    logprobs: Floats
    versions: Ints
    turn_ids: Ints
    truncated: bool
    reward: float
    raw_reward: float
    verdict: Verdict
    sample_index: int
    stop_reason: str = "stop"
    prompt_text: str = ""
    output_text: str = ""
    output_chars: int | None = None
    num_turns: int = 1
    turn_rewards: tuple[float, ...] = ()
    checked: dataclasses.InitVar[bool] = False

    def __post_init__(self, checked: bool) -> None:
        """Check the row, unless it is known to have been checked when it was accepted."""
        if checked:
            return
        _check_lengths(self)
        _check_sampled(self)
        _check_turn_rewards(self)
        if not (math.isfinite(self.reward) and math.isfinite(self.raw_reward)):
            raise errors.WireError(f"reward {self.reward} or raw reward {self.raw_reward} is not finite")

    @property
    def num_sampled(self) -> int:
        return self.loss_mask.tobytes().count(1)

    @property
    def prompt_len(self) -> int:
        """Return the index of the first sampled token."""
        return self.loss_mask.tobytes().index(1)

    def version_runs(self) -> list[tuple[int, int]]:
        """Return (version id, number of tokens) of the sampled tokens, in order, neighbours with one id together."""
        flags = self.loss_mask.tobytes()
        ids = self.versions.tobytes()
        runs: list[tuple[int, int]] = []
        start = flags.index(1)
        while start >= 0:
            end = flags.find(b"\x00", start)
            end = len(flags) if end < 0 else end
            for version, count in _equal_runs(ids, start, end):
                if runs and runs[-1][0] == version:
                    runs[-1] = (version, runs[-1][1] + count)
                else:
                    runs.append((version, count))
            start = flags.find(b"\x01", end)
        return runs


def _equal_runs(data: bytes, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield (value, count) of the runs of equal int32 values in [start, end)."""
    while start < end:
        value = data[4 * start : 4 * start + 4]
        # Ids never decrease along a row: the run of the first one ends where a search by halves says so.
        low, high = start + 1, end
        while low < high:
            middle = (low + high) // 2
            low, high = (middle + 1, high) if data[4 * middle : 4 * middle + 4] == value else (low, middle)
        yield int.from_bytes(value, "little", signed=True), low - start
        start = low


def _check_lengths(row: Trajectory) -> None:
    length = len(row.tokens)
    for name in ("loss_mask", "logprobs", "versions", "turn_ids"):
        if len(getattr(row, name)) != length:
            raise errors.WireError(f"{name} has {len(getattr(row, name))} entries for {length} tokens")
    flags = row.loss_mask.tobytes()
    if flags.strip(b"\x00\x01"):
        raise errors.WireError("loss_mask holds values other than 0 and 1")
    if b"\x01" not in flags:
        raise errors.WireError("the row has no sampled token")
    if flags[0] == 1:
        raise errors.WireError("the row has no prompt token")


def _check_sampled(row: Trajectory) -> None:
    """Check runs of equal mask values: whole runs are compared in C, tokens looked at only to name a wrong one."""
    flags = row.loss_mask.tobytes()
    version, turn, start = 0, 0, 0
    while start < len(flags):
        sampled = flags[start]
        end = flags.find(b"\x00" if sampled else b"\x01", start)
        end = len(flags) if end < 0 else end
        if sampled:
            _check_logprobs(row.logprobs[start:end], start)
            version = _check_rising(row.versions[start:end], "version", version, start)
            turn = _check_rising(row.turn_ids[start:end], "turn", turn, start)
        else:
            _check_inserted(row, start, end)
        start = end


def _check_inserted(row: Trajectory, start: int, end: int) -> None:
    nothing, none = bytes(4 * (end - start)), b"\xff" * (4 * (end - start))
    if (
        row.logprobs[start:end].tobytes() == nothing
        and row.versions[start:end].tobytes() == none
        and row.turn_ids[start:end].tobytes() == none
    ):
        return
    for index in range(start, end):
        if row.logprobs[index] != 0.0 or row.versions[index] != NO_VERSION or row.turn_ids[index] != NO_TURN:
            raise errors.WireError(f"token {index} was not sampled but has a logprob, version or turn id")


def _check_logprobs(logprobs: Floats, start: int) -> None:
    values = logprobs.tolist()
    # The sum of float32 values cannot overflow a double: it is finite exactly where each of them is.
    if (
        math.isfinite(sum(values))
        and max(values) <= enums.LOGPROB_ROUNDING
        and min(values) > enums.VLLM_MISSING_LOGPROB
    ):
        return
    for index, logprob in enumerate(values, start=start):
        if not math.isfinite(logprob) or logprob > enums.LOGPROB_ROUNDING or logprob == enums.VLLM_MISSING_LOGPROB:
            raise errors.WireError(f"logprob {logprob} of token {index} is not a log-probability")


def _check_rising(ids: Ints, what: str, before: int, start: int) -> int:
    """Raise WireError where an id is below the one before it; return the last."""
    first, last = ids[0], ids[-1]
    if first >= before and ids.tobytes() == ids[:1].tobytes() * len(ids):
        return last
    for index, value in enumerate(ids.tolist(), start=start):
        if value < before:
            raise errors.WireError(f"{what} {value} of token {index} follows {what} {before}")
        before = value
    return last


def _check_turn_rewards(row: Trajectory) -> None:
    if not row.turn_rewards:
        return
    if not all(map(math.isfinite, row.turn_rewards)):
        raise errors.WireError(f"turn rewards {list(row.turn_rewards)} are not all finite")
    sampled = {turn for turn in row.turn_ids if turn != NO_TURN}
    if max(sampled) >= len(row.turn_rewards):
        raise errors.WireError(f"turn {max(sampled)} has no reward among {len(row.turn_rewards)} turn rewards")
    lost = [turn for turn, reward in enumerate(row.turn_rewards) if reward and turn not in sampled]
    if lost:
        raise errors.WireError(
            f"turn {lost[0]} has reward {row.turn_rewards[lost[0]]}, but no sampled token to earn it"
        )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class MemberFailure:
    """A member of a group that has no trajectory. `infra` failures are masked, never scored."""

    sample_index: int
    role: str
    reason: str
    detail: str = ""
    infra: bool = True


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PromptGroup:
    """What a rollout submits for one lease: the scored members, the failed ones, and when they were generated.

    rejected: the user's own predicate said that the group is not to be trained. repeated_tokens: of the prompts of all
    calls to the engine, those that earlier calls began with; cached_tokens: those that its prefix cache had. pictures:
    of the prompt that all rows begin with, once.
    """

    lease_id: LeaseId
    group_id: GroupId
    attempt: int
    trajectories: Sequence[Trajectory]
    failures: Sequence[MemberFailure] = ()
    generate_started_at: float = 0.0
    generate_finished_at: float = 0.0
    verify_s: float = 0.0
    rejected: bool = False
    repeated_tokens: int = 0
    cached_tokens: int = 0
    pictures: Sequence[Picture] = ()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TrainSample:
    """One row with its advantage, ready for packing. advantages, version_steps [N]: per sampled token, in order.

    rewards, turn_ids [N]: filled where the trainer makes the advantages, else empty. `group`: index within the step.
    pictures: of the prompt, the same ones in every row of a group.
    """

    group_id: GroupId
    sample_index: int
    row: int
    tokens: Ints
    loss_mask: Mask
    logprobs: Floats
    version_steps: Ints
    advantages: Floats
    raw_reward: float
    shaped_reward: float
    truncated: bool = False
    masked: bool = False
    group: int = 0
    rewards: Floats = NO_FLOATS
    turn_ids: Ints = NO_INTS
    pictures: Sequence[Picture] = ()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """Tokens [start, end) of a micro-batch; they attend causally to the segment and to all of its ancestors."""

    start: int
    end: int
    parent: int = -1


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RowHeader:
    """What the trainer needs to know of a row as a whole; `num_tokens` is sum(m), `group` an index within the step."""

    group_id: GroupId
    sample_index: int
    num_tokens: int
    row: int
    raw_reward: float
    shaped_reward: float
    truncated: bool = False
    masked: bool = False
    group: int = 0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    """Packed rows without padding. Segments tile [0, T) as trees in depth-first order: a parent stands before its
    children, and the descendants of a segment follow it without a gap.

    tokens, position_ids [T]. Per sampled token of a row [N], row by row: target_index (where it stands; tokens that
    rows share stand once), predictor_index (the position whose output predicts it: the one before it, or the last token
    of the parent if it opens its segment), logprobs (behavior), advantages, version_steps, row_index (into `rows`).
    Where the trainer makes the advantages, `rewards` holds what each token earned and `turn_ids` its turn; both are
    empty where advantages come ready. oldest_step: tokens that versions of smaller steps sampled leave the loss; they
    stay context, and count in denominators. pictures: by where they start in the stream, one for each tree.
    """

    update: int
    tokens: Ints
    position_ids: Ints
    segments: Sequence[Segment]
    target_index: Ints
    predictor_index: Ints
    logprobs: Floats
    advantages: Floats
    version_steps: Ints
    row_index: Ints
    rows: Sequence[RowHeader]
    rewards: Floats = NO_FLOATS
    turn_ids: Ints = NO_INTS
    oldest_step: int = 0
    pictures: Sequence[Picture] = ()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Minibatch:
    """Denominators of one optimizer update over ALL ranks, counted before the micro-batch split."""

    num_tokens: int
    num_rows: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BatchHeader:
    """What FetchBatch answers first. Only kind BATCH is followed by micro-batches.

    lost_version: one that a rollout needs and whose bytes are gone, so that they must be sent again. sft_steps: how
    many steps of the run, its first ones, are supervised.
    """

    kind: enums.BatchKind
    step: int
    trainer_version: int = 0
    num_updates: int = 1
    num_micro_batches: int = 0
    minibatches: Sequence[Minibatch] = ()
    wait_reason: str = ""
    lost_version: int = NO_VERSION
    sft_steps: int = 0

    @property
    def supervised(self) -> bool:
        """Whether the rows of this step are examples: every advantage is 1, and no policy sampled their answers."""
        return self.step <= self.sft_steps


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TensorSpec:
    """One tensor of the image: Hugging Face name, dtype name, shape, byte range. `tied` names share its bytes."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    length: int
    tied: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The image's layout in image order: embeddings, layers ascending, final norm, head; 64-byte aligned starts.

    base: hash of the model files that an adapter's tensors are added to; empty where they are the whole model.
    """

    layout_id: str
    tensors: tuple[TensorSpec, ...]
    image_bytes: int
    base: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Artifact:
    """Bytes of a version. `artifact_id` is the BLAKE3 hex digest of the bytes: content-addressed. That of an image
    which is not stored (`Encoding.IMAGE`) is its version's state hash, which follows from the digests of all tensors.

    pieces: xxh3-128 of each `piece_bytes` of them in order, the last piece shorter, packed; empty where they are not
    known, and then rollouts do not serve it to one another. Raises WireError for digests of another number of pieces.
    """

    artifact_id: str
    encoding: enums.Encoding
    num_bytes: int
    piece_bytes: int = 0
    pieces: bytes = b""

    def __post_init__(self) -> None:
        num_pieces = -(-self.num_bytes // self.piece_bytes) if self.piece_bytes > 0 else 0
        if len(self.pieces) != num_pieces * enums.PIECE_DIGEST_BYTES:
            raise errors.WireError(
                f"artifact {self.artifact_id} has {len(self.pieces)} bytes of digests for {num_pieces} pieces"
                f" ({self.num_bytes} bytes in pieces of {self.piece_bytes})"
            )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class WeightVersion:
    """The manifest of one published version. `digests`: xxh3-128 of each tensor's bytes by index in the layout.

    artifacts: its whole image, its changes against `base`, or both; an anchor has the first. base_state_hash: of the
    very bits that the changes are applied to. fallback_reason: why it is an anchor. image: of a version that is no
    anchor its whole image, `Encoding.IMAGE`, where rollouts serve one another.
    """

    job: str
    version: VersionId
    step: int
    attempt: int
    parent: int
    created_at: float
    layout_id: str
    digests: Mapping[int, bytes]
    state_hash: str
    kind: enums.VersionKind = enums.VersionKind.ANCHOR
    base: int = NO_VERSION
    base_state_hash: str = ""
    artifacts: tuple[Artifact, ...] = ()
    changed: int = 0
    changed_ratio: float = 1.0
    fallback_reason: str = ""
    exporter: str = ""
    image: Artifact | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class WeightSource:
    """Where an artifact may be pulled from: the store, or another rollout; or where the trainer announces broadcasts.

    have: of a rollout the pieces that it has and the asker lacks, a set as in `rljob_workers.weights.pieces`.
    """

    address: str
    kind: enums.SourceKind
    have: bytes = b""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PieceSources:
    """Where a receiver may fetch the pieces of an artifact that it lacks.

    share: the set of those that it may ask of the store: others are with rollouts, or on their way to one. again_s: the
    seconds after which there may be news.
    """

    sources: tuple[WeightSource, ...]
    share: bytes
    again_s: float


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class WeightOffer:
    """Where a rollout serves weights, host:port or empty for nowhere, and the ids of artifacts that it holds whole."""

    address: str = ""
    artifact_ids: tuple[str, ...] = ()


NO_OFFER = WeightOffer()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class VersionPlan:
    """What a receiver must fetch, in order, to reach the version that it asked for.

    Each version of `chain` names the one artifact to take; the first is whole, or changes what the receiver has or what
    the model files hold (version 0). sources: of what is stored. image: the whole image of the last one, stored or not;
    who has the version by other means may serve it as that.
    """

    chain: tuple[WeightVersion, ...]
    sources: tuple[WeightSource, ...]
    layout: Layout | None = None
    image: Artifact | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class WeightSync:
    """One applied (or failed) weight update of a rollout. `failure` is empty when it was applied.

    num_bytes: fetched in all, of which `delta_bytes` came as changes.
    """

    version: VersionId
    step: int
    fetch_s: float
    verify_s: float
    pause_s: float
    apply_s: float
    total_s: float
    num_bytes: int
    requests_in_flight: int
    finished_at: float
    failure: str = ""
    delta_bytes: int = 0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RolloutLoad:
    """What a rollout does. Totals count from process start; waits are slot-seconds divided by slots.

    dump_failures: trajectory dumps that could not be written.
    """

    running_sequences: int = 0
    groups_in_flight: int = 0
    generated_tokens: int = 0
    prompt_tokens: int = 0
    generating_s: float = 0.0
    paused_s: float = 0.0
    wait_s: Mapping[str, float] = dataclasses.field(default_factory=dict)
    waiting_for: str = ""
    waiting_since: float = 0.0
    dump_failures: int = 0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """The answer to Register: the fencing token and the head of the version table."""

    token: SessionToken
    head_version: VersionId
    head_step: int
    heartbeat_s: float


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LeaseGrant:
    """The answer to LeaseGroups."""

    leases: Sequence[GroupLease]
    wait_reason: str = ""
    finished: bool = False


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatReply:
    """The answer to Heartbeat. Cancel comes before load: hopeless generation ends before a new version is taken."""

    drain: bool
    cancel: Sequence[LeaseId]
    load_version: VersionId
    finished: bool = False


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Announcement:
    """What a rollout is told the moment it changes: groups that were withdrawn, then the version to serve."""

    cancel: Sequence[LeaseId]
    load_version: VersionId


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SubmitReply:
    """The recorded answer to a submitted group; the same for every repetition of (group, attempt)."""

    outcome: enums.TrajectoryOutcome
    detail: str = ""
    duplicate: bool = False


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """One process that waits: for what, on which role, since when (unix seconds)."""

    role: str
    pod: str
    what: str
    on_role: str = ""
    since: float = 0.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PodStatus:
    """One registered process as the coordinator sees it."""

    role: str
    pod: str
    serving_version: int = NO_VERSION
    serving_step: int = 0
    leases: int = 0
    last_seen: float = 0.0
    state: str = ""
    attempt: int = 0
    rank: int = 0
    ready: bool = False


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationResult:
    """One suite evaluated wholly on one version. accuracy: share with score exactly 1; score: mean.

    pass_at_k: share of prompts of which any sample has score exactly 1.
    """

    suite: str
    step: int
    version: int
    accuracy: float
    n: int
    score: float
    pass_at_k: float


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Concern:
    """What is wrong with how a run learns while it goes on: a reason in CamelCase, a sentence with what to do."""

    reason: str
    message: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TrainerAttempt:
    """A trainer attempt as the ledger has it: the step of the checkpoint that it began from, and when the first of its
    own steps was committed, in unix seconds; 0.0 before that.
    """

    attempt: int
    resume_step: int = 0
    first_step_at: float = 0.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RunStatus:
    """The coordinator's answer to Status: what the operator, the CLI and stall diagnosis need. Shares are 0..1.

    dump_failures: of the rollouts that are registered, since each of them started. failure: why the phase is FAILED.
    left_out: groups dropped since the start for a reason of enums.LEFT_OUT, by reason. failing_role: who lost answers
    since the last progress, the one that lost most; empty if none was lost. attempts: the newest trainer attempts that
    registered, ascending. storage_problem: why checkpoints do not reach their object store. tokens: since the ledger
    began, generated (sampled, of groups that came back) and trained (of finished steps, of repeated ones again).
    said_at: when this was said, by the coordinator's own clock as all times here; 0 if unknown. sft_steps: how many of
    the max_steps are supervised, the first ones.
    """

    job: str
    phase: enums.Phase
    reason: str = ""
    step: int = 0
    max_steps: int = 0
    published_version: int = 0
    live_version: int = 0
    oldest_serving_version: int = 0
    version_lag_steps: int = 0
    progress: int = 0
    last_progress_at: float = 0.0
    queue_depth: Mapping[str, int] = dataclasses.field(default_factory=dict)
    trajectories: Mapping[str, int] = dataclasses.field(default_factory=dict)
    reward_mean: float | None = None
    reward_delta: float | None = None
    pods: Sequence[PodStatus] = ()
    waiting: Sequence[Waiting] = ()
    evaluations: Sequence[EvaluationResult] = ()
    checkpoint_step: int = 0
    checkpoint_uri: str = ""
    checkpoint_at: float = 0.0
    trainer_wait_share: float = 0.0
    rollout_wait_share: float = 0.0
    tokens_per_s: float = 0.0
    step_s: float = 0.0
    config_generation: int = 0
    started_at: float = 0.0
    first_step_at: float = 0.0
    evaluating: str = ""
    dump_failures: int = 0
    failure: str = ""
    left_out: Mapping[str, int] = dataclasses.field(default_factory=dict)
    failing_role: str = ""
    attempts: Sequence[TrainerAttempt] = ()
    storage_problem: str = ""
    concerns: Sequence[Concern] = ()
    said_at: float = 0.0
    tokens: Mapping[str, int] = dataclasses.field(default_factory=dict)
    sft_steps: int = 0
