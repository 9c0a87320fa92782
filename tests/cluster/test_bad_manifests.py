"""What a user gets wrong first: the API server refuses it and says which field and what would be right.

Refusals by the rules of the CRD are in test_crd_rules.py; these are the schema's own.
"""

from collections.abc import Mapping

import pytest

from rljob_testing.cluster.manifests import ABSENT, Api, job

POD = "trainer.pod"
# What is wrong; changes to a legal job; the field; words of the remedy.
CASES: tuple[tuple[str, Mapping[str, object], str, str], ...] = (
    ("misspelt field", {"maxStep": 3}, "spec.maxStep", "unknown field"),
    ("misspelt field far inside", {"rollout.engine.enforceEagr": True}, "spec.rollout.engine.enforceEagr", "unknown"),
    ("no steps", {"maxSteps": ABSENT}, "spec.maxSteps", "Required value"),
    ("zero steps", {"maxSteps": 0}, "spec.maxSteps", "should be greater than or equal to 1"),
    ("steps in words", {"maxSteps": "ten"}, "spec.maxSteps", "must be of type integer"),
    ("no model", {"model": ABSENT}, "spec.model", "Required value"),
    ("model without a name", {"model.name": ABSENT}, "spec.model.name", "Required value"),
    ("no data", {"data": ABSENT}, "spec.data", "Required value"),
    ("no training source", {"data.train": []}, "spec.data.train", "should have at least 1 items"),
    ("learning rate as a float", {"trainer.optimizer.learningRate": 1e-6}, "learningRate", "must be of type string"),
    ("learning rate in words", {"trainer.optimizer.learningRate": "low"}, "learningRate", "should match"),
    ("unknown estimator", {"algorithm.advantageEstimator": "grpoo"}, "advantageEstimator", 'supported values: "grpo"'),
    ("no samples", {"algorithm.groupSize": 0}, "spec.algorithm.groupSize", "should be greater than or equal to 1"),
    ("half a prompt", {"algorithm.promptsPerStep": 1.5}, "promptsPerStep", "must be of type integer"),
    ("negative lag", {"async.maxOffPolicySteps": -1}, "maxOffPolicySteps", "should be greater than or equal to 0"),
    ("no rollouts", {"rollout.replicas": 0}, "spec.rollout.replicas", "should be greater than or equal to 1"),
    ("no reward", {"verifier.rewards": []}, "spec.verifier.rewards", "should have at least 1 items"),
    (
        "two rewards of one name",
        {"verifier.rewards": [{"name": "sum", "type": "exact"}, {"name": "sum", "type": "math"}]},
        "spec.verifier.rewards[1]",
        "Duplicate value",
    ),
    (
        "unknown isolation",
        {"verifier.isolation": {"type": "Docker"}},
        "spec.verifier.isolation.type",
        'supported values: "Sandbox"',
    ),
    ("unknown protection", {"security.tls": "on"}, "spec.security.tls", 'supported values: "Operator"'),
    ("unit that is none", {f"{POD}.resources": {"limits": {"memory": "4GBs"}}}, "limits.memory", "should match"),
    ("variable without a name", {f"{POD}.env": [{"value": "1"}]}, "spec.trainer.pod.env[0].name", "Required value"),
    (
        "variable given twice",
        {f"{POD}.env": [{"name": "A", "value": "1"}, {"name": "A", "value": "2"}]},
        "spec.trainer.pod.env[1]",
        "Duplicate value",
    ),
    (
        "two mounts on one folder",
        {f"{POD}.volumeMounts": [{"name": "a", "mountPath": "/x"}, {"name": "b", "mountPath": "/x"}]},
        "spec.trainer.pod.volumeMounts[1]",
        "Duplicate value",
    ),
    ("field of a pod that is not taken", {f"{POD}.hostNetwork": True}, "spec.trainer.pod.hostNetwork", "unknown field"),
    ("image name without end", {f"{POD}.image": "a" * 513}, "spec.trainer.pod.image", "512"),
    ("time to live below zero", {"ttlSecondsAfterFinished": -1}, "ttlSecondsAfterFinished", "greater than or equal to"),
    ("no time to start", {"startupDeadlineSeconds": 0}, "startupDeadlineSeconds", "greater than or equal to"),
    ("stage that DeepSpeed has not", {"trainer.deepspeed.zeroStage": 4}, "spec.trainer.deepspeed.zeroStage", "value"),
    ("suspend in words", {"suspend": "yes"}, "spec.suspend", "must be of type boolean"),
)


@pytest.mark.parametrize(("changes", "field", "remedy"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_bad_manifest_is_refused_with_field_and_remedy(
    api: Api, changes: Mapping[str, object], field: str, remedy: str
) -> None:
    answer = api.try_create(job("bad", changes))
    assert not answer.accepted
    assert field in answer.error
    assert remedy in answer.error


def test_kind_of_another_version_is_refused_with_its_name(api: Api) -> None:
    answer = api.try_create({**job("bad", {}), "apiVersion": "rljob.dev/v1"})
    assert 'no matches for kind "RLJob" in version "rljob.dev/v1"' in answer.error


def test_job_shows_its_columns(api: Api) -> None:
    api.ensure(job("columns", {"maxSteps": 60}))
    status = {
        "summary": "Running",
        "reason": "Running",
        "step": 41,
        "attempt": 3,
        "conditions": [
            {
                "type": "Suspended",
                "status": "False",
                "reason": "NotSuspended",
                "lastTransitionTime": "2026-01-01T00:00:00Z",
            }
        ],
        "reward": {"mean": "0.62", "step": 41},
        "rollout": {"ready": "3/4"},
        "version": {"lag": 1},
        "restarts": {"total": 2},
        "lastCheckpoint": {"step": 40, "uri": "file:///c/40", "time": "2026-01-01T00:00:00Z"},
    }
    api.set_status("columns", status)  # type: ignore[arg-type]
    shown = api.cluster.kubectl("get", "rljob", "columns", "--no-headers").stdout.split()
    assert shown[:9] == ["columns", "Running", "41", "60", "0.62", "3/4", "3", "False", "1"]
    heads = api.cluster.kubectl("get", "rljob", "columns", "-o", "wide").stdout.splitlines()[0].split()
    assert heads == [
        "NAME",
        "STATUS",
        "STEP",
        "STEPS",
        "REWARD",
        "ROLLOUT",
        "ATTEMPT",
        "SUSPENDED",
        "LAG",
        "AGE",
        "RESTARTS",
        "CHECKPOINT",
        "GPUSECONDS",
        "REASON",
    ]
