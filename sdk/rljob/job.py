"""One job in a cluster."""

import collections
import json
import time
from collections.abc import Callable, Iterator

from rljob import errors, following
from rljob.api import Api, Object
from rljob_api.conditions import ConditionType
from rljob_api.manifest.job import RLJob
from rljob_api.manifest.status import JobStatus
from rljob_workers.cli import cluster, cluster_logs, cluster_status
from rljob_workers.cli.why_text import Account
from rljob_workers.local.rundir import log_lines

LogLine = log_lines.Line
_NUM_EVENTS = 8


class Job:
    """A job by name; `status` is what was read last, `refresh` reads again."""

    def __init__(self, api: Api, body: Object, *, now: Callable[[], float] = time.monotonic) -> None:
        self._api = api
        self._now = now
        self._read(body)

    def __repr__(self) -> str:
        return f"Job({self.namespace}/{self.name}: {self._job.status.summary or 'not seen by an operator yet'})"

    @property
    def name(self) -> str:
        return self._job.name

    @property
    def namespace(self) -> str:
        return self._job.namespace

    @property
    def uid(self) -> str:
        return str(self._body["metadata"]["uid"])

    @property
    def status(self) -> JobStatus:
        return self._job.status

    @property
    def manifest(self) -> RLJob:
        """Return the whole job with its defaults. Raises ValidationError if a newer version wrote it."""
        return RLJob.model_validate_json(json.dumps(self._body))

    @property
    def is_over(self) -> bool:
        """Return whether the run has ended, well or not."""
        return self._job.holds(ConditionType.COMPLETE) or self._job.holds(ConditionType.FAILED)

    def refresh(self) -> "Job":
        """Read the job again. Raises ApiError."""
        self._read(self._api.get(self.name))
        return self

    def watch(self, timeout: float | None = None) -> Iterator[JobStatus]:
        """Yield the status, and again whenever it changes, until the run has ended or `timeout` seconds are over.

        Lost connections and expired versions are recovered from. Raises GoneError if the job is deleted, ApiError.
        """
        deadline = None if timeout is None else self._now() + timeout
        before: object = None
        for body in following.objects(self._api, self.name, deadline=deadline, now=self._now):
            self._read(body)
            if self._job.raw_status != before:
                before = self._job.raw_status
                yield self.status
            if self.is_over:
                return

    def steps(self, timeout: float | None = None) -> Iterator[JobStatus]:
        """Yield the status after each step that is finished from now on, as `watch` does. A status that the operator
        writes after several steps counts once.
        """
        step = self.status.step or 0
        for status in self.watch(timeout):
            if (status.step or 0) > step:
                step = status.step or 0
                yield status

    def wait(self, timeout: float | None = None) -> JobStatus:
        """Return the last status of a run that ended well; wait for that for `timeout` seconds, without one for ever.

        Raises JobFailedError if it failed, WaitTimeoutError, GoneError, ApiError.
        """
        collections.deque(self.watch(timeout), maxlen=0)
        failed = self._job.condition(ConditionType.FAILED)
        if failed is not None and failed.status == "True":
            raise errors.JobFailedError(self.name, failed.reason, failed.message)
        if not self.is_over:
            raise errors.WaitTimeoutError(f"{self.name} is {self.status.summary or 'Pending'} after {timeout} s")
        return self.status

    def why(self) -> Account:
        """Return why the job is where it is, as `kubectl rljob why` has it. Raises ApiError."""
        self.refresh()
        pods = [cluster.pod_of(body) for body in self._api.pods(self.name)]
        events = sorted((cluster.event_of(body) for body in self._api.events(self.name)), key=lambda line: line.at)
        return cluster_status.account(self._job, cluster_status.stopped(self._job, pods), events[-_NUM_EVENTS:])

    def suspend(self) -> None:
        """Ask for a checkpoint, and that every pod be freed. Raises ApiError."""
        self._read(self._api.patch(self.name, {"spec": {"suspend": True}}))

    def resume(self) -> None:
        """Continue from the checkpoint. Raises ApiError."""
        self._read(self._api.patch(self.name, {"spec": {"suspend": False}}))

    def retry(self) -> None:
        """Let a failed run continue from its last checkpoint. Raises ManifestError if it has not failed, ApiError."""
        self.refresh()
        self._read(self._api.patch(self.name, {"spec": {"retry": cluster.next_retry(self._job)}}))

    def delete(self) -> None:
        """Delete the job and what it owns; claims that are kept stay. Raises ApiError."""
        self._api.delete(self.name)

    def logs(
        self, role: str | None = None, *, pod: str | None = None, tail: int | None = None, follow: bool = False
    ) -> Iterator[LogLine]:
        """Yield the lines of the pods that there are, merged by time. tail: the last lines of each pod.

        Raises ManifestError for `follow` with other than one pod: choose one with `pod`. Raises ApiError.
        """
        there = [cluster.pod_of(body) for body in self._api.pods(self.name)]
        chosen = sorted(each.name for each in there if role in (None, each.role) and pod in (None, each.name))
        if follow and len(chosen) != 1:
            names = ", ".join(sorted(each.name for each in there))
            raise errors.ManifestError(f"follow reads one pod, but {len(chosen)} match: name one with pod, of {names}")
        ran = {each.name for each in there if each.ran}
        return log_lines.merge(self._lines(name, tail=tail, follow=follow) for name in chosen if name in ran)

    def _lines(self, pod: str, *, tail: int | None, follow: bool) -> Iterator[LogLine]:
        before = 0.0
        for text in self._api.log(pod, tail=tail, follow=follow):
            line = cluster_logs.line_of(text, source=pod, job=self.name, before=before)
            before = line.at
            yield line

    def _read(self, body: Object) -> None:
        self._body, self._job = body, cluster.job_of(body)
