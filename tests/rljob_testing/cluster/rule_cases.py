"""What each CEL rule of the CRD takes and what it refuses: tables of neighbours, sent to a real API server.

A contract test compares them with the rules, so that none is without its pair.
"""

from collections.abc import Mapping

from rljob_api.manifest.base import CelRule
from rljob_api.manifest.job import JobSpec
from rljob_api.validation import crd
from rljob_testing.cluster.manifests import ABSENT, Object

Changes = Mapping[str, object]
A, L, C, S = "algorithm", "algorithm.loss", "algorithm.loss.rolloutCorrection", "rollout.sampling"
T = "trainer.optimizer"
MUON = {f"{T}.type": "Muon", f"{T}.muon.learningRate": "1e-4", "trainer.deepspeed.zeroStage": 1}
PPO = {f"{A}.advantageEstimator": "ppo", f"{A}.critic": {}}
MASK = {"mode": "Mask", "high": "2"}
KL = {f"{L}.klCoef": "0.1", "model.reference": {"name": "builtin:smollm2-135m-instruct"}}
OVERLONG = {"maxTokens": 512, "tailTokens": 128, "factor": "1"}
NORM, OVER_TOKENS = f"{A}.normalizeReward", f"{A}.normalizeAdvantage"
ALONE: Changes = {f"{A}.groupSize": 1, f"{A}.advantageEstimator": "reinforcepp"}
CLAIMS = {"type": "Persistent", "checkpoints": {"claimName": "mine"}}
NEW_CLAIMS = {"type": "Persistent", "checkpoints": {"size": "1Gi"}}
ONE, MANY = {"accessMode": "ReadWriteOnce"}, {"accessMode": "ReadWriteMany"}
SUITE = {"evaluation.suites": [{"name": "held-out", "path": "a.jsonl"}]}
_PROMPTS = {"name": "questions", "path": "data/questions.jsonl", "maxPromptTokens": 64}
EXAMPLES = {"data.train": [{**_PROMPTS, "name": "answers", "phase": "SFT"}, _PROMPTS]}
TAUGHT: Changes = {"teacher": {"model": "better"}}
JUDGED: Changes = {"verifier.rewards": [{"name": "judged", "type": "judge", "config": {}}]}

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
    ("no source of data.train", "sft", {**EXAMPLES, "sft": {"steps": 2}}, {"sft": {"steps": 2}}),
    (
        "set exactly one of steps and epochs",
        "sft",
        {**EXAMPLES, "sft": {"steps": 2}},
        {**EXAMPLES, "sft": {"steps": 2, "epochs": 1}},
    ),
    ("teacher.steps must", "teacher.steps", {**TAUGHT, "teacher.steps": 1}, {**TAUGHT, "teacher.steps": 1_000_000}),
    ("it must be above 0", "teacher.coef", {**TAUGHT, "teacher.coef": "0.5"}, {**TAUGHT, "teacher.coef": "0"}),
    (
        "an address must",
        "teacher.model",
        {"teacher": {"model": "s3://bucket/model"}},
        {"teacher": {"model": "https://host/model"}},
    ),
    (
        "an address must",
        "judge.model",
        {**JUDGED, "judge": {"model": "s3://bucket/model"}},
        {**JUDGED, "judge": {"model": "https://host/model"}},
    ),
    ("everySteps must be", "weightSync.everySteps", {"weightSync.everySteps": 2}, {"weightSync.everySteps": 3}),
    (
        "async.onStale Wait",
        "weightSync.everySteps",
        {"async.onStale": "Wait"},
        {"async.onStale": "Wait", "weightSync.everySteps": 2},
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
    (
        "rollout.gateway is needed",
        "rollout.gateway",
        {"workflow": {"type": "external"}, "rollout.gateway": {}},
        {"workflow": {"type": "rlvr"}, "rollout.gateway": {}},
    ),
    (
        "agents take tasks",
        "agents",
        {"workflow": {"type": "external"}, "rollout.gateway": {}, "agents": {}},
        {"workflow": {"type": "rlvr"}, "agents": {}},
    ),
    (
        "environment is for",
        "environment",
        {"workflow": {"type": "tool_use", "config": {"tools": ["shell"]}}, "environment": {}},
        {"workflow": {"type": "rlvr"}, "environment": {}},
    ),
    (
        "environment is for",
        "environment",
        {"workflow": {"type": "plugin:mine"}, "environment": {}},
        {"workflow": {"type": "multi_turn_math"}, "environment": {}},
    ),
    (
        "sessionSeconds must be",
        "rollout.gateway.sessionSeconds",
        {"workflow": {"type": "external"}, "rollout.gateway": {"sessionSeconds": 600}},
        {"workflow": {"type": "external"}, "rollout.gateway": {"sessionSeconds": 599}},
    ),
    (
        "muon.learningRate must",
        f"{T}.muon.learningRate",
        MUON,
        {**MUON, f"{T}.muon.learningRate": "0"},
    ),
    (
        "decaySteps is for",
        f"{T}.decaySteps",
        {f"{T}.schedule": "Cosine", f"{T}.decaySteps": 4},
        {f"{T}.schedule": "Constant", f"{T}.decaySteps": 4},
    ),
    ("type Muon needs", f"{T}.muon", MUON, {**MUON, f"{T}.type": "AdamW"}),
    ("Muon needs dtype", f"{T}.type", MUON, {**MUON, "trainer.deepspeed.zeroStage": 2}),
    ("Muon trains all", f"{T}.type", MUON, {**MUON, "model.lora": {}}),
    ("gae.lambda and", f"{A}.gae", {**PPO, f"{A}.gae.lambda": "0.9"}, {f"{A}.gae.lambda": "0.9"}),
    (
        "Reuse needs one",
        f"{L}.proximal",
        {f"{L}.proximal": "Reuse"},
        {f"{L}.proximal": "Reuse", f"{A}.minibatches": 2},
    ),
    (
        "tailTokens must",
        f"{A}.rewards.overlong.tailTokens",
        {f"{A}.rewards.overlong": OVERLONG},
        {f"{A}.rewards.overlong": {**OVERLONG, "tailTokens": 513}},
    ),
    ("a reference model", "model.reference", KL, {**KL, f"{L}.klCoef": "0"}),
    ("a critic trains all", f"{A}.critic", {**PPO}, {**PPO, "model.lora": {}}),
    (
        "all-linear already",
        "model.lora.targets",
        {"model.lora": {"targets": ["q_proj", "v_proj"]}},
        {"model.lora": {"targets": ["all-linear", "v_proj"]}},
    ),
    (
        "embeddings and the output head",
        "model.lora.targets",
        {"model.lora": {"targets": ["q_proj"]}},
        {"model.lora": {"targets": ["q_proj", "lm_head"]}},
    ),
    (
        "K1 in the loss",
        f"{L}.klEstimator",
        {**KL, f"{L}.klEstimator": "K3"},
        {**KL, f"{L}.klEstimator": "K1", f"{L}.klPlacement": "Loss"},
    ),
    ("klEstimator and klPlacement", f"{L}.klCoef", {**KL, f"{L}.klEstimator": "K3"}, {f"{L}.klEstimator": "K3"}),
    (
        "constantDenominator is",
        f"{L}.constantDenominator",
        {f"{L}.constantDenominator": "64", f"{L}.aggregation": "Constant"},
        {f"{L}.constantDenominator": "64", f"{L}.aggregation": "TokenMean"},
    ),
    ("dualClip must", f"{L}.dualClip", {f"{L}.dualClip": "3.0"}, {f"{L}.dualClip": "1"}),
    ("clipLow must", f"{L}.clipLow", {f"{L}.clipLow": "1"}, {f"{L}.clipLow": "1.01"}),
    ("clipHigh must", f"{L}.clipHigh", {f"{L}.clipHigh": "0"}, {f"{L}.clipHigh": "-0.1"}),
    ("loss.type custom has", f"{L}.name", {f"{L}.type": "custom", f"{L}.name": "mine"}, {f"{L}.name": "mine"}),
    ("tauPos and tauNeg", f"{L}.type", {f"{L}.type": "sapo", f"{L}.tauPos": "1"}, {f"{L}.tauPos": "1"}),
    ("mode None has", f"{C}.mode", {C: MASK}, {C: {"mode": "None", "low": "0.5"}}),
    ("low must be", f"{C}.low", {C: {**MASK, "low": "2"}}, {C: {**MASK, "low": "3"}}),
    (
        "leaveOneOut is",
        f"{NORM}.leaveOneOut",
        {NORM: {"mean": "Group", "std": "None", "leaveOneOut": True}},
        {NORM: {"mean": "None", "std": "None", "leaveOneOut": True}},
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
        {"async.maxOffPolicySteps": 0, "async.onStale": "Drop"},
    ),
    ("training needs", S, {f"{S}.temperature": "0.7"}, {f"{S}.topP": "0.9"}),
    ("minTokens must", f"{S}.minTokens", {f"{S}.minTokens": 1024}, {f"{S}.minTokens": 1025}),
    (
        "state and checkpoints are",
        "storage.type",
        {"storage": {**CLAIMS, "state": {}}},
        {"storage": {"type": "Ephemeral", "state": {}}},
    ),
    *(
        (
            "checkpoints go to an object store",
            "storage.checkpoints.uri",
            {"storage": {"type": "Persistent", "checkpoints": {"uri": "s3://runs/mine"}}},
            {"storage": {"type": "Persistent", "checkpoints": {"uri": "s3://runs/mine", **claim}}},
        )
        for claim in ({"size": "1Gi"}, {"claimName": "mine"}, ONE)
    ),
    *(
        (
            f"{key} is for a new claim",
            f"storage.{place}.{key}",
            {"storage": {**NEW_CLAIMS, place: {"size": "1Gi", key: value}}},
            {"storage": {**NEW_CLAIMS, place: {"claimName": "mine", key: value}}},
        )
        for place in ("state", "checkpoints")
        for key, value in (("size", "1Gi"), ("storageClassName", "fast"), ("retention", "Delete"))
    ),
    (
        "every trainer node writes",
        "storage.checkpoints.accessMode",
        {"trainer.nodes": 2, "storage": {"type": "Persistent", "checkpoints": {"size": "1Gi", **MANY}}},
        {"trainer.nodes": 2, "storage": {"type": "Persistent", "checkpoints": {"size": "1Gi", **ONE}}},
    ),
    (
        "minReplicas must",
        "rollout.autoscaling.minReplicas",
        {"rollout.autoscaling": {"minReplicas": 2, "maxReplicas": 2}},
        {"rollout.autoscaling": {"minReplicas": 3, "maxReplicas": 2}},
    ),
    (
        "isolation.type None",
        "verifier.isolation.type",
        {"verifier.isolation": {"type": "None"}, "verifier.allowUnsafe": True},
        {"verifier.isolation": {"type": "None"}},
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
        "a fork needs",
        "resumeFrom",
        {"resumeFrom": {"uri": "/old", "step": 3}},
        {"resumeFrom": {"job": "old", "uri": "/old"}},
    ),
    (
        "an address must",
        "model.name",
        {"model.name": "s3://bucket/model"},
        {"model.name": "https://example.com/model"},
    ),
    (
        "an address must",
        "model.tokenizer",
        {"model.tokenizer": "gs://bucket/tokenizer"},
        {"model.tokenizer": "s3://key:secret@bucket/tokenizer"},
    ),
    (
        "an address must",
        "model.reference.name",
        {**KL, "model.reference": {"name": "s3://bucket/model"}},
        {**KL, "model.reference": {"name": "ftp://bucket/model"}},
    ),
    (
        "it is a folder",
        "model.source.path",
        {"model.source": {"claimName": "models", "path": "small"}},
        {"model.source": {"claimName": "models", "path": "s3://bucket/small"}},
    ),
    (
        "model.name is a folder",
        "model.revision",
        {"model": {"name": "Qwen/Qwen2.5-0.5B", "revision": "main"}},
        {"model": {"name": "s3://bucket/model", "revision": "main"}},
    ),
    (
        "only folders",
        "resumeFrom.uri",
        {"resumeFrom": {"uri": "file:///old"}},
        {"resumeFrom": {"uri": "s3://bucket/old"}},
    ),
    (
        "runtimeClassName is needed",
        "verifier.isolation.runtimeClassName",
        {"verifier.isolation": {"type": "RuntimeClass", "runtimeClassName": "gvisor"}},
        {"verifier.isolation": {"type": "Sandbox", "runtimeClassName": "gvisor"}},
    ),
    (
        "a group of one",
        "data.filterGroups.enabled",
        {**ALONE, "data.filterGroups.enabled": False},
        {**ALONE, "data.filterGroups.enabled": True},
    ),
    (
        "the overlong penalty",
        f"{S}.maxTokens",
        {f"{A}.rewards.overlong": OVERLONG, f"{S}.maxTokens": 385},
        {f"{A}.rewards.overlong": OVERLONG, f"{S}.maxTokens": 384},
    ),
    (
        "this workflow has no turns",
        f"{A}.gae.unit",
        {f"{A}.advantageEstimator": "reinforcepp", f"{A}.gae.unit": "Turn", "workflow.type": "multi_turn_math"},
        {f"{A}.advantageEstimator": "reinforcepp", f"{A}.gae.unit": "Turn"},
    ),
    (
        "the estimator compares",
        f"{A}.groupSize",
        {**ALONE, NORM: {"mean": "Batch", "std": "None"}},
        {**ALONE, NORM: {"mean": "Group", "std": "None"}},
    ),
    (
        "this estimator does not",
        f"{A}.gae",
        {f"{A}.advantageEstimator": "reinforcepp", f"{A}.gae.gamma": "0.99"},
        {f"{A}.gae.gamma": "0.99"},
    ),
    (
        "with zeroTruncated",
        f"{A}.gae.bootstrapTruncated",
        {**PPO, f"{A}.gae.bootstrapTruncated": True},
        {**PPO, f"{A}.gae.bootstrapTruncated": True, f"{A}.zeroTruncated": True},
    ),
    (
        "with proximal Behavior",
        C,
        {f"{L}.proximal": "Behavior"},
        {f"{L}.proximal": "Behavior", C: MASK},
    ),
    (
        "dualClip and m2Threshold",
        f"{L}.type",
        {f"{L}.m2Threshold": "0.04"},
        {f"{L}.type": "sapo", f"{L}.m2Threshold": "0.04"},
    ),
    ("this loss.type has", f"{L}.type", {f"{L}.type": "sapo"}, {f"{L}.type": "sapo", f"{L}.clipLow": "0.2"}),
    (
        "loss.type cispo needs",
        f"{L}.clipHigh",
        {f"{L}.type": "cispo", f"{L}.clipHigh": "4.0"},
        {f"{L}.type": "cispo", f"{L}.clipHigh": "0"},
    ),
    (
        "loss.type gspo averages",
        f"{L}.aggregation",
        {f"{L}.type": "gspo", f"{L}.aggregation": "SequenceMean"},
        {f"{L}.type": "gspo", f"{L}.aggregation": "TokenMean"},
    ),
    (
        "loss.type reinforce has",
        f"{L}.proximal",
        {f"{L}.type": "reinforce"},
        {f"{L}.type": "reinforce", f"{L}.proximal": "Recompute"},
    ),
    (
        "mode Truncate clamps",
        f"{C}.mode",
        {C: {"mode": "Truncate", "high": "2"}},
        {C: {"mode": "Truncate", "high": "2", "metric": "K3"}},
    ),
    (
        "agg is needed",
        f"{C}.agg",
        {C: {**MASK, "level": "Sequence", "agg": "Mean"}},
        {C: {**MASK, "level": "Token", "agg": "Mean"}},
    ),
    (
        "unbiased, eps and",
        f"{NORM}.std",
        {NORM: {"mean": "Group", "std": "Group", "eps": "1e-6"}},
        {NORM: {"mean": "Group", "std": "None", "eps": "1e-6"}},
    ),
    (
        "leaveOneOut is",
        f"{OVER_TOKENS}.leaveOneOut",
        {OVER_TOKENS: {"mean": "Batch", "std": "None", "leaveOneOut": True}},
        {OVER_TOKENS: {"mean": "None", "std": "None", "leaveOneOut": True}},
    ),
    (
        "unbiased, eps and",
        f"{OVER_TOKENS}.std",
        {OVER_TOKENS: {"mean": "Batch", "std": "Batch", "unbiased": False}},
        {OVER_TOKENS: {"mean": "Batch", "std": "None", "unbiased": False}},
    ),
)


def written_out(document: Object) -> Object:
    """Return a job with each default that is the schema's own written into it: a rule speaks of what a job writes."""
    spec = document["spec"]
    assert isinstance(spec, dict)
    return {**document, "spec": _written_out(spec, crd.structural(JobSpec))}


def _written_out(part: Object, schema: crd.Schema) -> Object:
    whole = dict(part)
    for key, child in crd.properties(schema).items():
        node = crd.properties_of(child)
        if key not in whole and "default" in node:
            whole[key] = {} if "properties" in node else node["default"]
        value = whole.get(key)
        if isinstance(value, dict) and "properties" in node:
            whole[key] = _written_out(value, node)
    return whole


# A frozen field, and two legal states of a job that differ in it: what is stored and what is asked for.
FROZEN: Mapping[str, tuple[Changes, Changes]] = {
    "seed": ({"seed": 1}, {"seed": 2}),
    "runtimeRef": ({}, {"runtimeRef": {"name": "gpu"}}),
    "device": ({}, {"device": "cpu"}),
    "model": ({}, {"model.name": "other"}),
    "data": ({}, {"data.train.0.path": "data/other.jsonl"}),
    "sft": ({**EXAMPLES, "sft": {"steps": 2}}, {**EXAMPLES, "sft": {"steps": 3}}),
    "teacher": (TAUGHT, {"teacher": {"model": "other"}}),
    "judge": ({**JUDGED, "judge": {"model": "one"}}, {**JUDGED, "judge": {"model": "other"}}),
    "workflow": ({}, {"workflow.type": "multi_turn_math"}),
    "algorithm": ({}, {"algorithm.epochs": 2}),
    "async.onStale": ({}, {"async.onStale": "Drop"}),
    "async.inFlightWeightUpdates": ({}, {"async.inFlightWeightUpdates": False}),
    "async.maxInflightGroups": ({"async.maxInflightGroups": 4}, {"async.maxInflightGroups": 8}),
    "coordinator": ({}, {"coordinator.pod.image": "a/b:1"}),
    "rollout.engine": ({}, {"rollout.engine.enforceEager": True}),
    "rollout.sampling": ({}, {"rollout.sampling.maxTokens": 32}),
    "rollout.drainSeconds": ({}, {"rollout.drainSeconds": 30}),
    "rollout.gateway": (
        {"workflow": {"type": "external"}, "rollout.gateway": {}},
        {"workflow": {"type": "external"}, "rollout.gateway": {"maxSessions": 8}},
    ),
    "agents": (
        {"workflow": {"type": "external"}, "rollout.gateway": {}, "agents": {}},
        {"workflow": {"type": "external"}, "rollout.gateway": {}, "agents": {"replicas": 2}},
    ),
    "environment": (
        {"workflow": {"type": "tool_use", "config": {"tools": ["shell"]}}, "environment": {}},
        {"workflow": {"type": "tool_use", "config": {"tools": ["shell"]}}, "environment": {"places": 2}},
    ),
    "rollout.pod": ({}, {"rollout.pod.image": "a/b:1"}),
    "verifier.isolation": ({}, {"verifier.isolation": {"type": "Sandbox"}}),
    "verifier.allowUnsafe": ({}, {"verifier.allowUnsafe": True}),
    "verifier.timeoutSeconds": ({}, {"verifier.timeoutSeconds": 5}),
    "verifier.memory": ({}, {"verifier.memory": "1Gi"}),
    "verifier.outputLimit": ({}, {"verifier.outputLimit": "1Mi"}),
    "verifier.maxConcurrent": ({}, {"verifier.maxConcurrent": 3}),
    "verifier.rewards": ({}, {"verifier.rewards": [{"name": "sum", "type": "math"}]}),
    "verifier.pod": ({}, {"verifier.pod.image": "a/b:1"}),
    "trainer": ({}, {"trainer.processesPerNode": 2}),
    "weightSync": ({}, {"weightSync.everySteps": 2}),
    "checkpoint": ({}, {"checkpoint.everySteps": 7}),
    "storage": ({}, {"storage": {"type": "Persistent", "checkpoints": {"claimName": "other"}}}),
    "evaluation.beforeTraining": ({}, {"evaluation.beforeTraining": False}),
    "evaluation.suites": ({}, SUITE),
    "evaluation.sampling": ({}, {"evaluation.sampling.maxTokens": 32}),
    "evaluation.samplesPerPrompt": ({}, {"evaluation.samplesPerPrompt": 2}),
    "evaluation.rolloutFraction": ({}, {"evaluation.rolloutFraction": "0.5"}),
    "security": ({}, {"security.tls": "Disabled"}),
    "observability.podMonitor": ({}, {"observability.podMonitor": True}),
    "observability.trajectoryDump": ({}, {"observability.trajectoryDump": "All"}),
    "observability.trajectoryDumpAlso": ({}, {"observability.trajectoryDumpAlso": ["Text"]}),
    "observability.trackers": ({}, {"observability.trackers": [{"name": "board", "type": "tensorboard"}]}),
}
FROZEN_WITH_CHECKPOINT: Mapping[str, Changes] = {
    "model": {"model.name": "other"},
    "data": {"data.train.0.path": "data/other.jsonl"},
    "seed": {"seed": 7},
    "algorithm.groupSize": {"algorithm.groupSize": 16},
    "algorithm.promptsPerStep": {"algorithm.promptsPerStep": 8},
}


def covers(message: str, field: str, rule: CelRule) -> bool:
    """Return whether a case is about a rule: it begins the rule's message and names the field that it speaks of."""
    at = rule.at.removeprefix("spec").removeprefix(".").replace("[]", "[0]")
    return rule.message.startswith(message) and field == ".".join(part for part in (at, rule.field) if part)
