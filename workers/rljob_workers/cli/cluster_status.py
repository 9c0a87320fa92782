"""`rljob status` and `rljob why` of a job in a cluster. Pure, but for what `status` and `why` ask of kubectl."""

import json
import math
import time
import types
from collections.abc import Iterator, Mapping, Sequence

from rljob_api import enums, waiting
from rljob_api import types as api_types
from rljob_api.conditions import LEARNING_DIVERGED, STALL_REASONS, UPLOADS_FAILING, ConditionType
from rljob_api.manifest.status import PaceStatus, TrajectoriesStatus, UsageStatus
from rljob_workers.cli import cluster, cluster_logs, kubectl, why_text
from rljob_workers.cli import inspect as local
from rljob_workers.local import terminal
from rljob_workers.local.run import progress
from rljob_workers.local.rundir import log_lines

_ROLES_WIDTH = 14


def status(client: kubectl.Kubectl, job: str, *, as_json: bool, again: bool) -> int:
    """Print the status of the job, from the RLJob alone; `again` and again until it ends.

    Raises ManifestError, ClusterError.
    """

    def look() -> local.Look:
        cluster_job = cluster.find(client, job)
        goes_on = not (cluster_job.holds(ConditionType.COMPLETE) or cluster_job.holds(ConditionType.FAILED))
        if as_json:
            return local.Look(text=json.dumps(as_values(cluster_job), indent=None if again else 1), goes_on=goes_on)
        now, job_status = time.time(), cluster_job.status
        return local.Look(
            text="\n".join(lines(cluster_job, now)),
            goes_on=goes_on,
            line=f"{terminal.line(headline(cluster_job))}  {progress_line(cluster_job, now)}",
            key=(job_status.step, job_status.summary, job_status.reason),
        )

    local.repeat(look, again=again, redraw=not as_json)
    return int(enums.ExitCode.OK)


def why(client: kubectl.Kubectl, job: str, *, as_json: bool, num_events: int) -> int:
    """Print why the job is where it is. Raises ManifestError, ClusterError."""
    cluster_job, now = cluster.find(client, job), time.time()
    pods, events = cluster.pods(client, cluster_job.name), cluster.events(client, cluster_job.name, num_events)
    ends = cluster_logs.last_lines(client, troubled(cluster_job, pods), local.NUM_LAST_LINES)
    local.show(account(cluster_job, stopped(cluster_job, pods, ends), events), as_json=as_json, now=now)
    return int(enums.ExitCode.OK)


def troubled(job: cluster.Job, pods: Sequence[cluster.Pod]) -> list[cluster.Pod]:
    """Return the pods that should be ready and are not."""
    return [] if _is_over(job) else [pod for pod in pods if pod.trouble]


def stopped(
    job: cluster.Job, pods: Sequence[cluster.Pod], ends: Mapping[str, Sequence[str]] = types.MappingProxyType({})
) -> list[why_text.StoppedProcess]:
    """Return what of a job does not run and should. ends: the last lines of a pod, by its name."""
    return [_down(pod, ends.get(pod.name, ())) for pod in troubled(job, pods)]


def as_values(job: cluster.Job) -> dict[str, object]:
    """Return the status as JSON values, under the names of the RLJob."""
    return {
        "job": job.name,
        "namespace": job.namespace,
        "running": job.holds(ConditionType.RUNNING),
        "maxSteps": job.max_steps,
        "status": job.raw_status,
    }


def lines(job: cluster.Job, now: float) -> Iterator[str]:
    """Yield one line per role, one of progress, the stall if there is one."""
    status = job.status
    for role in status.roles:
        restarts = f"  {role.restarts} restarts" if role.restarts else ""
        yield terminal.line(f"{role.name:<{_ROLES_WIDTH}} {role.ready}/{role.desired} ready{restarts}")
    yield terminal.line(headline(job))
    yield progress_line(job, now)
    if status.usage is not None:
        yield terminal.line(usage_line(status.usage))
    yield from map(terminal.line, _losses(status.trajectories))
    if problem := _storage_problem(job):
        yield terminal.line(problem)
    stalled = job.condition(ConditionType.STALLED)
    if stalled is not None and stalled.status == "True":
        yield terminal.line(f"stalled ({stalled.reason}): {stalled.message}")


def _losses(counts: TrajectoriesStatus | None) -> Iterator[str]:
    if counts is not None:
        left_out: dict[str, int] = {
            enums.DropReason.TOO_LONG: counts.too_long,
            enums.DropReason.INVALID_RECORD: counts.invalid_record,
        }
        yield from why_text.loss_sentences(left_out=left_out, dump_failures=counts.dump_failures)


def progress_line(job: cluster.Job, now: float) -> str:
    """Return the line of progress, as a run on one machine has it; unknown parts are left out."""
    status = job.status
    parts = [f"step {status.step or 0}/{job.max_steps}"]
    if status.reward is not None:
        of_same_step = status.pace is not None and status.pace.step == status.reward.step
        delta = status.pace.reward_delta if status.pace is not None and of_same_step else None
        parts.append(progress.reward(float(status.reward.mean), None if delta is None else float(delta)))
    if status.rollout is not None and status.rollout.ready:
        parts.append(f"rollout {status.rollout.ready}")
    if status.version is not None and status.version.lag is not None:
        parts.append(f"lag {status.version.lag}")
    if status.pace is not None:
        parts += _pace(status.pace, status.step or 0, job.max_steps)
    parts += [f"{result.suite} {float(result.accuracy):.1%} at step {result.step}" for result in status.evaluation]
    if status.last_checkpoint is not None:
        parts.append(_checkpoint(status.last_checkpoint.step, status.last_checkpoint.time, now))
    return terminal.line("  ".join(parts))


def usage_line(used: UsageStatus) -> str:
    """Return what the job has used over all its segments."""
    parts = [f"{used.gpu_seconds / 3600:.1f} GPU hours"] if used.gpu_seconds else []
    parts.append(f"{float(used.cpu_core_seconds) / 3600:.1f} core hours")
    parts += [
        f"{count:,} tokens {kind}"
        for kind, count in (("generated", used.generated_tokens), ("trained", used.trained_tokens))
        if count
    ]
    return f"used {', '.join(parts)}"


def headline(job: cluster.Job) -> str:
    """Return the status of the job: its summary and why, and its supervised step if it is in one."""
    word = job.status.summary or "not seen by an operator yet"
    decisive = next(
        (
            condition
            for kind in (ConditionType.FAILED, ConditionType.COMPLETE, ConditionType.SUSPENDED)
            if (condition := job.condition(kind)) is not None and condition.status == "True"
        ),
        None,
    )
    if decisive is not None:
        return f"{word} ({decisive.reason}){': ' + decisive.message if decisive.message else ''}"
    state = f"{word} ({job.status.reason})" if job.status.reason else word
    supervised = progress.supervised_step(job.status.step or 0, job.status.sft_steps or 0)
    return f"{state}, {supervised}" if supervised else state


def account(
    job: cluster.Job, down: Sequence[why_text.StoppedProcess], events: Sequence[log_lines.Line]
) -> why_text.Account:
    """Return the account of a job: the operator's diagnosis with its chain, pods that are in trouble, events."""
    ended = _is_over(job)
    return why_text.Account(
        job=job.name,
        headline=f"{headline(job)}; {job.status.step or 0} of {job.max_steps} steps done",
        running=not ended,
        storage_problem="" if ended else _storage_problem(job),
        concerns=() if ended else _concerns(job),
        down=down,
        diagnosis=None if ended else _diagnosis(job),
        events=events,
    )


def _storage_problem(job: cluster.Job) -> str:
    durable = job.condition(ConditionType.STATE_DURABLE)
    return durable.message if durable is not None and durable.reason == UPLOADS_FAILING else ""


def _concerns(job: cluster.Job) -> tuple[api_types.Concern, ...]:
    degraded = job.condition(ConditionType.DEGRADED)
    if degraded is None or degraded.reason != LEARNING_DIVERGED:
        return ()
    return (api_types.Concern(reason=degraded.reason, message=degraded.message),)


def _is_over(job: cluster.Job) -> bool:
    """Return whether no pod of the job should run: what is left of them does not matter."""
    return any(map(job.holds, (ConditionType.COMPLETE, ConditionType.FAILED, ConditionType.SUSPENDED)))


def _diagnosis(job: cluster.Job) -> waiting.Diagnosis | None:
    named = job.status.stalled
    if named is None or named.reason not in STALL_REASONS:
        return None
    condition = job.condition(ConditionType.STALLED)
    message = condition.message if condition is not None and condition.status == "True" else ""
    since = log_lines.unix_s(named.since, math.nan)
    return waiting.Diagnosis(
        reason=named.reason, role=named.role, pod=named.pod, since=0.0 if math.isnan(since) else since, message=message
    )


def _down(pod: cluster.Pod, last_lines: Sequence[str]) -> why_text.StoppedProcess:
    restarts = f", restarted {pod.restarts} times" if pod.restarts else ""
    return why_text.StoppedProcess(
        name=pod.name, sentence=f"{pod.name}: {pod.trouble}{restarts}", last_lines=last_lines
    )


def _pace(pace: PaceStatus, step: int, max_steps: int) -> list[str]:
    return progress.pace(
        step=step,
        max_steps=max_steps,
        trainer_wait_share=float(pace.trainer_wait_share),
        rollout_wait_share=float(pace.rollout_wait_share),
        tokens_per_s=float(pace.tokens_per_second),
        step_s=float(pace.step_seconds),
    )


def _checkpoint(step: int, written: str | None, now: float) -> str:
    at = log_lines.unix_s(written, math.nan)
    return f"checkpoint of step {step}" + ("" if math.isnan(at) else f", {progress.duration(max(0.0, now - at))} ago")
