"""A cluster in memory: objects with uids, pods made by pretended controllers, and an operator that dies at any call.

A fake. It keeps what the operator's logic rests on: one object a name, uid preconditions, Jobs that fail with their
first failed pod and are not replaced, pods that stay Terminating until their grace is over, deletion by owner.
"""

import copy
import dataclasses
import itertools
from collections.abc import Mapping, Sequence

from rljob_api import enums, types
from rljob_api.manifest.job import RLJob
from rljob_api.manifest.status import JobStatus
from rljob_operator.model import (
    POD,
    RLJOB,
    Annotate,
    Apply,
    Child,
    Delete,
    DesiredObjects,
    Observed,
    PatchStatus,
    Plan,
    Pod,
    Ref,
    Refusal,
    Report,
    Scale,
)
from rljob_operator.policies import refusals
from rljob_operator.policies.scheduling import num_pods
from rljob_operator.reconcile.cluster import OutOfDateError
from rljob_operator.reconcile.shortages import Shortages
from rljob_operator.reports import SILENT_S
from rljob_testing.clock import FakeClock

DRAIN_S = 3.0
NUM_NODES, NUM_ROLLOUTS = 2, 2


class OperatorKilled(BaseException):
    """The operator died at a numbered call; no code of it may catch this."""


def wanted(seen: Observed) -> DesiredObjects:
    """Return small manifests of a job's children, with the shape of real ones."""
    spec = seen.job.spec

    def workloads(attempt: int) -> list[Mapping[str, object]]:
        return [
            _manifest("StatefulSet", "coordinator", replicas=1),
            _manifest("Deployment", "verifier", replicas=spec.verifier.replicas),
            _manifest("Deployment", "rollout", replicas=spec.rollout.replicas),
            _manifest("Job", "trainer", attempt=attempt, completions=spec.trainer.nodes),
        ]

    return DesiredObjects(first=(_manifest("ConfigMap", "config"),), workloads=workloads)


def _manifest(kind: str, role: str, *, attempt: int = 0, **spec: int) -> Mapping[str, object]:
    name = f"job-{role}-{attempt}" if attempt else f"job-{role}"
    labels = {"role": role, "attempt": str(attempt), "rljob.dev/job": "job", "rljob.dev/role": role}
    return {"kind": kind, "metadata": {"name": name, "labels": labels}, "spec": spec}


class FakeCluster:
    """One job, its children and their pods. `kill_at`: calls before (2n) or after (2n + 1) which the operator dies."""

    def __init__(self, job: RLJob, clock: FakeClock, *, kill_at: frozenset[int] = frozenset()) -> None:
        self.job: RLJob | None = job
        self.clock, self.kill_at = clock, kill_at
        self.version = 1
        self.children: dict[Ref, Child] = {}
        self.pods: dict[str, Pod] = {}
        self.report: Report | None = None
        # Since when the coordinator does not answer; None: what would be said of a report that never came.
        self.silent_since: float | None = None
        self._asking_since: float | None = None
        # What controllers are reported when they make a pod of a role that the API server denies.
        self.denied: dict[enums.Role, str] = {}
        # Pods on nodes that do not answer: nothing ends them but a deletion by force.
        self._dead: set[str] = set()
        self._shortages = Shortages(now=clock.now)
        self.calls: list[str] = []
        self.statuses: list[JobStatus] = []
        self.jobs_made: list[str] = []
        # HTTP status with which writes of a child are refused, by its name; and what was refused.
        self.refusing: dict[str, int] = {}
        self.refusals: dict[Ref, Refusal] = {}
        self._uids = itertools.count(1)
        # Before and after each call of the operator's.
        self.num_points = 0
        self._gone_at: dict[str, float] = {}
        self._had_pods: set[str] = set()

    def _point(self) -> None:
        point, self.num_points = self.num_points, self.num_points + 1
        if point in self.kill_at:
            raise OperatorKilled

    # What the operator calls.

    async def observe(self, key: str, *, live: bool) -> Observed | None:
        if self.job is None:
            return None
        return Observed(
            job=self.job,
            version=self.version,
            children=copy.copy(self.children),
            pods=tuple(sorted(self.pods.values(), key=lambda pod: pod.name)),
            report=self.report,
            silent_since=self._silence(),
            short=await self._shortages.look(
                "job-uid", self.children.values(), list(self.pods.values()), self._failures
            ),
            refusals=dict(self.refusals),
        )

    def planned(self, seen: Observed, planned: Plan, wanted: DesiredObjects) -> None:
        self.refusals = {refusal.ref: refusal for refusal in planned.refused}

    def _silence(self) -> float | None:
        """Return since when the coordinator is silent, as the reports say it: tried in vain for half a minute."""
        if self.silent_since is not None:
            return self.silent_since
        if self.report is not None or not any(pod.role is enums.Role.COORDINATOR for pod in self.pods.values()):
            self._asking_since = None
            return None
        self._asking_since = self._asking_since or self.clock.now()
        return self._asking_since if self.clock.now() - self._asking_since >= SILENT_S else None

    async def _failures(self, child: Child) -> str:
        return self.denied.get(child.role, "") if child.role is not None else ""

    async def write_status(self, seen: Observed, status: JobStatus) -> None:
        self._point()
        if self.job is not None and self.job.metadata.uid == seen.job.metadata.uid:
            if seen.version != self.version:
                raise OutOfDateError("the job has changed")
            self.calls.append("status")
            self.statuses.append(status)
            self._change(self.job.model_copy(update={"status": status}))
        self._point()

    def _change(self, job: RLJob) -> None:
        self.job, self.version = job, self.version + 1

    def _refused(self, seen: Observed, ref: Ref) -> Refusal | None:
        status = self.refusing.get(ref.name)
        if status is None:
            self.refusals.pop(ref, None)
            return None
        self.calls.append(f"refused {ref.name}")
        generation = seen.job.metadata.generation
        new = Refusal(ref=ref, reason=refusals.reason(status), message=f"HTTP {status}", generation=generation)
        self.refusals[ref] = refusals.with_backoff(self.refusals.get(ref), new, now=self.clock.now())
        return self.refusals[ref]

    async def apply(self, seen: Observed, action: Apply) -> Refusal | None:
        self._point()
        if refusal := self._refused(seen, action.ref):
            return refusal
        metadata, spec = action.manifest["metadata"], action.manifest["spec"]
        assert isinstance(metadata, dict)
        assert isinstance(spec, dict)
        ref = Ref(str(action.manifest["kind"]), metadata["name"])
        known = self.children.get(ref)
        self.calls.append(f"apply {ref.name}")
        if known is None and not action.uid:
            role = metadata["labels"]["role"]
            attempt = int(metadata["labels"]["attempt"])
            own = None if role == "config" else enums.Role(role)
            uid = f"uid-{next(self._uids)}"
            self.children[ref] = Child(ref=ref, uid=uid, manifest=action.manifest, role=own, attempt=attempt)
            if attempt:
                self.jobs_made.append(ref.name)
        elif known is not None and action.uid in ("", known.uid):
            self.children[ref] = dataclasses.replace(known, manifest=action.manifest)
        else:
            raise OutOfDateError(f"{ref.name} was replaced")
        self._point()
        return None

    async def scale(self, seen: Observed, action: Scale) -> None:
        self._point()
        known = self.children.get(action.ref)
        if known is not None and known.uid == action.uid:
            self.calls.append(f"scale {action.ref.name} {action.replicas}")
            manifest = {**known.manifest, "spec": {"replicas": action.replicas}}
            self.children[action.ref] = dataclasses.replace(known, manifest=manifest)
        self._point()

    async def annotate(self, seen: Observed, action: Annotate) -> None:
        self._point()
        pod = self.pods.get(action.ref.name)
        if pod is not None and pod.uid == action.uid:
            cost = int(action.annotations.get("controller.kubernetes.io/pod-deletion-cost") or 0)
            self.calls.append(f"cost {pod.name} {cost}")
            self.pods[pod.name] = dataclasses.replace(pod, deletion_cost=cost)
        self._point()

    async def patch_status(self, seen: Observed, action: PatchStatus) -> Refusal | None:
        self._point()
        known = self.children.get(action.ref)
        if known is None or (known.uid, known.version) != (action.uid, action.version):
            raise OutOfDateError(f"{action.ref.name} has changed")
        self.calls.append(f"patch {action.ref.name}")
        status = {**(known.manifest.get("status") or {}), **action.status}  # type: ignore[dict-item]  # a mapping
        self.change(action.ref, {**known.manifest, "status": status})
        self._point()
        return None

    def change(self, ref: Ref, manifest: Mapping[str, object]) -> None:
        """Let a child be another version of itself."""
        known = self.children[ref]
        self.children[ref] = dataclasses.replace(known, manifest=manifest, version=known.version + 1)

    async def delete(self, seen: Observed, action: Delete) -> Refusal | None:
        self._point()
        if refusal := self._refused(seen, action.ref):
            return refusal
        self.calls.append(f"delete {action.ref.name}")
        if action.ref.kind == RLJOB:
            if self.job is not None and self.job.metadata.uid == action.uid:
                self.job = None
        elif action.ref.kind == POD:
            pod = self.pods.get(action.ref.name)
            if pod is not None and pod.uid == action.uid:
                if action.grace_s == 0:
                    # A Job's finalizer keeps its pod until either has ended, or the Job is gone.
                    self.pods[pod.name] = dataclasses.replace(pod, deleting=True, ready=False, forced=True)
                    self._gone_at.pop(pod.name, None)
                else:
                    self._terminate(pod, DRAIN_S if action.grace_s is None else min(DRAIN_S, action.grace_s))
        else:
            known = self.children.get(action.ref)
            if known is not None and known.uid == action.uid:
                del self.children[action.ref]
        self._point()
        return None

    # What the cluster's own controllers do.

    def settle(self) -> None:
        """Let controllers and kubelets act once."""
        # A kubelet counts a grace period by a clock that never jumps.
        now = self.clock.monotonic()
        for name in [name for name, at in self._gone_at.items() if at <= now and name not in self._dead]:
            del self._gone_at[name]
            self.pods.pop(name, None)
        owners = {child.uid for child in self.children.values() if child.attempt and not child.ended}
        for pod in [pod for pod in self.pods.values() if pod.forced and pod.uid.partition("/")[0] not in owners]:
            self._dead.discard(pod.name)
            del self.pods[pod.name]
        if self.job is None:
            self.children.clear()
        expected = {name: child for child in self.children.values() for name in self._pod_names(child)}
        for pod in list(self.pods.values()):
            if pod.name not in expected and not pod.deleting:
                self._terminate(pod, 0.0 if pod.is_terminal else DRAIN_S)
        for name, child in expected.items():
            # A Job with restartPolicy Never and backoffLimit 0 never makes a pod twice.
            if name not in self.pods and not child.ended and not (child.attempt and child.uid in self._had_pods):
                self._make(name, child)
        for ref, child in list(self.children.items()):
            if ref.kind == "Deployment" and child.role is not None:
                lacks = num_pods(child, list(self.pods.values())) < child.wanted_replicas
                said = self.denied.get(child.role, "") if lacks else ""
                self.children[ref] = dataclasses.replace(child, denied=said)
        for child in [child for child in self.children.values() if child.attempt and not child.ended]:
            self._had_pods |= {child.uid} if self._pods_of(child) else set()
            self._end_job(child)

    def _pods_of(self, child: Child) -> list[Pod]:
        return [pod for pod in self.pods.values() if pod.uid.startswith(f"{child.uid}/")]

    def _pod_names(self, child: Child) -> list[str]:
        spec = child.manifest["spec"]
        assert isinstance(spec, dict)
        return [
            f"{child.ref.name}-{index}" for index in range(int(spec.get("replicas", spec.get("completions", 0)) or 0))
        ]

    def _make(self, name: str, child: Child) -> None:
        assert child.role is not None
        if child.role in self.denied:
            return
        uid = f"{child.uid}/{next(self._uids)}"
        now = self.clock.now()
        self.pods[name] = Pod(
            name=name, uid=uid, role=child.role, attempt=child.attempt, phase="Running", ready=True, created_at=now
        )

    def _end_job(self, child: Child) -> None:
        pods = self._pods_of(child)
        ended = ""
        if any(pod.phase == "Failed" for pod in pods) or (child.uid in self._had_pods and len(pods) < NUM_NODES):
            ended = "Failed"
        elif pods and all(pod.phase == "Succeeded" for pod in pods):
            ended = "Complete"
        if ended:
            self.children[child.ref] = dataclasses.replace(child, ended=ended)

    def _terminate(self, pod: Pod, grace_s: float) -> None:
        if not pod.deleting:
            ends = self.clock.now() + grace_s
            self.pods[pod.name] = dataclasses.replace(pod, deleting=True, ready=False, deleted_at=ends)
            self._gone_at[pod.name] = self.clock.monotonic() + grace_s

    # What tests do to it.

    def end_trainer(self, exit_code: int, *, rank: int | None = None) -> None:
        """End the running pods of the trainer, or one rank's, with an exit code."""
        running = [pod for pod in self.pods.values() if pod.role is enums.Role.TRAINER and not pod.is_terminal]
        for pod in running:
            if not pod.deleting and (rank is None or pod.name.endswith(f"-{rank}")):
                phase = "Failed" if exit_code else "Succeeded"
                now = self.clock.now()
                ended = {"phase": phase, "exit_code": exit_code, "ready": False, "finished_at": now}
                self.pods[pod.name] = dataclasses.replace(pod, **ended)  # type: ignore[arg-type]  # names fit

    def lose_node(self, *pods: str, evicted: bool = True, grace_s: float = 615.0) -> None:
        """Let the node of these pods stop answering, and their eviction begin, as the node controller leaves them."""
        now = self.clock.now()
        marks = {("Ready", "False"), ("ContainersReady", "True"), *([("DisruptionTarget", "True")] if evicted else [])}
        for name in pods:
            self._dead.add(name)
            self.pods[name] = dataclasses.replace(
                self.pods[name], ready=False, deleting=evicted, conditions=frozenset(marks),
                disruption="DeletionByTaintManager" if evicted else "", disrupted_at=now if evicted else 0.0,
                deleted_at=now + grace_s if evicted else 0.0,
            )  # fmt: skip

    def edit(self, **changes: object) -> None:
        """Change fields of the spec, as a user would."""
        if self.job is not None:
            metadata = self.job.metadata.model_copy(update={"generation": self.job.metadata.generation + 1})
            spec = self.job.spec.model_copy(update=changes)
            self._change(self.job.model_copy(update={"spec": spec, "metadata": metadata}))

    def says(
        self,
        phase: enums.Phase,
        *,
        step: int,
        checkpoint_step: int = 0,
        failure: str = "",
        attempts: Sequence[types.TrainerAttempt] = (),
    ) -> None:
        """Let the coordinator report, and answer from now on; without `attempts` as one of an older version does."""
        self.silent_since = None
        now = self.clock.now()
        run = types.RunStatus(
            job="job",
            phase=phase,
            step=step,
            checkpoint_step=checkpoint_step,
            checkpoint_at=now if checkpoint_step else 0.0,
            last_progress_at=now,
            failure=failure,
            attempts=attempts,
        )
        self.report = Report(run=run, read_at=now)

    def answers(self) -> None:
        """Let the coordinator be asked now, and say what it said last."""
        assert self.report is not None
        self.report = dataclasses.replace(self.report, read_at=self.clock.now())
