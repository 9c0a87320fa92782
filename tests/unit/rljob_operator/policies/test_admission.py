import json

import pytest

from rljob_api.manifest.job import JobSpec, RLJob
from rljob_operator.model import Observed
from rljob_operator.policies import admission
from rljob_operator.reconcile import conditions
from rljob_operator.settings import JobSettings
from rljob_testing.cluster import manifests


def _job(changes: dict[str, object]) -> RLJob:
    return RLJob.model_validate_json(json.dumps(manifests.job("run", changes)))


def _spec(changes: dict[str, object]) -> JobSpec:
    return _job(changes).spec


@pytest.mark.covers("sandbox S-2")
@pytest.mark.parametrize(
    ("changes", "settings", "said"),
    [
        ({"security.tls": "Disabled"}, {"requireTLS": True}, 'spec.security.tls = "Disabled" is not allowed'),
        ({"security.tls": "Disabled"}, {"tlsModes": ["Operator"]}, 'spec.security.tls = "Disabled" is not allowed'),
        ({}, {"tlsModes": ["Disabled"]}, 'spec.security.tls = "Operator" is not allowed'),
        ({"security.networkPolicy": False}, {"requireNetworkPolicy": True}, "spec.security.networkPolicy = false"),
        (
            {"verifier.isolation": {"type": "RuntimeClass", "runtimeClassName": "kata"}},
            {"runtimeClasses": ["gvisor", "runsc"]},
            "spec.verifier.isolation.runtimeClassName = 'kata' is not allowed in this cluster (allowed: gvisor, runsc)",
        ),
        (
            {"verifier.isolation": {"type": "RuntimeClass", "runtimeClassName": "kata"}},
            {},
            "spec.verifier.isolation.runtimeClassName = 'kata' is not allowed in this cluster (allowed: none)",
        ),
        (
            {"trainer.pod.resources.limits": {"nvidia.com/gpu": "1"}},
            {},
            "spec.trainer.pod.resources.limits.nvidia.com/gpu = 1, but the worker image of this installation is for"
            " CPUs: set spec.rollout.pod.image and spec.trainer.pod.image to one for CUDA, or install the operator with"
            " jobs.device cuda",
        ),
        (
            {"trainer.pod.resourceClaims": [{"name": "gpu", "resourceClaimName": "shared"}]},
            {},
            "spec.trainer.pod.resourceClaims = 'gpu', but the worker image of this installation is for CPUs",
        ),
        (
            {"device": "cuda", "rollout.pod.image": "own/worker:cuda"},
            {},
            "spec.device = 'cuda', but the worker image of this installation is for CPUs: set spec.trainer.pod.image",
        ),
        (
            {"device": "cpu"},
            {"device": "cuda"},
            "spec.device = 'cpu', but the worker image of this installation is for CUDA: set spec.rollout.pod.image",
        ),
        ({"storage": {}}, {}, "spec.storage.type is null, but say where ledger, checkpoints and model go"),
        ({"weightSync.transport": "file"}, {}, "spec.weightSync.transport is 'file', but trainer, rollouts"),
    ],
)
def test_what_an_installation_does_not_admit_is_said_with_the_remedy(
    changes: dict[str, object], settings: dict[str, object], said: str
) -> None:
    (found,) = admission.problems(_spec(changes), JobSettings.model_validate_json(json.dumps(settings)))
    assert found.startswith(said)


@pytest.mark.parametrize(
    ("changes", "settings"),
    [
        ({}, {}),
        ({"security.tls": "Disabled"}, {}),
        ({}, {"requireTLS": True, "tlsModes": ["Operator"], "requireNetworkPolicy": True}),
        ({"security.networkPolicy": False}, {}),
        (
            {"verifier.isolation": {"type": "RuntimeClass", "runtimeClassName": "gvisor"}},
            {"runtimeClasses": ["kata", "gvisor"]},
        ),
        ({}, {"device": "cuda"}),
        ({"trainer.pod.resources.limits": {"nvidia.com/gpu": "1"}}, {"device": "cuda"}),
        ({"device": "cpu"}, {}),
        # What an image of the user's is for, its programs tell when they start.
        ({"device": "cuda", "rollout.pod.image": "own:cuda", "trainer.pod.image": "own:cuda"}, {}),
    ],
)
def test_the_rest_is_admitted(changes: dict[str, object], settings: dict[str, object]) -> None:
    assert list(admission.problems(_spec(changes), JobSettings.model_validate_json(json.dumps(settings)))) == []


def test_a_job_in_plain_text_says_so() -> None:
    def accepted(tls: str) -> str:
        found = conditions.conditions(Observed(job=_job({"security.tls": tls})), conditions.RunOutcome(), now=0.0)
        return next(one.message for one in found if one.type == "Accepted")

    assert accepted("Disabled") == 'connections between roles are not encrypted: spec.security.tls is "Disabled"'
    assert accepted("Operator") == ""
