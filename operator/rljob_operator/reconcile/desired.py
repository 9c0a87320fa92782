"""What a job should have: its manifest, resolved for a cluster, as children. Pure; `resources` builds the objects."""

from collections.abc import Callable, Iterable, Mapping, Sequence, Set

from rljob_api import cluster_placement, errors, names, resolve, roles
from rljob_api.conditions import ConditionType as Type
from rljob_api.manifest.base import num_bytes
from rljob_api.manifest.job import RLJob
from rljob_operator.model import Manifest, Observed, Plan, Ref, StatusWrite, Wanted, ref_of
from rljob_operator.policies import admission, drift, pinning
from rljob_operator.reconcile import conditions
from rljob_operator.resources import autoscaling, children
from rljob_operator.resources.inputs import Inputs
from rljob_operator.settings import JobSettings

_TEMPLATED = frozenset({"StatefulSet", "Deployment"})


def desired_objects(seen: Observed, settings: JobSettings, served: Set[str] = frozenset()) -> Wanted:
    """Return the children of an active job and why it may not begin. `served`: API groups that may be used.

    Without children nothing can be made of the spec, nor of what the run under way began with.
    """
    images = _images(seen, settings)
    problems = [*admission.problems(seen.job.spec, settings, served), *_without_image(images)]
    try:
        placement = cluster_placement.cluster_placement(
            seen.job, verifier_cores=_verifier_cores(seen.job), tls=_certificates(seen.job, settings)
        )
        configs = resolve.resolve(seen.job, placement)
    except errors.ManifestError as error:
        problems += error.problems
        # A run that goes on needs its next attempt, also after an edit that cannot be taken over.
        pinned = None if _is_suspended(seen) else pinning.resolved(seen)
        if pinned is None:
            return Wanted(problems=tuple(problems))
        configs = pinned
    if len(images) < len(names.Role):
        return Wanted(problems=tuple(problems))
    inputs = Inputs(job=seen.job, configs=configs, images=images, settings=settings)

    def workloads(attempt: int) -> Sequence[Manifest]:
        replicas = autoscaling.effective_replicas(seen.job.spec)
        made = children.workloads(inputs, attempt=attempt, rollouts=replicas, served=served)
        return [drift.signed(_pinned(seen, each)) for each in made if _is_due(seen, each)]

    first = (drift.signed(_pinned(seen, each)) for each in children.foundation(inputs, served=served))
    return Wanted(first=tuple(first), workloads=workloads, problems=tuple(problems))


def _images(seen: Observed, settings: JobSettings) -> dict[names.Role, str]:
    spec = seen.job.spec
    pods = {
        names.Role.COORDINATOR: spec.coordinator.pod,
        names.Role.ROLLOUT: spec.rollout.pod,
        names.Role.VERIFIER: spec.verifier.pod,
        names.Role.TRAINER: spec.trainer.pod,
    }
    named = {role: pod.image for role, pod in pods.items() if pod.image}
    return pinning.images({} if _is_suspended(seen) else seen.images, settings=settings.images, job=named)


def _without_image(images: Mapping[names.Role, str]) -> Iterable[str]:
    for role in names.Role:
        if role not in images:
            remedy = f"set spec.{role}.pod.image, or jobs.images.{role} in the operator's settings"
            yield f"no image for {role} pods: {remedy}"


def _certificates(job: RLJob, settings: JobSettings) -> roles.TlsConfig | None:
    return cluster_placement.tls_files(settings.trust_domain) if job.spec.security.tls == "operator" else None


def _verifier_cores(job: RLJob) -> int:
    """Return the processors of a verifier pod, as its limits say; one without a word."""
    limits = {**job.spec.verifier.pod.resources.requests, **job.spec.verifier.pod.resources.limits}
    return max(1, num_bytes(str(limits.get("cpu", "1"))))


def _is_due(seen: Observed, manifest: Manifest) -> bool:
    """Return whether an object may exist now: a trainer's budget protects a run, not its start or its end."""
    ref = ref_of(manifest)
    of_trainer = ref == Ref("PodDisruptionBudget", f"{seen.job.metadata.name}-{names.Role.TRAINER}")
    return not of_trainer or conditions.statuses(seen.status.conditions).get(Type.RUNNING) == "True"


def _is_suspended(seen: Observed) -> bool:
    """Return whether no segment of the run is under way: the next one starts from what holds then."""
    return conditions.statuses(seen.status.conditions).get(Type.SUSPENDED) == "True"


def _pinned(seen: Observed, manifest: Manifest) -> Manifest:
    ref = ref_of(manifest)
    live = None if _is_suspended(seen) else seen.children.get(ref)
    if ref.kind == "ConfigMap":
        return pinning.config(live, manifest)
    return pinning.template(live, manifest) if ref.kind in _TEMPLATED else manifest


# Generation, statuses of the conditions, attempt, and the version of each child.
Signature = tuple[int, tuple[tuple[str, str], ...], int | None, tuple[tuple[Ref, str, int], ...]]


def signature(seen: Observed) -> Signature:
    """Return all that the children of a job depend on."""
    return (
        seen.job.metadata.generation,
        tuple((one.type, one.status) for one in seen.status.conditions),
        seen.status.attempt,
        tuple((ref, child.uid, child.version) for ref, child in sorted(seen.children.items())),
    )


def may_settle(seen: Observed) -> bool:
    """Return whether nothing of the children is still to come: the trainer's Job is there."""
    return seen.status.attempt in seen.trainer_jobs()


class Settled:
    """Gives what is wanted of a job, or says that its children need no look."""

    def __init__(self, wanted: Callable[[Observed], Wanted]) -> None:
        """Know nothing yet."""
        self._wanted = wanted
        self._known: dict[str, Signature] = {}

    def wanted(self, seen: Observed) -> Wanted:
        """Return the children that are wanted, or that they are settled."""
        if self._known.get(seen.job.metadata.uid) == signature(seen):
            return Wanted(settled=True)
        return self._wanted(seen)

    def planned(self, seen: Observed, planned: Plan, wanted: Wanted) -> None:
        """Remember a job of which nothing had to be changed."""
        uid = seen.job.metadata.uid
        left = planned.refused or planned.waits or not all(isinstance(each, StatusWrite) for each in planned.actions)
        if not left and not wanted.problems and may_settle(seen):
            self._known[uid] = signature(seen)
        else:
            self._known.pop(uid, None)

    def forget_all(self) -> None:
        """Let every job be compared anew: what its children depend on has changed."""
        self._known.clear()

    def forget(self, uid: str) -> None:
        """Let go of a job that is gone."""
        self._known.pop(uid, None)
