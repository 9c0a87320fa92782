"""The table of docs/design/operator.md#s-17 as figures: one story on one cluster, from an idle operator to the last
deletion.

    idle -> one life -> a burst -> edits -> rest -> cold start -> trainers fail -> kill -> deletion -> encrypted burst
Writes are those of the API server's audit log, by the operator's own account.
"""

import contextlib
import dataclasses
import os
import time
from collections.abc import Callable, Iterator, Mapping

from rljob_api import enums, lifecycle
from rljob_operator.kube import kinds
from rljob_operator.telemetry.metric_names import TO_CHILD_SECONDS
from rljob_testing.operator_api import ClusterApi
from rljob_testing.operator_audit import AuditLog, Request, transitions
from rljob_testing.operator_load import Load, Shape, StandIn, spread
from rljob_testing.operator_process import OperatorProcess
from rljob_testing.operator_series import Series, share_within, total

SWITCH = "RLJOB_SCALE_JOBS"
# Key of the sizes in thresholds.yaml.
CHOSEN = int(os.environ.get(SWITCH, "200"))
RUNNING, ENDING, ENCRYPTED = "running", "ending", "encrypted"
_TO_CHILD = "rljob_operator_spec_to_child_seconds"
# Without a write for this long, nothing is under way any more.
_SETTLED_S = 5.0
_MOST_WINDOWS = 3
_IDLE_S = 5.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How much of everything. Numbers of jobs but for namespaces, rollouts, nodes (of each job), edits and seconds.

    within_s: how long one wait may take before the story is given up. ends_with: the last chapter that is told.
    """

    jobs: int
    encrypted: int
    namespaces: int
    rollouts: int
    nodes: int
    edits: int
    finished: int
    failing: int
    interrupted: int
    quiet_s: float
    within_s: float
    ends_with: str

    @property
    def suspended(self) -> int:
        """Return how many jobs are at rest with no pod."""
        return self.jobs // 10

    def shape(self, *, minimal: bool) -> Shape:
        """Return what a job is like."""
        return Shape(minimal=minimal, rollouts=self.rollouts, nodes=self.nodes)


class Table:
    """Shows the story and keeps the figures by name; units are in the names."""

    def __init__(
        self,
        *,
        api: ClusterApi,
        operator: OperatorProcess,
        audit: AuditLog,
        ending: StandIn,
        size: Size,
        cpu_seconds: Callable[[], Mapping[str, float]],
    ) -> None:
        """Keep the parts. ending: answers for the jobs that are to finish. cpu_seconds: of the cluster's processes."""
        self._cpu_seconds = cpu_seconds
        self._api, self._operator, self._audit, self._ending, self._size = api, operator, audit, ending, size
        self.figures: dict[str, float] = {}
        self._running = self._load(*spread(RUNNING, size.namespaces))
        self._finished = self._load(ENDING)

    def _load(self, *namespaces: str) -> Load:
        return Load(self._api, namespaces, check=self._operator.check)

    def tell(self) -> dict[str, float]:
        """Return the figures of all chapters; each prints its own, since the whole may take an hour."""
        chapters = (
            self._idle, self._one_life, self._burst, self._edits, self._rest, self._cold_start, self._trainers_fail,
            self._kill, self._delete, self._encrypted_burst,
        )  # fmt: skip
        for chapter in chapters:
            known, began, name = set(self.figures), time.monotonic(), chapter.__name__.lstrip("_")
            chapter()
            found = ", ".join(f"{each} {value:.2f}" for each, value in self.figures.items() if each not in known)
            print(f"{name} took {time.monotonic() - began:.0f} s: {found}", flush=True)
            if name == self._size.ends_with:
                break
        return self.figures

    def _delete(self) -> None:
        with self._bound("delete"):
            self.figures["minimal_delete_s"] = self._running.delete(within_s=self._size.within_s)
        self._finished.delete(within_s=self._size.within_s)

    def _idle(self) -> None:
        before, began = self._operator.series(), time.monotonic()
        time.sleep(_IDLE_S)
        self.figures["idle_millicores"] = _millicores(before, self._operator.series(), time.monotonic() - began)

    def _one_life(self) -> None:
        load, mark = self._finished, self._audit.mark()
        job = self._size.shape(minimal=True).job("life", {"ttlSecondsAfterFinished": 1})
        self._api.create(kinds.RLJOB, ENDING, job)
        self._finish(load, 1)
        load.until(lambda: not any(load.census().values()), within_s=self._size.within_s)
        written = [one for one in self._audit.writes(mark) if one.namespace == ENDING]
        children = {(one.resource, one.name) for one in written if one.status == 201 and one.verb == "patch"}
        statuses = [one.body["status"] for one in written if one.resource == "rljobs/status" and one.status == 200]
        self.figures["life_children"] = len(children)
        self.figures["life_writes"] = len(written)
        self.figures["life_writes_beyond_twice_the_children"] = len(written) - 2 * len(children)
        self.figures["life_status_writes_per_transition"] = len(statuses) / transitions(statuses)

    def _finish(self, load: Load, num_jobs: int) -> None:
        """Let all jobs of a namespace run, and finish."""
        self._ending.says(enums.Phase.RUNNING, step=1)
        self._until_state(load, num_jobs, "Running", "Degraded")
        self._ending.says(enums.Phase.FINISHED, step=4)
        load.end_pods(load.pods(enums.Role.TRAINER), 0)

    def _in_state(self, load: Load, *states: str) -> int:
        told = ((dict(has), value) for (name, has), value in self._operator.series().items() if name == "rljob_state")
        return int(
            sum(value for has, value in told if has["rljob_namespace"] in load.namespaces and has["state"] in states)
        )

    def _burst(self) -> None:
        size, mark = self._size, self._audit.mark()
        with self._bound("burst"):
            made = self._running.burst(size.shape(minimal=True), size.jobs, within_s=size.within_s)
        self.figures["minimal_children_per_job"] = made.children / size.jobs
        self.figures["minimal_children_s"] = made.children_s
        self.figures["minimal_pods"] = made.pods
        self.figures["minimal_pods_s"] = made.pods_s
        self._until_state(self._running, size.jobs, "Running")
        self.figures["start_writes_per_job"] = len(self._audit.writes(mark)) / size.jobs

    @contextlib.contextmanager
    def _bound(self, chapter: str) -> Iterator[None]:
        """Keep what the operator and the cluster's own processes use meanwhile: which of them the machine waits for."""

        def used() -> dict[str, float]:
            operator = total(self._operator.series(), "process_cpu_seconds_total")
            return {"operator": operator, **self._cpu_seconds()}

        before, began = used(), time.monotonic()
        yield
        elapsed_s = time.monotonic() - began
        for name, seconds in used().items():
            self.figures[f"{chapter}_{name}_millicores"] = (seconds - before[name]) / elapsed_s * 1000

    def _until_state(self, load: Load, num_jobs: int, *states: str) -> None:
        load.until(lambda: self._in_state(load, *states) == num_jobs, within_s=self._size.within_s)

    def _edits(self) -> None:
        before, wanted = self._operator.series(), self._size.rollouts + 1
        took = sorted(
            self._running.replicas_follow(number, wanted, within_s=self._size.within_s)
            for number in range(self._size.edits)
        )
        after = self._operator.series()
        half, nearly_all = TO_CHILD_SECONDS
        self.figures["edit_within_half_a_second_ratio"] = share_within(before, after, _TO_CHILD, seconds=half)
        self.figures["edit_within_three_seconds_ratio"] = share_within(before, after, _TO_CHILD, seconds=nearly_all)
        # From the request to the change that is read back: watches and the API server are in it.
        self.figures["edit_read_back_median_s"] = took[len(took) // 2]
        self.figures["edit_read_back_most_s"] = took[-1]

    def _rest(self) -> None:
        """Let some jobs be suspended, some finished, the others run and report the same again and again."""
        size, load = self._size, self._finished
        suspended = size.suspended
        for number in range(size.jobs - suspended, size.jobs):
            self._running.edit(number, {"suspend": True})
        load.create(size.shape(minimal=True), 0, size.finished)
        self._finish(load, size.finished)
        self._until_state(load, size.finished, "Succeeded")
        self._until_state(self._running, suspended, "Suspended")
        self._until_state(self._running, size.jobs - suspended, "Running")
        self._quiet_window()
        self.figures["rss_mib"] = total(self._operator.series(), "process_resident_memory_bytes") / (1 << 20)

    def _quiet_window(self) -> None:
        for _ in range(_MOST_WINDOWS):
            self._settle()
            mark, asked = self._audit.mark(), self._api.series()
            before, began = self._operator.series(), time.monotonic()
            with self._bound("quiet"):
                time.sleep(self._size.quiet_s)
            after = self._operator.series()
            self.figures["report_age_s"] = total(after, "rljob_operator_report_age_seconds")
            self.figures["streams"] = total(after, "rljob_operator_status_streams")
            silent = total(after, _POLLS, result="no_answer") - total(before, _POLLS, result="no_answer")
            self.figures["running_millicores"] = _millicores(before, after, time.monotonic() - began)
            self.figures["quiet_seconds"] = time.monotonic() - began
            self.figures["quiet_writes"] = len(self._audit.writes(mark))
            self.figures["quiet_requests_on_rljobs"] = _changes(self._api.series()) - _changes(asked)
            # A coordinator that did not get the time to answer is a change: nothing was steady.
            if not silent:
                return
        raise AssertionError("stand-in coordinators did not answer in time: this machine is too busy to measure on")

    def _settle(self) -> None:
        """Wait until nothing was written for a while."""
        end = time.monotonic() + self._size.within_s
        mark, since = self._audit.mark(), time.monotonic()
        while time.monotonic() - since < _SETTLED_S:
            assert time.monotonic() < end, f"never at rest: {self._audit.writes(mark)[-10:]}"
            time.sleep(_SETTLED_S / 5)
            if self._audit.writes(mark):
                mark, since = self._audit.mark(), time.monotonic()

    def _cold_start(self) -> None:
        self._operator.stop()
        mark = self._audit.mark()
        self._operator.start()
        self.figures["cold_start_s"] = self._operator.ready()
        num_jobs = self._size.jobs + self._size.finished
        self._running.until(
            lambda: total(self._operator.series(), "rljob_operator_reconcile_seconds_count") >= num_jobs,
            within_s=self._size.within_s,
        )
        time.sleep(_SETTLED_S)
        self.figures["cold_start_writes"] = len(self._audit.writes(mark))

    def _trainers_fail(self) -> None:
        failing = {f"job-{number}" for number in range(self._size.failing)}
        pods = [pod for pod in self._running.pods(enums.Role.TRAINER) if pod["metadata"]["labels"][_JOB] in failing]
        failed_at = self._running.end_pods(pods, 1)
        self._running.until(
            lambda: len(self._running.made_at("Job", "-trainer-2")) == len(failing), within_s=self._size.within_s
        )
        made_at = max(self._running.made_at("Job", "-trainer-2"))
        self.figures["next_attempts_s"] = max(0.0, made_at - failed_at - lifecycle.backoff_s(1))

    def _kill(self) -> None:
        """Kill the operator in the middle of starts, and see how long the rest of them waits for the next one."""
        size, load = self._size, self._running
        before = size.jobs - size.suspended
        load.until(lambda: load.count("Job") == before, within_s=size.within_s)
        load.create(size.shape(minimal=True), size.jobs, size.jobs + size.interrupted)
        load.until(lambda: load.count("Job") > before, within_s=size.within_s)
        self._operator.kill()
        has_all = {one["name"].rsplit("-trainer-", 1)[0] for one in load.metadata(kinds.BY_NAME["Job"])}
        left = {f"job-{number}" for number in range(size.jobs, size.jobs + size.interrupted)} - has_all
        assert left, "the starts were over before the operator was killed: interrupt more of them"
        mark = self._audit.mark()
        self._operator.start()
        self._operator.ready()
        load.until(lambda: load.count("Job") == before + size.interrupted, within_s=size.within_s)
        written = self._audit.writes(mark)
        self.figures["interrupted_starts"] = len(left)
        self.figures["taken_up_s"] = max(_first(written, load, name) for name in left) - self._operator.started_at

    def _encrypted_burst(self) -> None:
        size, load = self._size, self._load(*spread(ENCRYPTED, self._size.namespaces))
        made = load.burst(size.shape(minimal=False), size.encrypted, within_s=size.within_s)
        self.figures["encrypted_children_per_job"] = made.children / size.encrypted
        self.figures["encrypted_children_s"] = made.children_s
        self.figures["encrypted_pods_s"] = made.pods_s
        self.figures["encrypted_rss_mib"] = total(self._operator.series(), "process_resident_memory_bytes") / (1 << 20)
        self.figures["encrypted_delete_s"] = load.delete(within_s=size.within_s)


_POLLS = "rljob_operator_status_reports_total"
_JOB = "rljob.dev/job"


def _millicores(before: Series, after: Series, seconds: float) -> float:
    name = "process_cpu_seconds_total"
    return (total(after, name) - total(before, name)) / seconds * 1000


def _changes(found: Series) -> float:
    """Return how many requests on jobs the API server counts that were no reads, no matter who sent them."""
    name = "apiserver_request_total"
    reads = sum(total(found, name, resource="rljobs", verb=verb) for verb in ("GET", "LIST", "WATCH"))
    return total(found, name, resource="rljobs") - reads


def _first(written: list[Request], load: Load, job: str) -> float:
    """Return when something of a job was written first."""
    of_load = (one for one in written if one.namespace in load.namespaces)
    return min(one.at for one in of_load if f"{one.name}-".startswith(f"{job}-"))
