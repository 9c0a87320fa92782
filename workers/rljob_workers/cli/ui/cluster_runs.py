"""The jobs of a namespace for the page, with the user's own kubectl and its rights.

State, progress and why a job waits are read from its RLJob, pods and events, as `kubectl rljob status` and `why` do.
Curves are the coordinator's history, read by `kubectl exec` while the pod runs: who may not do that sees all but them.
Trajectories are on the rollouts' disks and are not read from here.
"""

import posixpath
import statistics
import time
from collections.abc import Sequence

from rljob_api import cluster_placement, enums, errors
from rljob_api.conditions import ConditionType
from rljob_workers.cli import cluster, cluster_status, kubectl, why_text
from rljob_workers.cli.ui import views
from rljob_workers.local.rundir import history, layout

# A line of a step has about two kilobytes; of a longer history the last part is shown.
MOST_LINES = 200_000
_MOST_LINE_BYTES = 1 << 20
NUM_EVENTS = 8


class ClusterRuns:
    """What the API server and the coordinators of a namespace say. What was read of a history is kept until the next
    step.
    """

    def __init__(self, client: kubectl.Kubectl, *, namespace: str) -> None:
        """namespace: as the user chose it, empty for that of the context; for the page alone."""
        self._client, self._namespace = client, namespace or "the namespace of the context"
        self._histories: dict[str, tuple[tuple[object, ...], history.Run]] = {}

    def listed(self) -> views.JsonObject:
        """Return all jobs, the one that changed last first. Raises ClusterError."""
        rows = [_summary_or_problem(body) for body in cluster.bodies(self._client)]
        return {
            "folder": self._namespace,
            "runs": sorted(rows, key=lambda row: str(row["changed_at"]), reverse=True),
        }

    def run(self, name: str) -> views.JsonObject:
        """Return one job. Raises ManifestError for what is no name, ClusterError if there is no such job."""
        body = cluster.body(self._client, kubectl.checked_name(name[:300], "the job"))
        job, now = cluster.job_of(body), time.time()
        pods = cluster.pods(self._client, job.name)
        account = cluster_status.account(
            job, cluster_status.stopped(job, pods), cluster.events(self._client, job.name, NUM_EVENTS)
        )
        read, problem = self._history(job, str(body["metadata"]["uid"]), pods)
        return {
            **_summary(job, body),
            "why": [*why_text.lines(account, now), *([problem] if problem else [])],
            "charts": [chart.as_json() for chart in views.charts(read)],
            "checkpoints": [job.status.last_checkpoint.step] if job.status.last_checkpoint is not None else [],
            "trajectories": {},
            "dumps": [],
        }

    def trajectories(self, name: str, query: views.TrajectoryQuery) -> views.JsonObject:
        """Raises DataError: they are not in the cluster's API."""
        del query
        raise errors.DataError(
            f"trajectories of {name[:100]!r} are on its volumes and are not read through the cluster"
        )

    def _history(self, job: cluster.Job, uid: str, pods: Sequence[cluster.Pod]) -> tuple[history.Run, str]:
        """Return the history as of the job's last step, and why there is none newer than what was read before."""
        key = (job.status.step, job.status.evaluation, job.status.attempt)
        cached = self._histories.get(uid)
        if cached is not None and cached[0] == key:
            return cached[1], ""
        pod = next((pod for pod in pods if pod.role == enums.Role.COORDINATOR and pod.ready), None)
        before = history.Run() if cached is None else cached[1]
        if pod is None:
            return before, "" if before.steps else "no curves: its coordinator does not run"
        try:
            read = self._read(pod.name, uid)
        except errors.ClusterError as error:
            return before, f"no curves: {error}"
        self._histories[uid] = (key, read)
        return read, ""

    def _read(self, pod: str, uid: str) -> history.Run:
        path = posixpath.join(cluster_placement.state_folder(uid), layout.HISTORY)
        words = ["exec", pod, f"--container={cluster.CONTAINER}", "--", "tail", f"--lines={MOST_LINES}", path]
        return history.parse(self._client.lines(words, max_bytes=_MOST_LINE_BYTES))


def _summary_or_problem(body: kubectl.Object) -> views.JsonObject:
    try:
        return _summary(cluster.job_of(body), body)
    except errors.ClusterError as error:
        name = str(body["metadata"]["name"])
        return {"name": name, "state": "unreadable", "problem": str(error), "changed_at": ""}


def _summary(job: cluster.Job, body: kubectl.Object) -> views.JsonObject:
    """Return a job as the list of runs has it. Pure."""
    scores = [float(result.accuracy) for result in job.status.evaluation]
    times = [condition.last_transition_time for condition in job.status.conditions]
    return {
        "name": job.name,
        "job": job.name,
        "state": _state(job),
        "step": job.status.step or 0,
        "max_steps": job.max_steps,
        "reward": None if job.status.reward is None else float(job.status.reward.mean),
        "held_out": statistics.fmean(scores) if scores else None,
        "changed_at": max((time for time in times if time), default=str(body["metadata"].get("creationTimestamp", ""))),
    }


def _state(job: cluster.Job) -> str:
    """Return the word that the page also has for runs of one machine, else the job's own."""
    if job.holds(ConditionType.COMPLETE):
        return "finished"
    return "running" if job.holds(ConditionType.RUNNING) else (job.status.summary or "Pending").lower()
