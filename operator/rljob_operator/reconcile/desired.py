"""What a job should have: its manifest, resolved for a cluster, as children. Pure; `resources` builds the objects."""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set

from rljob_api import cluster_placement, enums, errors, process_config, resolve, suites
from rljob_api.conditions import ConditionType as Type
from rljob_api.manifest import base
from rljob_api.manifest.job import RLJob
from rljob_api.validation import runtimes
from rljob_operator.model import (
    TRAINER_JOB,
    DesiredObjects,
    Manifest,
    Observed,
    Plan,
    Ref,
    RuntimeUse,
    StatusWrite,
    ref_of,
)
from rljob_operator.policies import admission, drift, pinning
from rljob_operator.queueing import admission as admission_to_queue
from rljob_operator.queueing import workload
from rljob_operator.reconcile import conditions
from rljob_operator.resources import autoscaling, children
from rljob_operator.resources.inputs import Inputs, placed_as, propagated
from rljob_operator.settings import JobSettings

_TEMPLATED = frozenset({"StatefulSet", "Deployment"})


def desired_objects(observed: Observed, settings: JobSettings, served: Set[str] = frozenset()) -> DesiredObjects:
    """Return the children of an active job and why it may not begin. `served`: API groups that may be used.

    Without children nothing can be made of the spec, nor of what the run under way began with.
    """
    settings = _as_begun(observed, settings)
    images = _images(observed, settings)
    # Where state is cannot be guessed: a run from before this had to be said stays as it is, and a pod made of the spec
    # would begin anew.
    problems = [*_of_the_runtime(observed), *admission.problems(observed.job.spec, settings, served)]
    if observed.job.spec.storage.type is None:
        return _refused(observed, problems)
    problems += [*_queue_problems(observed, settings, served), *_without_image(observed.job, images)]
    try:
        placement = cluster_placement.cluster_placement(
            observed.job,
            verifier_cores=_verifier_cores(observed.job),
            tls=_certificates(observed.job, settings),
            image_device=settings.device,
        )
        configs = resolve.resolve(observed.job, placement)
    except errors.ManifestError as error:
        problems += error.problems
        # A run that continues needs its next attempt, also after an edit that cannot be taken over.
        pinned = None if _is_suspended(observed) else pinning.resolved(observed)
        if pinned is None:
            return _refused(observed, problems)
        configs = pinned
    if not images.keys() >= set(suites.roles(observed.job.spec)):
        return _refused(observed, problems)
    runtime = observed.runtime.runtime
    inputs = Inputs(job=observed.job, configs=configs, images=images, settings=settings, runtime=runtime)
    queued = _queued(observed, inputs)
    if observed.quota is not None:
        inputs = dataclasses.replace(inputs, placements=observed.quota.placements)

    def workloads(attempt: int) -> Sequence[Manifest]:
        replicas = autoscaling.effective_replicas(observed.job.spec)
        objects = children.workloads(inputs, attempt=attempt, rollouts=replicas, served=served)
        return [drift.signed(_pinned(observed, settings, each)) for each in objects if _is_due(observed, each)]

    first = (drift.signed(_pinned(observed, settings, each)) for each in children.foundation(inputs, served=served))
    return dataclasses.replace(_refused(observed, problems), first=tuple(first), workloads=workloads, queued=queued)


def _of_the_runtime(observed: Observed) -> list[str]:
    """Return what the job, or its pods, set against its runtime, and what is wrong with that."""
    runtime = observed.runtime.runtime
    clashes = () if runtime is None else runtimes.template_problems(observed.job, runtime)
    return [*observed.runtime.problems, *clashes]


def _refused(observed: Observed, problems: Sequence[str]) -> DesiredObjects:
    """Return no children for a job with problems, and the reason; one whose runtime is missing lacks that first."""
    use = observed.runtime
    if use.runtime is None and use.problems:
        return DesiredObjects(problems=use.problems, reason=use.reason)
    return DesiredObjects(problems=tuple(runtimes.attributed(problems, use.origins)))


def _queued(observed: Observed, inputs: Inputs) -> Manifest | None:
    """Return what asks the job's queue for quota; None without a queue, and for a job that its user suspended."""
    quota = observed.quota
    if quota is None or quota.suspended_by_user:
        return None
    whole = dataclasses.replace(inputs, job=quota.job)
    request = workload.workload(whole, queue=quota.queue, priority_class=quota.priority_class, priority=quota.priority)
    return drift.signed(request)


def _queue_problems(observed: Observed, settings: JobSettings, served: Set[str]) -> Iterator[str]:
    """Yield why a queue cannot be asked."""
    queue = admission_to_queue.queue_of(observed.job, settings.default_queue)
    if queue and workload.API_VERSION not in served:
        named = f"label {workload.QUEUE_LABEL} = {queue!r}"
        label = named if workload.QUEUE_LABEL in observed.job.metadata.labels else f"jobs.defaultQueue = {queue!r}"
        yield (
            f"{label}, but {workload.API_VERSION} is not served or used here: install Kueue and let the operator use it"
            " (integrations.kueue), or take the label away"
        )
    quota = observed.quota
    if quota is not None and quota.priority_class and quota.priority is None:
        yield f"label {workload.PRIORITY_LABEL} = {quota.priority_class!r}: no WorkloadPriorityClass has that name"


def _as_begun(observed: Observed, settings: JobSettings) -> JobSettings:
    """Return the settings with the device that a run began with: its images stay, so what they are for stays too."""
    device = None if _is_suspended(observed) else pinning.device(observed)
    return settings if device is None else settings.model_copy(update={"device": device})


def _images(observed: Observed, settings: JobSettings) -> dict[enums.Role, str]:
    spec = observed.job.spec
    pods = {
        enums.Role.COORDINATOR: spec.coordinator.pod,
        enums.Role.ROLLOUT: spec.rollout.pod,
        enums.Role.VERIFIER: spec.verifier.pod,
        enums.Role.TRAINER: spec.trainer.pod,
    }
    if spec.agents is not None:
        pods[enums.Role.AGENTS] = spec.agents.pod
    from_manifest = {role: pod.image for role, pod in pods.items() if pod.image}
    if spec.environment is not None and spec.environment.image:
        from_manifest[enums.Role.ENVIRONMENT] = spec.environment.image
    images = pinning.images(
        {} if _is_suspended(observed) else observed.images, settings=settings.images, job=from_manifest
    )
    for role in suites.roles(spec):
        # Judges' and environments' programs are in every image of ours, and the verifiers' is the smallest.
        if (host := placed_as(spec, role)) in images:
            images.setdefault(role, images[host])
    return images


def _without_image(job: RLJob, images: Mapping[enums.Role, str]) -> Iterable[str]:
    for role in suites.roles(job.spec):
        # Of those that are placed with another role, that one tells.
        if role not in images and placed_as(job.spec, role) is role:
            # No installation has one of the user's program.
            settings = "" if role is enums.Role.AGENTS else f", or jobs.images.{role} in the operator's settings"
            yield f"no image for {role} pods: set spec.{role}.pod.image{settings}"


def _certificates(job: RLJob, settings: JobSettings) -> process_config.TlsConfig | None:
    return cluster_placement.tls_files(settings.trust_domain) if job.spec.security.tls == "Operator" else None


def _verifier_cores(job: RLJob) -> int:
    """Return the processors of a verifier pod, as its limits say; one without a word."""
    limits = {**job.spec.verifier.pod.resources.requests, **job.spec.verifier.pod.resources.limits}
    return max(1, base.num_bytes(str(limits.get("cpu", "1"))))


def _is_due(observed: Observed, manifest: Manifest) -> bool:
    """Return whether an object may exist now: a trainer's budget protects a run, not its start or its end."""
    ref = ref_of(manifest)
    of_trainer = ref == Ref("PodDisruptionBudget", f"{observed.job.metadata.name}-{enums.Role.TRAINER}")
    return not of_trainer or conditions.statuses(observed.status.conditions).get(Type.RUNNING) == "True"


def _is_suspended(observed: Observed) -> bool:
    """Return whether no segment of the run is under way: the next one starts from what holds then."""
    return conditions.statuses(observed.status.conditions).get(Type.SUSPENDED) == "True"


def _pinned(observed: Observed, settings: JobSettings, manifest: Manifest) -> Manifest:
    ref = ref_of(manifest)
    begun = {} if _is_suspended(observed) else observed.children
    if ref.kind == "ConfigMap":
        return pinning.config(begun.get(ref), manifest, written=base.written(observed.job.spec))
    if ref.kind == TRAINER_JOB:
        return pinning.trainer_job(begun.get(observed.config_ref), manifest)
    if ref.kind not in _TEMPLATED:
        return manifest
    keys = (*settings.propagate_labels, *settings.propagate_annotations)
    return pinning.template(begun.get(ref), manifest, handed_on=lambda pairs: propagated(pairs, keys))


# Generation, labels and annotations, statuses of the conditions, attempt, the content of each child, and what is known
# of the runtime.
Pairs = tuple[tuple[str, str], ...]
Signature = tuple[int, Pairs, Pairs, Pairs, int | None, tuple[tuple[Ref, str, int], ...], tuple[object, ...]]


def signature(observed: Observed) -> Signature:
    """Return everything that the children of a job depend on."""
    return (
        observed.job.metadata.generation,
        tuple(sorted(observed.job.metadata.labels.items())),
        tuple(sorted(observed.job.metadata.annotations.items())),
        tuple((condition.type, condition.status) for condition in observed.status.conditions),
        observed.status.attempt,
        tuple((ref, child.uid, child.content) for ref, child in sorted(observed.children.items())),
        (_identity(observed.runtime), observed.runtime.problems),
    )


def _identity(use: RuntimeUse) -> tuple[str, int] | None:
    return None if use.runtime is None else (use.runtime.metadata.uid, use.runtime.metadata.generation)


def has_trainer_job(observed: Observed) -> bool:
    """Return whether the Job of the current trainer attempt exists: nothing else is still to be created."""
    return observed.status.attempt in observed.trainer_jobs()


class UnchangedCache:
    """Computes the desired objects of a job, or returns `unchanged` where nothing they depend on has changed."""

    def __init__(self, compute: Callable[[Observed], DesiredObjects]) -> None:
        """Start empty: every job is compared once."""
        self._compute = compute
        self._unchanged: dict[str, Signature] = {}

    def desired(self, observed: Observed) -> DesiredObjects:
        """Return the desired objects, or only that they are unchanged since a pass that had nothing to do."""
        if self._unchanged.get(observed.job.metadata.uid) == signature(observed):
            return DesiredObjects(unchanged=True)
        return self._compute(observed)

    def planned(self, observed: Observed, planned: Plan, desired: DesiredObjects) -> None:
        """Remember a job whose plan had nothing to change."""
        uid = observed.job.metadata.uid
        pending = planned.refused or planned.waits or not all(isinstance(each, StatusWrite) for each in planned.actions)
        if not pending and not desired.problems and has_trainer_job(observed):
            self._unchanged[uid] = signature(observed)
        else:
            self._unchanged.pop(uid, None)

    def forget_all(self) -> None:
        """Compare every job again: something that all of them depend on has changed."""
        self._unchanged.clear()

    def forget(self, uid: str) -> None:
        self._unchanged.pop(uid, None)
