"""Where pods of a queued job go, and with whom: the admission of the segment decides, whichever version of the operator
began it, and whatever a runtime says of nodes.
"""

import dataclasses
import json
from typing import Any

import pytest

from rljob_api import enums
from rljob_api.conditions import ConditionType as Type
from rljob_api.manifest.job import RLJob
from rljob_api.manifest.status import JobStatus
from rljob_operator.model import Child, Manifest, Observed, PodPlacement, Quota, Ref, RuntimeUse, ref_of
from rljob_operator.policies import pinning
from rljob_operator.queueing import workload
from rljob_operator.reconcile import conditions
from rljob_operator.reconcile.desired import desired_objects
from rljob_operator.resources import gangs, workloads
from rljob_operator.settings import GangScheduler, JobSettings
from rljob_testing import runtime_makers
from rljob_testing.queues import QUEUE, QueuedRun, inputs_of, queued_job

SETTINGS = JobSettings(images=dict.fromkeys(enums.STANDARD_ROLES, "example/rljob:1"))
SERVED = frozenset({workload.API_VERSION, *gangs.API_VERSIONS.values()})
CONFIG = Ref("ConfigMap", "job-config")
OTHER = "0.0.1"
THEIR_ARGUMENTS = ["--their-config"]
OLD, NEW = "owned", "spot"


def observed(job: RLJob, *, pool: str, config: Child | None = None, suspended: bool = False) -> Observed:
    """Return a job that was admitted to the nodes of a pool."""
    placements = dict.fromkeys(enums.STANDARD_ROLES, PodPlacement(node_labels={"pool": pool}))
    quota = Quota(job=job, queue=QUEUE, admitted=True, reason="Admitted", placements=placements)
    children = {} if config is None else {CONFIG: config}
    if suspended:
        job = job.model_copy(update={"status": _suspended()})
    return Observed(job=job, quota=quota, children=children)


def _suspended() -> JobStatus:
    """Return the status of a queued job that waits, as a run of the operator wrote it."""
    run = QueuedRun()
    run.settle()
    status = run.cluster.statuses[-1]
    assert conditions.statuses(status.conditions)[Type.SUSPENDED] == "True"
    return status


def everything(seen: Observed, settings: JobSettings = SETTINGS, *, attempt: int = 1) -> dict[Ref, Any]:
    desired = desired_objects(seen, settings, SERVED)
    assert desired.problems == ()
    return {ref_of(manifest): manifest for manifest in (*desired.first, *desired.workloads(attempt))}


def of_another_version(config: Manifest) -> Child:
    """Return the ConfigMap as another version of the operator wrote it, which renders the trainer in its own way."""
    manifest = json.loads(json.dumps(config))
    manifest["metadata"]["annotations"][pinning.RENDERED_BY] = OTHER
    template = json.loads(manifest["data"]["trainer-template.json"])
    template["spec"]["containers"][0]["args"] = THEIR_ARGUMENTS
    manifest["data"]["trainer-template.json"] = json.dumps(template)
    return Child(ref=CONFIG, uid="u", manifest=manifest)


def trainer_of(objects: dict[Ref, Any], *, attempt: int = 1) -> Any:
    return objects[Ref("Job", f"job-trainer-{attempt}")]["spec"]["template"]


def pools(objects: dict[Ref, Any]) -> set[str]:
    templates = [each["spec"]["template"] for each in objects.values() if "template" in (each.get("spec") or {})]
    assert len(templates) == len(enums.STANDARD_ROLES)
    return {template["spec"]["nodeSelector"]["pool"] for template in templates}


@pytest.mark.parametrize("scheduler", ["native", "volcano", "coscheduling"])
def test_the_second_attempt_of_a_run_of_another_version_joins_a_group_of_its_own(scheduler: GangScheduler) -> None:
    settings = SETTINGS.model_copy(update={"gang_scheduler": scheduler})
    seen = observed(queued_job(), pool=OLD)
    begun = of_another_version(everything(seen, settings)[CONFIG])
    objects = everything(dataclasses.replace(seen, children={CONFIG: begun}), settings, attempt=2)
    template = trainer_of(objects, attempt=2)
    assert template["spec"]["containers"][0]["args"] == THEIR_ARGUMENTS
    names = {
        "native": template["spec"].get("schedulingGroup", {}).get("podGroupName"),
        "volcano": template["metadata"]["annotations"].get("scheduling.k8s.io/group-name"),
        "coscheduling": template["metadata"]["labels"].get("scheduling.x-k8s.io/pod-group"),
    }
    joined = {name for name in names.values() if name is not None}
    (group,) = [ref.name for ref in objects if ref.kind.startswith("PodGroup")]
    assert joined == {group} == {"job-trainer-2"}


@pytest.mark.parametrize("by_another", [False, True], ids=["this version", "another version"])
def test_a_job_that_is_admitted_anew_goes_to_the_nodes_of_the_new_admission(by_another: bool) -> None:
    first = everything(observed(queued_job(), pool=OLD))
    assert pools(first) == {OLD}
    config = of_another_version(first[CONFIG]) if by_another else Child(ref=CONFIG, uid="u", manifest=first[CONFIG])
    second = everything(observed(queued_job(), pool=NEW, config=config, suspended=True))
    assert pools(second) == {NEW}
    kept = json.loads(second[CONFIG]["data"]["trainer-template.json"])
    assert kept["spec"]["nodeSelector"] == {"pool": NEW}, "later attempts of the segment"


def test_a_later_attempt_of_a_segment_that_another_version_began_goes_where_the_segment_was_admitted_to() -> None:
    begun = of_another_version(everything(observed(queued_job(), pool=NEW, suspended=True))[CONFIG])
    template = trainer_of(everything(observed(queued_job(), pool=NEW, config=begun), attempt=3), attempt=3)
    assert template["spec"]["nodeSelector"] == {"pool": NEW}
    assert template["spec"]["containers"][0]["args"] == THEIR_ARGUMENTS


def test_a_template_of_the_segment_before_is_not_used_where_its_flavor_was_another() -> None:
    # An operator that died between the end of the suspension and the write of the ConfigMap.
    before = of_another_version(everything(observed(queued_job(), pool=OLD))[CONFIG])
    template = trainer_of(everything(observed(queued_job(), pool=NEW, config=before), attempt=2), attempt=2)
    assert template["spec"]["nodeSelector"] == {"pool": NEW}


def test_a_runtimes_node_selector_is_what_a_flavor_must_fit_and_does_not_override_it() -> None:
    nodes = {"spec": {"nodeSelector": {"pool": "of the runtime", "zone": "a"}}}
    runtime = runtime_makers.runtime(rollout=nodes, trainer=nodes)
    inputs = dataclasses.replace(inputs_of(queued_job()), runtime=runtime)
    asked: Any = workload.workload(inputs, queue=QUEUE)
    chosen = {each["name"]: each["template"]["spec"].get("nodeSelector") for each in asked["spec"]["podSets"]}
    assert chosen["trainer"] == chosen["rollout"] == nodes["spec"]["nodeSelector"], "Kueue matches flavors by it"
    seen = dataclasses.replace(observed(queued_job(), pool=NEW), runtime=RuntimeUse(runtime=runtime))
    objects = everything(seen)
    assert pools(objects) == {NEW}
    rollout = objects[Ref("Deployment", "job-rollout")]["spec"]["template"]["spec"]
    assert rollout["nodeSelector"] == {"pool": NEW, "zone": "a"}
    direct: Any = workloads.rollout_deployment(inputs, replicas=1)
    assert direct["spec"]["template"]["spec"]["nodeSelector"]["pool"] == "of the runtime", "without a queue"
