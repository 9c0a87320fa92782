from collections.abc import Callable

import pytest

from rljob_api import unsupported
from rljob_api.manifest.job import RLJob

MakeJob = Callable[..., RLJob]

UNSERVED: dict[str, tuple[object, str]] = {
    "queue": ({"name": "q"}, 'spec.queue = {"name": "q"}'),
    "gang": ("volcano", "spec.gang = 'volcano'"),
    "model.lora": ({"rank": 8}, 'spec.model.lora = {"rank": 8}'),
}


@pytest.mark.parametrize("path", UNSERVED)
def test_value_that_nothing_serves_is_refused_with_what_works(path: str, make_job: MakeJob) -> None:
    value, said = UNSERVED[path]
    (sentence,) = unsupported.problems(make_job({path: value}).spec)
    assert sentence.startswith(f"not supported yet: {said} (what works today: ")


SERVED: dict[str, object] = {
    "resumeFrom": {"job": "old", "step": 10},
    "model.source": {"claimName": "models", "path": "qwen"},
    "gang": "none",
    "workflow": {"type": "multi_turn_math", "config": {"numTurns": 2, "layout": "legacy"}},
    "workflow.type": "mine:Workflow",
    "data.template": "mine:prompt",
    "data.train.0.format": "dialogue",
    "algorithm.advantageEstimator": "ppo",
    "algorithm.normalizeAdvantage": {"mean": "group", "std": "none"},
    "algorithm.gae.gamma": "0.99",
    "algorithm.gae.lambda": "vapo{0.05}",
    "algorithm.gae.unit": "turn",
    "algorithm.gae.bootstrapTruncated": True,
    "algorithm.critic": {"warmupSteps": 5},
    "algorithm.loss.m2Threshold": "0.04",
    "algorithm.loss.klCoef": "0.1",
    "model.reference": {"name": "builtin:smollm2-135m-instruct"},
    "algorithm.loss.proximal": "loglinear",
    "algorithm.loss.aggregation": "sequenceMean",
    "algorithm.loss.rolloutCorrection": {"reject": {"level": "sequence", "agg": "mean", "high": "1.001"}},
    "algorithm.loss.type": "gspo",
    "async.onStale": "wait",
    "verifier.rewards.0.type": "areal-code",
    "verifier.isolation": "runtimeClass:gvisor",
    "weightSync.delta": False,
    "weightSync.kvCache": "recompute",
    "storage": {"size": "10Gi"},
    "suspend": True,
    "ttlSecondsAfterFinished": 60,
    "trainer.pod": {"nodeSelector": {"a": "b"}},
    "security.tls": "off",
}


@pytest.mark.parametrize("path", SERVED)
def test_value_that_is_served_is_accepted(path: str, make_job: MakeJob) -> None:
    assert unsupported.problems(make_job({path: SERVED[path]}).spec) == []


def test_defaults_are_all_served(make_job: MakeJob) -> None:
    assert unsupported.problems(make_job().spec) == []
