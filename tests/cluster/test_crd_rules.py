"""Each CEL rule on a real API server: a neighbouring object passes, the broken one is refused with field and remedy."""

from collections.abc import Mapping

import pytest

from rljob_api import crd_rules
from rljob_testing.cluster.manifests import ABSENT, Api, job

Changes = Mapping[str, object]
A, L, C, S = "algorithm", "algorithm.loss", "algorithm.loss.rolloutCorrection", "rollout.sampling"
PPO = {f"{A}.advantageEstimator": "ppo", f"{A}.critic": {}}
MASK = {"mode": "mask", "high": "2"}
KL = {f"{L}.klCoef": "0.1", "model.reference": {"name": "builtin:smollm2-135m-instruct"}}
OVERLONG = {"maxTokens": 512, "tailTokens": 128, "factor": "1"}
NORM = f"{A}.normalizeReward"
SUITE = {"evaluation.suites": [{"name": "held-out", "path": "a.jsonl"}]}

# Start of the rule's message, field that the refusal names, what passes, what is refused.
CASES: tuple[tuple[str, str, Changes, Changes], ...] = (
    (
        "promptsPerStep x groupSize must",
        f"{A}.promptsPerStep",
        {"trainer.processesPerNode": 4},
        {"trainer.processesPerNode": 5},
    ),
    (
        "maxPromptTokens + rollout",
        "rollout.engine.maxModelLen",
        {f"{S}.maxTokens": 64, "rollout.engine.maxModelLen": 128},
        {f"{S}.maxTokens": 65, "rollout.engine.maxModelLen": 128},
    ),
    (
        "maxTokensPerMicroBatch must",
        "trainer.maxTokensPerMicroBatch",
        {f"{S}.maxTokens": 64, "trainer.maxTokensPerMicroBatch": 128},
        {f"{S}.maxTokens": 65, "trainer.maxTokensPerMicroBatch": 128},
    ),
    ("everySteps must be", "weightSync.everySteps", {"weightSync.everySteps": 2}, {"weightSync.everySteps": 3}),
    (
        "async.onStale wait",
        "weightSync.everySteps",
        {"async.onStale": "wait"},
        {"async.onStale": "wait", "weightSync.everySteps": 2},
    ),
    (
        "maxInflightGroups must",
        "async.maxInflightGroups",
        {"async.maxInflightGroups": 8},
        {"async.maxInflightGroups": 9},
    ),
    (
        "minibatches must",
        f"{A}.minibatches",
        {f"{A}.minibatches": 32},
        {f"{A}.minibatches": 33},
    ),
    ("a critic is needed", f"{A}.critic", PPO, {f"{A}.critic": {}}),
    ("gae.lambda and", f"{A}.gae", {**PPO, f"{A}.gae.lambda": "0.9"}, {f"{A}.gae.lambda": "0.9"}),
    (
        "reuse needs one",
        f"{L}.proximal",
        {f"{L}.proximal": "reuse"},
        {f"{L}.proximal": "reuse", f"{A}.minibatches": 2},
    ),
    (
        "tailTokens must",
        f"{A}.rewards.overlong.tailTokens",
        {f"{A}.rewards.overlong": OVERLONG},
        {f"{A}.rewards.overlong": {**OVERLONG, "tailTokens": 513}},
    ),
    ("a reference model", "model.reference", KL, {f"{L}.klCoef": "0.1"}),
    (
        "k1 in the loss",
        f"{L}.klEstimator",
        {**KL, f"{L}.klEstimator": "k3"},
        {**KL, f"{L}.klEstimator": "k1"},
    ),
    ("klEstimator and klPlacement", f"{L}.klCoef", {**KL, f"{L}.klEstimator": "k3"}, {f"{L}.klEstimator": "k3"}),
    (
        "constantDenominator is",
        f"{L}.constantDenominator",
        {f"{L}.constantDenominator": "64", f"{L}.aggregation": "constant"},
        {f"{L}.constantDenominator": "64"},
    ),
    ("dualClip must", f"{L}.dualClip", {f"{L}.dualClip": "3.0"}, {f"{L}.dualClip": "1"}),
    ("clipLow must", f"{L}.clipLow", {f"{L}.clipLow": "1"}, {f"{L}.clipLow": "1.01"}),
    ("clipHigh must", f"{L}.clipHigh", {f"{L}.clipHigh": "0"}, {f"{L}.clipHigh": "-0.1"}),
    ("tauPos and tauNeg", f"{L}.type", {f"{L}.type": "sapo", f"{L}.tauPos": "1"}, {f"{L}.tauPos": "1"}),
    ("mode none has", f"{C}.mode", {C: MASK}, {C: {"mode": "none", "low": "0.5"}}),
    ("mode mask needs", f"{C}.mode", {C: MASK}, {C: {"mode": "mask"}}),
    ("low must be", f"{C}.low", {C: {**MASK, "low": "2"}}, {C: {**MASK, "low": "3"}}),
    (
        "leaveOneOut is",
        f"{NORM}.leaveOneOut",
        {NORM: {"mean": "group", "std": "none", "leaveOneOut": True}},
        {NORM: {"mean": "none", "std": "none", "leaveOneOut": True}},
    ),
    ("set exactly one", "data.train[0]", {}, {"data.train.0.hub": "a/b"}),
    ("set exactly one", "data.train[0]", {}, {"data.train.0.path": ABSENT}),
    ("set exactly one", "evaluation.suites[0]", SUITE, {"evaluation.suites": [{"name": "held-out"}]}),
    (
        "lower must be",
        "data.filterGroups.lower",
        {"data.filterGroups": {"lower": "0.5", "upper": "0.5"}},
        {"data.filterGroups": {"lower": "0.6", "upper": "0.5"}},
    ),
    (
        "onStale and inFlight",
        "async.maxOffPolicySteps",
        {"async.maxOffPolicySteps": 0},
        {"async.maxOffPolicySteps": 0, "async.onStale": "drop"},
    ),
    ("training needs", S, {f"{S}.temperature": "0.7"}, {f"{S}.topP": "0.9"}),
    ("minTokens must", f"{S}.minTokens", {f"{S}.minTokens": 1024}, {f"{S}.minTokens": 1025}),
    (
        "minReplicas must",
        "rollout.autoscaling.minReplicas",
        {"rollout.autoscaling": {"minReplicas": 2, "maxReplicas": 2}},
        {"rollout.autoscaling": {"minReplicas": 3, "maxReplicas": 2}},
    ),
    (
        "isolation none",
        "verifier.isolation",
        {"verifier.isolation": "none", "verifier.allowUnsafe": True},
        {"verifier.isolation": "none"},
    ),
    (
        "learningRate must",
        "trainer.optimizer.learningRate",
        {"trainer.optimizer.learningRate": "1e-6"},
        {"trainer.optimizer.learningRate": "0"},
    ),
    (
        "offloadParameters needs",
        "trainer.deepspeed.offloadParameters",
        {"trainer.deepspeed": {"offloadParameters": True, "zeroStage": 3}},
        {"trainer.deepspeed": {"offloadParameters": True, "zeroStage": 2}},
    ),
    (
        "offloadOptimizer needs",
        "trainer.deepspeed.offloadOptimizer",
        {"trainer.deepspeed": {"offloadOptimizer": True, "zeroStage": 1}},
        {"trainer.deepspeed": {"offloadOptimizer": True, "zeroStage": 0}},
    ),
    (
        "certManagerIssuer is",
        "security.certManagerIssuer",
        {"security": {"tls": "certManager", "certManagerIssuer": "ca"}},
        {"security": {"tls": "certManager"}},
    ),
)


@pytest.mark.parametrize(("message", "field", "passing", "refused"), CASES, ids=[f"{c[0]} {c[1]}" for c in CASES])
def test_rule_refuses_its_case_and_takes_the_neighbour(
    api: Api, message: str, field: str, passing: Changes, refused: Changes
) -> None:
    taken = api.try_create(job("taken", passing))
    assert taken.accepted, taken.error
    answer = api.try_create(job("refused", refused))
    assert not answer.accepted
    (rule,) = {rule.message for rule in crd_rules.RULES if rule.message.startswith(message)}
    said = rule if "x groupSize must" not in message else "promptsPerStep x groupSize = 32 cannot be divided among 5"
    assert said in answer.error
    assert f"spec.{field}: " in answer.error


def test_name_that_is_too_long_for_child_objects_is_refused(api: Api) -> None:
    assert api.try_create(job("a" * 40, {})).accepted
    assert "at most 40 lower-case letters" in api.try_create(job("a" * 41, {})).error


def test_new_job_is_pending_and_has_replicas_for_the_scale_subresource(api: Api) -> None:
    created = api.create(job("scaled", {}))
    assert created.accepted, created.error
    conditions = created.body["status"]["conditions"]  # type: ignore[index,call-overload]
    assert [one["reason"] for one in conditions] == ["Pending", "Pending"]  # type: ignore[index,union-attr,call-overload]
    done = api.cluster.kubectl("scale", "rljob/scaled", "--replicas=3")
    assert done.returncode == 0, done.stderr
    assert api.get("rljob", "scaled")["spec"]["rollout"]["replicas"] == 3  # type: ignore[index,call-overload]


def test_running_job_freezes_its_model_and_takes_more_steps(api: Api) -> None:
    assert api.create(job("frozen", {})).accepted
    assert api.replace(job("frozen", {"maxSteps": 5})).accepted
    assert "maxSteps may only be raised" in api.replace(job("frozen", {"maxSteps": 3})).error
    answer = api.replace(job("frozen", {"model.name": "other"}))
    assert "model is frozen while the job runs: suspend it first" in answer.error


def test_suspended_job_may_change_until_a_checkpoint_exists(api: Api) -> None:
    assert api.create(job("parked", {"suspend": True})).accepted
    changed = job("parked", {"suspend": True, "seed": 7})
    assert api.replace(changed).accepted
    api.set_status("parked", {"lastCheckpoint": {"step": 1, "uri": "file:///c/1", "time": "2026-01-01T00:00:00Z"}})
    assert "seed is frozen once a checkpoint exists" in api.replace(changed).error


def test_jobs_are_found_by_queue(api: Api) -> None:
    assert api.create(job("queued", {"queue": {"name": "gold"}})).accepted
    found = api.get("rljobs", "--field-selector=spec.queue.name=gold")
    assert [one["metadata"]["name"] for one in found["items"]] == ["queued"]  # type: ignore[index,union-attr,call-overload]
