"""What Status says, from a snapshot of the ledger and what the processes reported. Pure; it diagnoses, so it never
fails.
"""

import dataclasses
import itertools
import statistics
from collections.abc import Sequence

from rljob_api import conditions, enums, learning, process_config, types
from rljob_workers.coordinator.ledger import queries
from rljob_workers.coordinator.policy import filters
from rljob_workers.coordinator.reporting import divergence, processes

# A lease alone is none: a run whose groups are all lost, filtered or too late is busy, and makes no progress.
_PROGRESS = (
    "groups:accepted", "groups:recorded", "batches_handed", "steps_committed", "checkpoints", "versions_published",
    "versions_live", "versions_applied", "evaluations",
)  # fmt: skip


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """Everything that a status is made of. infra_share: of recent answers, lost by the infrastructure, 0 to 1;
    failing_role: who lost most since the last progress; evaluators: sessions that serve what is evaluated.
    """

    config: process_config.CoordinatorConfig
    facts: queries.Facts
    pods: Sequence[processes.Pod]
    results: Sequence[types.EvaluationResult]
    now: float
    started_at: float
    last_progress_at: float
    infra_share: float = 0.0
    failing_role: str = ""
    evaluators: frozenset[str] = frozenset()
    storage_problem: str = ""


def progress(counters: dict[str, int]) -> int:
    """Return the monotonic sum of everything that counts as progress."""
    return sum(counters.get(name, 0) for name in _PROGRESS)


def is_finished(config: process_config.CoordinatorConfig, completion: queries.Completion) -> bool:
    """Return whether no more work will come: all steps, the final checkpoint and the final evaluation are done.

    With max_steps 0 there is an evaluation alone.
    """
    trained = config.max_steps == 0 or (
        completion.committed >= completion.last_step and completion.final_checkpoint_at is not None
    )
    evaluated = not config.spec.evaluation.suites or (completion.newest_evaluated or 0) >= completion.last_step
    return trained and evaluated and not completion.evaluating


def phase(config: process_config.CoordinatorConfig, facts: queries.Facts) -> enums.Phase:
    if is_finished(config, facts.completion):
        return enums.Phase.FINISHED
    if facts.failed:
        return enums.Phase.FAILED
    committed = facts.counts.committed
    if facts.stop_step is not None:
        saved = facts.checkpoint is not None and facts.checkpoint["step"] >= committed
        ended = committed >= facts.stop_step - 1 and (saved or committed == 0)
        return enums.Phase.STOPPED if ended else enums.Phase.STOPPING
    if facts.running is not None and (committed == 0 or committed >= facts.completion.last_step):
        return enums.Phase.EVALUATING
    started = committed > 0 or facts.counters.get("leases_granted", 0) > 0
    return enums.Phase.RUNNING if started else enums.Phase.STARTING


def reason(config: process_config.CoordinatorConfig, facts: queries.Facts, *, infra_share: float) -> str:
    """Return the condition reason that holds, empty if none."""
    if filters.starved(config.spec.data.filter_groups, rejected=facts.filtered_this_step):
        return "FilterStarvation"
    if infra_share > config.spec.failure_policy.max_infra_failure_fraction:
        return conditions.INFRA_FAILURE_SHARE_HIGH
    if divergence.concern(config.spec, facts) is not None:
        return conditions.LEARNING_DIVERGED
    return facts.degraded


def status(view: View) -> types.RunStatus:
    facts, config = view.facts, view.config
    rollouts = [pod for pod in view.pods if pod.role is enums.Role.ROLLOUT and _present(view, pod)]
    serving = [pod.serving_version for pod in rollouts if pod.serving_version >= 0 and pod.token not in view.evaluators]
    oldest = min(serving, default=facts.head_version)
    rewards = [learning.reward_of(step.summary)[0] for step in facts.steps if "reward_mean" in step.summary]
    checkpoint = facts.checkpoint
    return types.RunStatus(
        job=config.job.name,
        phase=phase(config, facts),
        reason=reason(config, facts, infra_share=view.infra_share),
        step=facts.counts.committed,
        max_steps=facts.completion.last_step,
        published_version=facts.head_version,
        live_version=facts.live_version,
        oldest_serving_version=oldest,
        version_lag_steps=max(0, facts.head_step - facts.version_steps.get(oldest, 0)),
        progress=progress(facts.counters),
        last_progress_at=view.last_progress_at,
        queue_depth=facts.queue_depth,
        trajectories=_trajectories(facts.counters),
        reward_mean=rewards[-1] if rewards else None,
        reward_delta=rewards[-1] - statistics.fmean(rewards[-6:-1]) if len(rewards) > 1 else None,
        pods=tuple(_pod(view, pod) for pod in view.pods),
        waiting=tuple(_waiting(pod) for pod in view.pods if pod.waiting_for and _present(view, pod)),
        evaluations=tuple(view.results),
        checkpoint_step=0 if checkpoint is None else checkpoint["step"],
        checkpoint_uri="" if checkpoint is None else checkpoint["uri"],
        checkpoint_at=0.0 if checkpoint is None else checkpoint["at"],
        trainer_wait_share=trainer_wait_share(facts.steps, waiting_s=_trainer_waiting_s(view)),
        rollout_wait_share=processes.wait_share(rollouts),
        tokens_per_s=processes.tokens_per_s(rollouts),
        step_s=statistics.median(step_seconds(facts.steps)) if len(facts.steps) > 1 else 0.0,
        config_generation=config.job.config_generation,
        started_at=view.started_at,
        first_step_at=facts.first_step_at,
        evaluating=_evaluating(facts),
        dump_failures=sum(pod.load.dump_failures for pod in view.pods),
        failure=facts.failed,
        failing_role=view.failing_role,
        attempts=facts.attempts,
        storage_problem=view.storage_problem,
        concerns=_concerns(config, facts),
        said_at=view.now,
        tokens={kind: facts.counters.get(f"tokens_{kind}", 0) for kind in ("generated", "trained")},
        sft_steps=facts.sft_steps,
        left_out={str(reason): facts.counters.get(f"dropped:{reason}", 0) for reason in enums.LEFT_OUT},
    )


def step_seconds(steps: Sequence[queries.StepRecord]) -> list[float]:
    """Return the seconds between consecutive commits."""
    return [later.trained_at - earlier.trained_at for earlier, later in itertools.pairwise(steps)]


def trainer_wait_share(steps: Sequence[queries.StepRecord], *, waiting_s: float = 0.0) -> float:
    """Return rank 0's waiting seconds over wall seconds, of the recent steps and the wait under way, 0..1.

    waiting_s: seconds since that began, else one that does not end would never show. 0 before the second step.
    """
    wall = sum(step_seconds(steps))
    waited = sum(step.stats.get(enums.StepStat.WAIT_S, 0.0) for step in steps[1:])
    return min(1.0, (waited + waiting_s) / (wall + waiting_s)) if wall > 0 else 0.0


def _trainer_waiting_s(view: View) -> float:
    first = [pod for pod in view.pods if pod.role is enums.Role.TRAINER and pod.rank == 0 and _present(view, pod)]
    return max((view.now - pod.waiting_since for pod in first if pod.waiting_since), default=0.0)


def _trajectories(counters: dict[str, int]) -> dict[str, int]:
    outcomes = ("accepted", "stale", "infra_failure", "filtered", "invalid", "duplicate")
    return {outcome: counters.get(f"trajectories:{outcome}", 0) for outcome in outcomes}


def _concerns(config: process_config.CoordinatorConfig, facts: queries.Facts) -> tuple[types.Concern, ...]:
    answers, tokens = (
        {str(fate): facts.counters.get(f"{what}:{fate}", 0) for fate in enums.AnswerFate}
        for what in ("answers", "answer_tokens")
    )
    concerns = (divergence.concern(config.spec, facts), learning.length_selection(answers, tokens))
    return tuple(concern for concern in concerns if concern is not None)


def _present(view: View, pod: processes.Pod) -> bool:
    return view.now - pod.last_seen <= silent_s(view.config)


def silent_s(config: process_config.CoordinatorConfig) -> float:
    """Return after how many seconds without a call a process no longer counts: a few heartbeats, at least 10 s."""
    return max(10.0, 5 * config.heartbeat_s)


def _pod(view: View, pod: processes.Pod) -> types.PodStatus:
    facts = view.facts
    serving_step = facts.version_steps.get(pod.serving_version, 0)
    ready = _present(view, pod)
    if pod.role is enums.Role.ROLLOUT:
        ready = processes.is_ready(
            pod,
            serving_step=serving_step,
            head_step=facts.head_step,
            bound=view.config.spec.async_.max_off_policy_steps,
            now=view.now,
            silent_s=silent_s(view.config),
            evaluates=pod.token in view.evaluators,
        )
    return types.PodStatus(
        role=pod.role,
        pod=pod.pod,
        serving_version=pod.serving_version,
        serving_step=serving_step,
        leases=facts.leases_by_session.get(pod.token, 0),
        last_seen=pod.last_seen,
        state="DRAINING" if pod.draining else pod.receiver_state,
        attempt=pod.attempt,
        rank=pod.rank,
        ready=ready,
    )


def _waiting(pod: processes.Pod) -> types.Waiting:
    return types.Waiting(
        role=pod.role, pod=pod.pod, what=pod.waiting_for, on_role=pod.waiting_on, since=pod.waiting_since
    )


def _evaluating(facts: queries.Facts) -> str:
    running = facts.running
    return "" if running is None else f"step {running.step}: {running.finished}/{running.total}"


def stuck(last: types.RunStatus) -> types.RunStatus:
    """Return a status for when the ledger does not answer: the last one known, with the reason."""
    return dataclasses.replace(last, reason="LedgerStuck")
