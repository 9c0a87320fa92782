"""The coordinator's Prometheus metrics, from ledger snapshots. Counters start at 0 with the process: only what is
added counts.
"""

from collections.abc import Callable

from rljob_api import enums, errors, process_config, types
from rljob_workers.coordinator.reporting import processes, scaling_signal, status
from rljob_workers.runtime import metrics as metrics_module

_OUTCOMES = frozenset({"accepted", "stale", "infra_failure", "filtered", "invalid", "duplicate"})
_INFRA_REASONS = frozenset({"timeout", "oom", "sandbox_lost", "image_pull", "transport", "engine"})
_ANSWERS = {"answers": "rljob_answers_total", "answer_tokens": "rljob_answer_tokens_total"}
_PACKED = ("computed", "unique", "rows")


def fenced_calls(metrics: metrics_module.Metrics) -> Callable[[errors.RLJobError], None]:
    """Return what counts the calls among refused ones that came from a replaced session or trainer attempt."""
    counter = metrics.counter("rljob_fenced_calls_total")

    def count(error: errors.RLJobError) -> None:
        if isinstance(error, errors.FencedError):
            counter.inc()

    return count


class Metering:
    """Turns the growth of the ledger's cumulative counters into metrics and sets the gauges."""

    def __init__(self, metrics: metrics_module.Metrics) -> None:
        """Nothing is counted before the first snapshot."""
        self._metrics = metrics
        self._last: dict[str, int] | None = None
        # From 0: Prometheus sees no increase in a series that begins with its first event.
        for outcome in _OUTCOMES:
            metrics.counter("rljob_trajectories_total").inc(0.0, outcome=outcome)
        for kind in ("infra", "data"):
            metrics.counter("rljob_prompt_retries_total").inc(0.0, **{"class": kind})
        for role in (enums.Role.ROLLOUT, enums.Role.VERIFIER):
            for why in (*_INFRA_REASONS, "other"):
                metrics.counter("rljob_infra_failures_total").inc(0.0, role=role, reason=why)
        for fate in enums.AnswerFate:
            for name in _ANSWERS.values():
                metrics.counter(name).inc(0.0, fate=str(fate))
        for kind in _PACKED:
            metrics.counter("rljob_packed_tokens_total").inc(0.0, kind=kind)
        for reason in enums.DropReason:
            metrics.counter("rljob_groups_dropped_total").inc(0.0, reason=str(reason))

    def update(self, view: status.View, now: types.RunStatus, *, ledger_bytes: int) -> None:
        self._count(view.facts.counters)
        gauge = self._metrics.gauge
        facts = view.facts
        gauge("rljob_step").set(facts.counts.committed)
        gauge("rljob_max_steps").set(facts.completion.last_step)
        gauge("rljob_inflight_limit").set(max(0, facts.capacity))
        gauge("rljob_last_progress_timestamp_seconds").set(view.last_progress_at)
        gauge("rljob_ledger_bytes").set(ledger_bytes)
        self._settings(view.config)
        for queue, depth in facts.queue_depth.items():
            gauge("rljob_queue_depth").set(depth, queue=queue)
        for state, version in (
            ("published", now.published_version),
            ("live", now.live_version),
            ("oldest_serving", now.oldest_serving_version),
        ):
            gauge("rljob_policy_version").set(version, state=state)
        self._shares(view, now)
        for result in view.results:
            # avg@k is the accuracy: both are means over all samples of all prompts.
            for metric, value in (
                ("accuracy", result.accuracy),
                ("score", result.score),
                ("avg_at_k", result.accuracy),
                ("pass_at_k", result.pass_at_k),
            ):
                gauge("rljob_eval_score").set(value, suite=result.suite, metric=metric)

    def _shares(self, view: status.View, now: types.RunStatus) -> None:
        gauge = self._metrics.gauge
        rollouts = [pod for pod in view.pods if pod.role is enums.Role.ROLLOUT and len(pod.samples) > 1]
        blocked = processes.wait_share(rollouts)
        if rollouts:
            gauge("rljob_wait_share_ratio").set(blocked, waiter=enums.Role.ROLLOUT)
        ratio = scaling_signal.STEADY
        if len(view.facts.steps) > 1:
            gauge("rljob_wait_share_ratio").set(now.trainer_wait_share, waiter=enums.Role.TRAINER)
            if scaling_signal.is_settled(now.phase, rollouts):
                target = view.config.spec.rollout.trainer_wait_target
                ratio = scaling_signal.pressure(blocked=blocked, waiting=now.trainer_wait_share, target=target)
        gauge("rljob_rollout_pressure_ratio").set(ratio)

    def _settings(self, config: process_config.CoordinatorConfig) -> None:
        """Set the job values that alerts compare with; some may change while the job runs."""
        for name, value in (
            ("stall_timeout_seconds", float(config.spec.failure_policy.stall.timeout_seconds)),
            ("max_off_policy_steps", config.spec.async_.max_off_policy_steps),
            ("checkpoint_every_steps", config.spec.checkpoint.every_steps),
        ):
            self._metrics.gauge("rljob_setting").set(value, name=name)

    def _count(self, counters: dict[str, int]) -> None:
        if self._last is None:
            self._last = counters
        for name, value in counters.items():
            grown = value - self._last.get(name, 0)
            if grown > 0:
                self._add(name, grown)
        self._last = counters

    def _add(self, name: str, by: int) -> None:
        subject, _, rest = name.partition(":")
        counter = self._metrics.counter
        if subject == "trajectories" and rest in _OUTCOMES:
            counter("rljob_trajectories_total").inc(by, outcome=rest)
        elif subject in _ANSWERS:
            counter(_ANSWERS[subject]).inc(by, fate=rest)
        elif subject == "packed_tokens" and rest in _PACKED:
            counter("rljob_packed_tokens_total").inc(by, kind=rest)
        elif subject == "dropped":
            counter("rljob_groups_dropped_total").inc(by, reason=rest)
        elif subject == "retries":
            counter("rljob_prompt_retries_total").inc(by, **{"class": rest})
        elif subject == "failures" and rest.startswith("infra:"):
            _, role, reason = rest.split(":", 2)
            known_role = role if role in set(enums.Role) else "other"
            known_reason = reason if reason in _INFRA_REASONS else "other"
            counter("rljob_infra_failures_total").inc(by, role=known_role, reason=known_reason)
        elif name == "leases_expired":
            counter("rljob_leases_expired_total").inc(by)
        elif name == "zero_advantage_groups":
            counter("rljob_zero_advantage_groups_total").inc(by)
