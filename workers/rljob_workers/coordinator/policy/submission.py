"""What becomes of a submitted group. Pure: facts in, one judgement out; the ledger carries it out in one
transaction.
"""

import dataclasses
import enum
import itertools
from collections.abc import Mapping, Sequence

from rljob_api import enums, errors, types
from rljob_api.manifest.job import JobSpec
from rljob_workers.coordinator.policy import filters, staleness

# A record that no one can use, where such are not to be dropped: no attempt would end otherwise (graders 2.2).
_UNUSABLE = frozenset({errors.DataError.__name__, errors.RecordError.__name__})


class Requeue(enum.Enum):
    """What happens to the prompt. NEXT_ATTEMPT keeps the group; HEAD and TAIL make a new group for the prompt."""

    NO = "no"
    NEXT_ATTEMPT = "next_attempt"
    HEAD = "head"
    TAIL = "tail"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The answer, and what follows from it. `drop` is set where the group ends; `infra` and `data` are charged
    attempts; `ends_run` where the run cannot continue as its manifest is.
    """

    outcome: enums.TrajectoryOutcome
    detail: str = ""
    drop: enums.DropReason | None = None
    requeue: Requeue = Requeue.NO
    infra: int = 0
    data: int = 0
    ends_run: bool = False


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What the ledger knows of the group at submission. `batch_index` is V of the next batch that could take it."""

    kind: enums.GroupKind
    group_size: int
    infra_attempts: int
    data_attempts: int
    batch_index: int
    version_steps: Mapping[int, int]
    pinned_version: int | None = None


def problem(group: types.PromptGroup, facts: Facts, *, turn_rewards: bool = True) -> str:
    """Return what is wrong with a group's form, empty if nothing: members must be complete and versions known."""
    members = sorted([*members_of(group.trajectories), *(failure.sample_index for failure in group.failures)])
    if members != list(range(facts.group_size)):
        return f"members {members} are not 0..{facts.group_size - 1}, each once"
    for index, rows in members_of(group.trajectories).items():
        if not _rows_of_unlike_turns(rows):
            return f"member {index} has {len(rows)} rows that do not follow one another turn by turn"
    for row in group.trajectories:
        if row.verdict.reward is None:
            return f"member {row.sample_index} has a verdict without a reward but is not a failure"
        if row.turn_rewards and not turn_rewards and facts.kind is enums.GroupKind.TRAIN:
            return (
                f"member {row.sample_index} has {len(row.turn_rewards)} turn rewards, but spec.algorithm normalises one"
                " reward per row: use advantageEstimator reinforcepp or ppo without normalizeReward"
            )
        versions = sampling_versions(row)
        unknown = versions - facts.version_steps.keys()
        if unknown:
            return f"member {row.sample_index} has tokens of unknown versions {sorted(unknown)}"
        foreign = versions - {facts.pinned_version}
        if facts.pinned_version is not None and foreign:
            return f"member {row.sample_index} has tokens of versions {sorted(foreign)}, not {facts.pinned_version}"
    return ""


def members_of(rows: Sequence[types.Trajectory]) -> dict[int, list[types.Trajectory]]:
    """Return the rows of each member, in the order in which they came: one, or one per turn."""
    members: dict[int, list[types.Trajectory]] = {}
    for row in rows:
        members.setdefault(row.sample_index, []).append(row)
    return members


def _rows_of_unlike_turns(rows: Sequence[types.Trajectory]) -> bool:
    turns = [turn for row in rows for turn in dict.fromkeys(row.turn_ids) if turn != types.NO_TURN]
    return all(before < after for before, after in itertools.pairwise(turns))


def sampling_versions(row: types.Trajectory) -> set[int]:
    """Return the ids of the versions that sampled a row's tokens."""
    return {version for version, _ in row.version_runs()}


def step_range(rows: Sequence[types.Trajectory], version_steps: Mapping[int, int]) -> tuple[int, int]:
    """Return the smallest and the largest version step over all sampled tokens of all rows."""
    steps = {version_steps[version] for row in rows for version in sampling_versions(row)}
    return min(steps), max(steps)


def evaluate(group: types.PromptGroup, facts: Facts, *, spec: JobSpec) -> Decision:
    """Return what becomes of the group. An infrastructure failure is masked and retried, never scored."""
    wrong = problem(group, facts, turn_rewards=spec.algorithm.takes_turn_rewards)
    if wrong:
        return _failed(facts, spec, infra=False, outcome=enums.TrajectoryOutcome.INVALID, detail=wrong)
    left_out = next((failure for failure in group.failures if failure.reason in enums.LEFT_OUT), None)
    if left_out is not None:
        drop = enums.DropReason(left_out.reason)
        return Decision(outcome=enums.TrajectoryOutcome.INVALID, detail=left_out.detail, drop=drop)
    unusable = next((failure for failure in group.failures if failure.reason in _UNUSABLE), None)
    if unusable is not None:
        # The prompt stays: once its record is fixed, or such are dropped, the run continues with it.
        return Decision(
            outcome=enums.TrajectoryOutcome.INVALID,
            detail=unusable.detail,
            requeue=Requeue.NEXT_ATTEMPT,
            ends_run=True,
        )
    if facts.kind is enums.GroupKind.EXAMPLE and group.trajectories:
        return Decision(outcome=enums.TrajectoryOutcome.ACCEPTED)
    good, infra = len(members_of(group.trajectories)), any(failure.infra for failure in group.failures)
    evaluation = facts.kind is enums.GroupKind.EVALUATION
    needed = facts.group_size if evaluation else min(facts.group_size, staleness.smallest_group(spec))
    if good < needed:
        detail = f"{good} of {facts.group_size} members, {needed} needed"
        return _failed(facts, spec, infra=infra, outcome=enums.TrajectoryOutcome.INFRA_FAILURE, detail=detail)
    if evaluation:
        return Decision(outcome=enums.TrajectoryOutcome.RECORDED)
    group_filter = spec.data.filter_groups
    reason = filters.rejection(group_filter, [metric(row, group_filter.metric) for row in group.trajectories])
    if reason is None and group.rejected:
        reason = enums.DropReason.REJECTED
    if reason is not None:
        return Decision(outcome=enums.TrajectoryOutcome.FILTERED, detail=str(reason), drop=reason)
    oldest, newest = step_range(group.trajectories, facts.version_steps)
    if newest > facts.batch_index:
        detail = f"a token of step {newest}, which was undone; the next batch is {facts.batch_index}"
        return Decision(
            outcome=enums.TrajectoryOutcome.STALE, detail=detail, drop=enums.DropReason.REWOUND, requeue=Requeue.HEAD
        )
    if staleness.is_stale(spec, batch_index=facts.batch_index, min_step=oldest, max_step=newest):
        detail = f"tokens of steps {oldest} to {newest} for batch {facts.batch_index}"
        return Decision(
            outcome=enums.TrajectoryOutcome.STALE, detail=detail, drop=enums.DropReason.STALE, requeue=Requeue.HEAD
        )
    return Decision(outcome=enums.TrajectoryOutcome.ACCEPTED)


def metric(row: types.Trajectory, name: str) -> float:
    """Return the raw reward that filters look at: the weighted sum, or one named reward (0 if the verdict lacks it)."""
    return row.raw_reward if name == "sum" else float(row.verdict.parts.get(name, 0.0))


def lost(facts: Facts, spec: JobSpec, detail: str) -> Decision:
    """Return what becomes of a group whose lease expired, was released or belonged to a process that is gone."""
    return _failed(facts, spec, infra=True, outcome=enums.TrajectoryOutcome.INFRA_FAILURE, detail=detail)


def _failed(facts: Facts, spec: JobSpec, *, infra: bool, outcome: enums.TrajectoryOutcome, detail: str) -> Decision:
    """Another attempt while the budget lasts. An infra-exhausted prompt starts afresh at the tail, a data-exhausted
    one ends.
    """
    spent = (facts.infra_attempts if infra else facts.data_attempts) + 1
    policy = spec.failure_policy
    budget = policy.max_infra_attempts_per_prompt if infra else policy.max_data_attempts_per_prompt
    charged = {"infra": int(infra), "data": int(not infra)}
    if spent < budget:
        return Decision(
            outcome=outcome, detail=detail, requeue=Requeue.NEXT_ATTEMPT, infra=charged["infra"], data=charged["data"]
        )
    again = infra and facts.kind is not enums.GroupKind.EVALUATION
    return Decision(
        outcome=outcome,
        detail=detail,
        drop=enums.DropReason.INFRA_EXHAUSTED if infra else enums.DropReason.DATA_EXHAUSTED,
        requeue=Requeue.TAIL if again else Requeue.NO,
        infra=charged["infra"],
        data=charged["data"],
    )
