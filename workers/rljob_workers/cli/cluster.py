"""A job in a cluster as the API server has it: the RLJob, its pods, its events."""

import dataclasses
import json
import pathlib
from collections.abc import Sequence

import pydantic

from rljob_api import enums, errors
from rljob_api.conditions import ConditionType
from rljob_api.manifest.status import Condition, JobStatus
from rljob_workers.cli import kubectl
from rljob_workers.local import prepare
from rljob_workers.local.rundir import log_lines

_RESOURCE = f"rljobs.{enums.API_GROUP}"
# Of a role's pod: the one that runs the role.
CONTAINER = "rljob"
JOB_LABEL, ROLE_LABEL = f"{enums.API_GROUP}/job", f"{enums.API_GROUP}/role"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One RLJob. stalled_after_s: its stall timeout, None where the object has none. retry, suspend: of the spec."""

    name: str
    namespace: str
    max_steps: int
    stalled_after_s: float | None
    status: JobStatus
    raw_status: kubectl.Object
    retry: int = 0
    suspend: bool = False

    def condition(self, kind: str) -> Condition | None:
        return next((condition for condition in self.status.conditions if condition.type == kind), None)

    def holds(self, kind: str) -> bool:
        """Return whether a condition is True."""
        condition = self.condition(kind)
        return condition is not None and condition.status == "True"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """One pod of a job. trouble: why it is not ready, empty if it is or has ended well; restarts: of its container.

    ran: a container of it ran, so there is a log; ran_before: the relevant one is that before the last restart.
    """

    name: str
    role: str
    ready: bool
    restarts: int
    trouble: str
    ran: bool
    ran_before: bool


def find(client: kubectl.Kubectl, job: str) -> Job:
    """Return the job of that name (or of that manifest), the only one of the namespace if `job` is empty.

    Raises ManifestError if there are none or several to choose from, ClusterError if the cluster does not answer.
    """
    if job:
        return job_of(body(client, name_of(job)))
    jobs = bodies(client)
    if len(jobs) == 1:
        return job_of(jobs[0])
    if not jobs:
        raise errors.ManifestError("no RLJob was found in this namespace: select another with --namespace")
    job_names = ", ".join(sorted(str(job["metadata"]["name"]) for job in jobs)[:8])
    raise errors.ManifestError(f"there are {len(jobs)} RLJobs in this namespace ({job_names}): specify one")


def bodies(client: kubectl.Kubectl) -> Sequence[kubectl.Object]:
    """Return all RLJobs of the namespace as the API server has them. Raises ClusterError."""
    jobs: Sequence[kubectl.Object] = client.get(_RESOURCE)["items"]
    return jobs


def body(client: kubectl.Kubectl, name: str) -> kubectl.Object:
    """Return one RLJob as the API server has it. Raises ClusterError."""
    return client.get(_RESOURCE, name)


def name_of(job: str) -> str:
    """Return the job's name, that of the manifest if `job` is a file. Raises ManifestError."""
    if job.endswith((".yaml", ".yml")):
        return prepare.read_manifest(pathlib.Path(job)).job.metadata.name
    return kubectl.checked_name(job, "JOB")


def job_of(body: kubectl.Object) -> Job:
    """Raises ClusterError if its status is not one of ours."""
    raw = body.get("status") or {}
    try:
        status = JobStatus.model_validate_json(json.dumps(raw))
    except pydantic.ValidationError as error:
        raise errors.ClusterError(
            f"the status of {body['metadata']['name']} cannot be read: {error.error_count()} fields do not match "
            f"{enums.API_GROUP}/{enums.API_VERSION}"
        ) from error
    stall = (body["spec"].get("failurePolicy") or {}).get("stall") or {}
    limit = stall.get("timeoutSeconds")
    return Job(
        name=str(body["metadata"]["name"]),
        namespace=str(body["metadata"].get("namespace", "")),
        max_steps=int(body["spec"].get("maxSteps", 0)),
        stalled_after_s=None if limit is None else float(limit),
        status=status,
        raw_status=raw,
        retry=int(body["spec"].get("retry", 0)),
        suspend=bool(body["spec"].get("suspend", False)),
    )


def next_retry(job: Job) -> int:
    """Return the spec.retry that lets a failed run continue.

    Raises ManifestError for a run that has not failed, or whose retry is asked for already.
    """
    if not job.holds(ConditionType.FAILED):
        what = job.status.summary or "Pending"
        raise errors.ManifestError(f"{job.name} is {what}: only a run that has Failed is retried")
    if job.retry > (job.status.retry or 0):
        waits = "once spec.suspend is false" if job.suspend else "as soon as an operator sees it"
        raise errors.ManifestError(f"{job.name} has spec.retry {job.retry} already: it continues {waits}")
    return job.retry + 1


def retry(client: kubectl.Kubectl, name: str) -> int:
    """Let a failed run continue from its last checkpoint. Raises ManifestError, ClusterError."""
    job = find(client, name)
    print(client.patch(_RESOURCE, job.name, {"spec": {"retry": next_retry(job)}}))
    return int(enums.ExitCode.OK)


def pods(client: kubectl.Kubectl, job: str) -> list[Pod]:
    """Return the pods of a job by name. Raises ClusterError."""
    bodies = client.get("pods", f"--selector={JOB_LABEL}={job}")["items"]
    return sorted((pod_of(body) for body in bodies), key=lambda pod: pod.name)


def pod_of(body: kubectl.Object) -> Pod:
    status, metadata = body.get("status") or {}, body["metadata"]
    containers = status.get("containerStatuses") or ()
    ready = any(
        entry.get("type") == "Ready" and entry.get("status") == "True" for entry in status.get("conditions") or ()
    )
    restarts = sum(int(container.get("restartCount", 0)) for container in containers)
    waits = any("waiting" in (container.get("state") or {}) for container in containers)
    return Pod(
        name=str(metadata["name"]),
        role=str((metadata.get("labels") or {}).get(ROLE_LABEL, "")),
        ready=ready,
        restarts=restarts,
        ran=bool(containers) and (restarts > 0 or not waits),
        ran_before=restarts > 0 and waits,
        trouble="" if ready or status.get("phase") == "Succeeded" else _trouble(status, containers),
    )


def _trouble(status: kubectl.Object, containers: Sequence[kubectl.Object]) -> str:
    for container in containers:
        state = container.get("state") or {}
        ending = state.get("waiting") or state.get("terminated")
        if ending:
            code = f" with code {ending['exitCode']}" if "exitCode" in ending else ""
            detail = f": {ending['message']}" if ending.get("message") else ""
            return f"{ending.get('reason') or 'ended'}{code}{detail}"
    for condition in status.get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return f"{condition.get('reason', 'Unschedulable')}: {condition.get('message', '')}"
    return str(status.get("reason") or status.get("phase") or "not ready")


def events(client: kubectl.Kubectl, job: str, count: int) -> list[log_lines.Line]:
    """Return the newest events about the RLJob, oldest first. Raises ClusterError."""
    about = f"--field-selector=involvedObject.kind={enums.KIND},involvedObject.name={job}"
    lines = sorted((event_of(event) for event in client.get("events", about)["items"]), key=lambda line: line.at)
    return lines[-count:] if count else []


def event_of(body: kubectl.Object) -> log_lines.Line:
    series = body.get("series") or {}
    times = (series.get("lastObservedTime"), body.get("lastTimestamp"), body.get("eventTime"))
    at = next((time for time in times if time), body["metadata"].get("creationTimestamp"))
    level = "warning" if body.get("type") == "Warning" else "info"
    msg = f"{body.get('reason', '')}: {body.get('message', '')}"
    return log_lines.Line(
        at=log_lines.unix_s(at, 0.0), source="event", msg=msg, fields={"ts": at, "level": level, "msg": msg}
    )
