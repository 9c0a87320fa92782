"""Refused settings of docs/design/algorithms.md#s-12: each row with a legal neighbour."""

import dataclasses
from collections.abc import Callable, Mapping

import pytest

from rljob_api import resolve
from rljob_api.manifest.job import RLJob
from rljob_api.validation import rules

MakeJob = Callable[..., RLJob]
LOSS = "algorithm.loss"
MUON = {"trainer.optimizer.type": "Muon", "trainer.optimizer.muon": {"learningRate": "1e-4"}}
MUON_PLACE = {"trainer.deepspeed.zeroStage": 1, "trainer.dtype": "bfloat16"}
TRACKERS = "observability.trackers"
CORRECTION = "algorithm.loss.rolloutCorrection"
TURNS = {"workflow.type": "multi_turn_math"}
SIGNED = {"workflow": {"type": "math_code_single_step", "config": {"shaping": "signed"}}}
LEGACY = {**TURNS, "workflow.config": {"layout": "legacy"}}
BOUNDED = {"type": "math_code_single_step", "config": {"shaping": "signed", "successRateLowerBound": 0.1}}
GAE_PPO = {"algorithm.advantageEstimator": "ppo", "algorithm.critic": {}}


@dataclasses.dataclass(frozen=True)
class Row:
    refused: Mapping[str, object]
    blamed: str
    accepted: Mapping[str, object]


URL = {"url": "https://example.com/v1", "model": "m"}
SHELLS = {"workflow.type": "tool_use", "workflow.config": {"tools": ["shell"]}}
SERVED = {"name": "search", "url": "http://search.tools.svc:8000/mcp"}


def served(*servers: object, **config: object) -> dict[str, object]:
    """Return tool_use with these servers."""
    return {"workflow.type": "tool_use", "workflow.config": {"mcp": list(servers), **config}}


JUDGED = {"name": "judged", "type": "judge", "config": URL}


def keyed(secret: str) -> dict[str, object]:
    """Return a reward of a judge with a key of this Secret."""
    return JUDGED | {"name": secret.replace(".", "_"), "config": {**URL, "apiKey": {"name": secret, "key": "token"}}}


CHECKPOINTS = {"type": "Persistent", "checkpoints": {"claimName": "mine"}}
REFERENCE = {f"{LOSS}.klCoef": "0.1", "model.reference": {"name": "base"}}

AGENTS = {"workflow.type": "external", "rollout.gateway": {}}
_PROMPTS = {"name": "questions", "path": "questions.jsonl"}
EXAMPLES = {"data.train": [{**_PROMPTS, "name": "answers", "phase": "SFT"}, _PROMPTS]}
SUPERVISED = {**EXAMPLES, "sft": {"steps": 2}}
OWN_JUDGE = {"verifier.rewards": [{"name": "judged", "type": "judge", "config": {}}]}
ONE_GPU = {"limits": {"nvidia.com/gpu": "1"}}
TEACHER = {"model": "better"}
ADDED = {**TEACHER, "taskReward": True}
REJECTING = {"mode": "Truncate", "high": "2", "reject": {"metric": "K1", "high": "0.5", "advantages": "Negative"}}

_SHOWN = {**_PROMPTS, "columns": {"images": "images"}}
PICTURES = {"data.train": [_SHOWN]}
SHOWN_SUITE = {"evaluation.suites": [{**_SHOWN, "name": "held-out"}]}


def with_pictures(refused: Mapping[str, object], blamed: str) -> Row:
    """Return what is refused of a job whose records have pictures, and those alone."""
    return Row({**PICTURES, **refused}, blamed, PICTURES)


TABLE: dict[str, Row] = {
    "pictures in a workflow that shows none": with_pictures(
        TURNS, "spec.workflow.type is 'multi_turn_math', but records"
    ),
    "pictures in a bare prompt": with_pictures({"data.template": "raw"}, "spec.data.template is 'raw', but records"),
    "pictures in a suite's bare prompt": with_pictures(
        {"evaluation.suites": [{**_SHOWN, "name": "held-out", "template": "r1"}]},
        "spec.evaluation.suites[0].template is 'r1', but records",
    ),
    "pictures in a suite alone": Row(
        SHOWN_SUITE, "spec.evaluation.suites[0].columns.images is", {**PICTURES, **SHOWN_SUITE}
    ),
    "pictures in examples": with_pictures(
        {"data.train": [_SHOWN, {**_PROMPTS, "name": "answers", "phase": "SFT"}], "sft": {"steps": 2}},
        "spec.data.train[1].phase is 'SFT', but records",
    ),
    "pictures for another engine": with_pictures(
        {"rollout.engine.type": "plugin:other"}, "spec.rollout.engine.type is 'plugin:other', but records"
    ),
    "pictures with tensor parallelism": with_pictures(
        {"rollout.engine.tensorParallelSize": 2}, "spec.rollout.engine.tensorParallelSize is 2, but records"
    ),
    "pictures with a tower that is divided": with_pictures(
        {"trainer.deepspeed.zeroStage": 3}, "spec.trainer.deepspeed.zeroStage is 3, but records"
    ),
    "pictures with Muon": with_pictures({**MUON, **MUON_PLACE}, "spec.trainer.optimizer.type is 'Muon', but records"),
    "pictures with an adapter": with_pictures({"model.lora": {}}, "spec.model.lora.rank is 16, but records"),
    "pictures with a critic": with_pictures(GAE_PPO, "spec.algorithm.advantageEstimator is 'ppo', but records"),
    "pictures with a teacher": with_pictures({"teacher": TEACHER}, "spec.teacher.model is 'better', but records"),
    "examples that no step learns": Row(EXAMPLES, "spec.data.train[0].phase is 'SFT', but no step", SUPERVISED),
    "supervised steps without examples": Row({"sft": {"steps": 2}}, "spec.sft is null, but no source", SUPERVISED),
    "examples alone": Row(
        {**SUPERVISED, "data.train": [{**_PROMPTS, "phase": "SFT"}]}, "spec.data.train[0].phase is 'SFT'", SUPERVISED
    ),
    "more supervised steps than steps": Row(
        {**SUPERVISED, "maxSteps": 1}, "spec.sft.steps is 2, but maxSteps 1", {**SUPERVISED, "maxSteps": 2}
    ),
    "supervised steps and epochs": Row(
        {**EXAMPLES, "sft": {"steps": 2, "epochs": 1}}, "spec.sft is", {**EXAMPLES, "sft": {"epochs": 1}}
    ),
    "neither supervised steps nor epochs": Row({**EXAMPLES, "sft": {}}, "spec.sft is", SUPERVISED),
    "supervised steps that learn nothing": Row(
        {**EXAMPLES, "sft": {"steps": 2, "learningRate": "0"}}, "spec.sft.learningRate is '0'", SUPERVISED
    ),
    "k1 in the loss": Row(
        {**REFERENCE, f"{LOSS}.klEstimator": "K1"},
        "spec.algorithm.loss.klEstimator is 'K1'",
        {**REFERENCE, f"{LOSS}.klEstimator": "K1", f"{LOSS}.klPlacement": "Reward"},
    ),
    "KL term without a reference model": Row(
        {f"{LOSS}.klCoef": "0.1"}, "spec.algorithm.loss.klCoef is '0.1'", REFERENCE
    ),
    "reference model without a KL term": Row(
        {"model.reference": {"name": "base"}}, "spec.model.reference is 'base'", REFERENCE
    ),
    "KL term of an adapter without a KL coefficient": Row(
        {"model.lora": {}, "model.reference": {"name": "base"}},
        "spec.model.reference is 'base'",
        {"model.lora": {}, f"{LOSS}.klCoef": "0.1"},
    ),
    "judge of no one": Row(
        OWN_JUDGE, "spec.verifier.rewards[0].config.url is ''", {**OWN_JUDGE, "judge": {"model": "good"}}
    ),
    "judge at an address": Row(
        {**OWN_JUDGE, "judge": {"model": "https://host/model"}},
        "spec.judge.model is 'https://host/model'",
        {**OWN_JUDGE, "judge": {"model": "s3://bucket/model"}},
    ),
    "judge whose host is written": Row(
        {**OWN_JUDGE, "judge": {"model": "good", "extraArgs": {"host": "0.0.0.0"}}},
        "spec.judge.extraArgs.host is '0.0.0.0'",
        {**OWN_JUDGE, "judge": {"model": "good", "extraArgs": {"max_num_seqs": 8}}},
    ),
    "judge with too few GPUs": Row(
        {**OWN_JUDGE, "judge": {"model": "good", "tensorParallelSize": 2, "resources": ONE_GPU}},
        "spec.judge.resources.limits.nvidia.com/gpu is 1",
        {**OWN_JUDGE, "judge": {"model": "good", "resources": ONE_GPU}},
    ),
    "teacher alone with a critic": Row(
        {**GAE_PPO, "teacher": TEACHER}, "spec.teacher.taskReward is false", {**GAE_PPO, "teacher": ADDED}
    ),
    "teacher alone with a KL term in rewards": Row(
        {**REFERENCE, f"{LOSS}.klPlacement": "Reward", "teacher": TEACHER},
        "spec.teacher.taskReward is false",
        {**REFERENCE, f"{LOSS}.klPlacement": "Reward", "teacher": {**TEACHER, "steps": 1}},
    ),
    "teacher for more steps than there are": Row(
        {"maxSteps": 3, "teacher": {**TEACHER, "steps": 4}},
        "spec.teacher.steps is 4, but maxSteps 3",
        {"maxSteps": 3, "teacher": {**TEACHER, "steps": 3}},
    ),
    "teacher without weight": Row(
        {"teacher": {**TEACHER, "coef": "0"}}, "spec.teacher.coef is '0'", {"teacher": {**TEACHER, "coef": "0.1"}}
    ),
    "teacher at an address of the web": Row(
        {"teacher": {"model": "https://hub/better"}},
        "spec.teacher.model is",
        {"teacher": {"model": "s3://bucket/better"}},
    ),
    "revision of a teacher in an object store": Row(
        {"teacher": {"model": "s3://bucket/better", "revision": "main"}},
        "spec.teacher.revision is 'main'",
        {"teacher": {"model": "org/better", "revision": "main"}},
    ),
    "mean weight before what it depends on": Row(
        {CORRECTION: {**REJECTING, "batchNormalize": True}, "teacher": TEACHER},
        "spec.teacher.model is 'better', but rolloutCorrection.batchNormalize",
        {CORRECTION: REJECTING, "teacher": TEACHER},
    ),
    "adapter with a critic": Row(
        {"model.lora": {}, **GAE_PPO}, "spec.algorithm.critic is", {"model.lora": {}, "algorithm.groupSize": 4}
    ),
    "adapter on every layer and one of them": Row(
        {"model.lora": {"targets": ["all-linear", "q_proj"]}},
        'spec.model.lora.targets is ["all-linear", "q_proj"]',
        {"model.lora": {"targets": ["all-linear"]}},
    ),
    "adapter on the embeddings": Row(
        {"model.lora": {"targets": ["q_proj", "embed_tokens"]}},
        'spec.model.lora.targets is ["q_proj", "embed_tokens"]',
        {"model.lora": {"targets": ["q_proj", "o_proj"]}},
    ),
    "adapter on a layer twice": Row(
        {"model.lora": {"targets": ["q_proj", "q_proj"]}},
        'spec.model.lora.targets is ["q_proj", "q_proj"]',
        {"model.lora": {"targets": ["q_proj"]}},
    ),
    "KL estimator without a KL term": Row(
        {f"{LOSS}.klEstimator": "K3"}, "spec.algorithm.loss.klEstimator is 'K3'", {f"{LOSS}.klCoef": "0"}
    ),
    "workflow external without a gateway": Row(
        {"workflow.type": "external"}, "spec.rollout.gateway", {"workflow.type": "external", "rollout.gateway": {}}
    ),
    "gateway without a workflow that serves it": Row(
        {"rollout.gateway": {}}, "spec.rollout.gateway", {"workflow.type": "external", "rollout.gateway": {}}
    ),
    "agents of a workflow without tasks for them": Row(
        {"agents": {}},
        "spec.agents.replicas is 1",
        {**AGENTS, "agents": {}},
    ),
    "agents whose egress is no block": Row(
        {**AGENTS, "agents.egress": [{"cidr": "10.0.0.1/8"}]},
        "spec.agents.egress[0].cidr is '10.0.0.1/8'",
        {**AGENTS, "agents.egress": [{"cidr": "10.0.0.0/8"}]},
    ),
    "agents with a prefix of no command": Row(
        {**AGENTS, "agents.pod": {"commandPrefix": ["nice"]}},
        "spec.agents.pod.commandPrefix",
        {**AGENTS, "agents.pod": {"commandPrefix": ["nice"]}, "agents.command": ["node"]},
    ),
    "environment of a workflow without commands": Row(
        {"environment": {}},
        "spec.environment.replicas is 1",
        {**SHELLS, "environment": {}},
    ),
    "environment of a workflow that takes none": Row(
        {"workflow.type": "multi_turn_math", "environment": {}},
        "spec.environment.replicas is 1",
        {"workflow.type": "plugin:mine", "environment": {}},
    ),
    "environment of a job whose tools are all of servers": Row(
        {**served(SERVED), "environment": {}},
        "spec.environment.replicas is 1",
        {**served(SERVED, tools=["shell"]), "environment": {}},
    ),
    "no tool at all": Row({"workflow.type": "tool_use"}, "spec.workflow.config.tools", {**SHELLS, "environment": {}}),
    "servers that are no list": Row(
        {"workflow.type": "tool_use", "workflow.config": {"mcp": SERVED}}, "spec.workflow.config.mcp", served(SERVED)
    ),
    "server with a URL and a command": Row(
        served({**SERVED, "command": ["a"]}), "spec.workflow.config.mcp[0] is 'search'", served(SERVED)
    ),
    "server at a URL with a key in it": Row(
        served({**SERVED, "url": "https://a:b@example.com/mcp"}),
        "spec.workflow.config.mcp[0] is 'search', but its url must hold no user",
        served({**SERVED, "url": "https://example.com/mcp", "tokenVariable": "SEARCH_TOKEN"}),
    ),
    "secret of a server in the manifest": Row(
        served({"name": "a", "command": ["a"], "env": {"API_KEY": "hush"}}),
        "spec.workflow.config.mcp[0] is 'a', but its env has API_KEY",
        served({"name": "a", "command": ["a"], "env": {"DEPTH": "3"}, "variables": ["API_KEY"]}),
    ),
    "variable of rljob's own for a server": Row(
        served({"name": "a", "command": ["a"], "variables": ["RLJOB_GATEWAY_KEY"]}),
        "spec.workflow.config.mcp[0] is 'a', but it does not get RLJOB_GATEWAY_KEY",
        served({"name": "a", "command": ["a"], "variables": ["GATEWAY_KEY"]}),
    ),
    "option that no server has": Row(
        served({**SERVED, "uri": "x"}), "spec.workflow.config.mcp[0].uri is 'x'", served(SERVED)
    ),
    "two servers of one name": Row(
        served(SERVED, SERVED),
        "spec.workflow.config.mcp[1].name is 'search'",
        served(SERVED, {**SERVED, "name": "other"}),
    ),
    "tools of servers in a terminal": Row(
        served(SERVED, notation="terminal"),
        "spec.workflow.config.notation is 'terminal'",
        served(SERVED, notation="hermes"),
    ),
    "commands without an environment": Row(SHELLS, "spec.environment", {**SHELLS, "environment": {}}),
    "memory in which no shell starts": Row(
        {**SHELLS, "environment": {"memory": "1Mi"}},
        "spec.environment.memory is '1Mi'",
        {**SHELLS, "environment": {"memory": "64Mi", "scratch": "1Mi", "outputLimit": "1"}},
    ),
    "files that have no room": Row(
        {**SHELLS, "environment": {"scratch": "1Ki"}},
        "spec.environment.scratch is '1Ki'",
        {**SHELLS, "environment": {"scratch": "1Mi"}},
    ),
    "environment with a GPU": Row(
        {**SHELLS, "environment": {"resources": {"limits": {"nvidia.com/gpu": "1"}}}},
        "spec.environment.resources.limits",
        {**SHELLS, "environment": {"resources": {"limits": {"memory": "1Gi"}}}},
    ),
    "session shorter than its silence": Row(
        {"workflow.type": "external", "rollout.gateway": {"sessionSeconds": 60}},
        "spec.rollout.gateway.sessionSeconds is 60",
        {"workflow.type": "external", "rollout.gateway": {"sessionSeconds": 600}},
    ),
    "reuse with two minibatches": Row(
        {f"{LOSS}.proximal": "Reuse", "algorithm.minibatches": 2},
        "spec.algorithm.loss.proximal is 'Reuse'",
        {f"{LOSS}.proximal": "Reuse"},
    ),
    "reuse with two epochs": Row(
        {f"{LOSS}.proximal": "Reuse", "algorithm.epochs": 2},
        "spec.algorithm.loss.proximal is 'Reuse'",
        {f"{LOSS}.proximal": "Recompute", "algorithm.epochs": 2},
    ),
    "behavior with a correction": Row(
        {f"{LOSS}.proximal": "Behavior", CORRECTION: {"mode": "None"}},
        "spec.algorithm.loss.rolloutCorrection is",
        {f"{LOSS}.proximal": "Behavior"},
    ),
    "loglinear with m2Threshold": Row(
        {f"{LOSS}.proximal": "LogLinear", f"{LOSS}.m2Threshold": "0.04"},
        "spec.algorithm.loss.proximal is 'LogLinear'",
        {f"{LOSS}.m2Threshold": "0.04"},
    ),
    "reuse with batchNormalize": Row(
        {f"{LOSS}.proximal": "Reuse", CORRECTION: {"batchNormalize": True}},
        "spec.algorithm.loss.proximal is 'Reuse'",
        {CORRECTION: {"batchNormalize": True}},
    ),
    "loglinear with KL in the reward": Row(
        {**REFERENCE, f"{LOSS}.klPlacement": "Reward", f"{LOSS}.proximal": "LogLinear"},
        "spec.algorithm.loss.proximal is 'LogLinear'",
        {**REFERENCE, f"{LOSS}.klPlacement": "Loss", f"{LOSS}.proximal": "LogLinear"},
    ),
    "reinforce with batchNormalize": Row(
        {f"{LOSS}.type": "reinforce", CORRECTION: {"batchNormalize": True}},
        "spec.algorithm.loss.rolloutCorrection.batchNormalize is true",
        {f"{LOSS}.type": "reinforce", CORRECTION: {"batchNormalize": False}},
    ),
    "truncate with k3": Row(
        {CORRECTION: {"mode": "Truncate", "metric": "K3", "high": "0.01"}},
        "spec.algorithm.loss.rolloutCorrection.metric is 'K3'",
        {CORRECTION: {"mode": "Mask", "metric": "K3", "high": "0.01"}},
    ),
    "truncate without a weight": Row(
        {CORRECTION: {"weighting": "None"}},
        "spec.algorithm.loss.rolloutCorrection.weighting is 'None'",
        {CORRECTION: {"weighting": "None", "mode": "Mask", "high": "5"}},
    ),
    "bounds with mode none": Row(
        {CORRECTION: {"mode": "None", "high": "2"}},
        "spec.algorithm.loss.rolloutCorrection.high is '2'",
        {CORRECTION: {"mode": "None"}},
    ),
    "mask without bounds": Row(
        {CORRECTION: {"mode": "Mask"}},
        "spec.algorithm.loss.rolloutCorrection.mode is 'Mask'",
        {CORRECTION: {"mode": "Mask", "high": "5"}},
    ),
    "ratio: high not above 1": Row(
        {CORRECTION: {"high": "1"}},
        "spec.algorithm.loss.rolloutCorrection.high is '1'",
        {CORRECTION: {"high": "1.001"}},
    ),
    "ratio: low not above 0": Row(
        {CORRECTION: {"low": "0"}},
        "spec.algorithm.loss.rolloutCorrection.low is '0'",
        {CORRECTION: {"low": "0.001"}},
    ),
    "ratio: low not below 1": Row(
        {CORRECTION: {"low": "1"}},
        "spec.algorithm.loss.rolloutCorrection.low is '1'",
        {CORRECTION: {"low": "0.999"}},
    ),
    "low above high": Row(
        {CORRECTION: {"mode": "Mask", "metric": "K1", "low": "2", "high": "1"}},
        "spec.algorithm.loss.rolloutCorrection.low is '2'",
        {CORRECTION: {"mode": "Mask", "metric": "K1", "low": "1", "high": "1"}},
    ),
    "k3 with a lower bound": Row(
        {CORRECTION: {"mode": "Mask", "metric": "K3", "low": "0.1", "high": "1"}},
        "spec.algorithm.loss.rolloutCorrection.low is '0.1'",
        {CORRECTION: {"mode": "Mask", "metric": "K3", "high": "1"}},
    ),
    "k2 with an upper bound of 0": Row(
        {CORRECTION: {"mode": "Mask", "metric": "K2", "high": "0"}},
        "spec.algorithm.loss.rolloutCorrection.high is '0'",
        {CORRECTION: {"mode": "Mask", "metric": "K2", "high": "0.001"}},
    ),
    "binaryKl of whole rows": Row(
        {CORRECTION: {"mode": "Mask", "metric": "BinaryKL", "high": "2", "level": "Sequence", "agg": "Mean"}},
        "spec.algorithm.loss.rolloutCorrection.metric is 'BinaryKL'",
        {CORRECTION: {"mode": "Mask", "metric": "BinaryKL", "high": "2"}},
    ),
    "bounds of the second filter": Row(
        {CORRECTION: {"reject": {"level": "Sequence", "agg": "Mean", "high": "0.9"}}},
        "spec.algorithm.loss.rolloutCorrection.reject.high is '0.9'",
        {CORRECTION: {"reject": {"level": "Sequence", "agg": "Mean", "low": "0.99", "high": "1.001"}}},
    ),
    "agg of single tokens": Row(
        {CORRECTION: {"agg": "Mean"}},
        "spec.algorithm.loss.rolloutCorrection.agg is 'Mean'",
        {CORRECTION: {"level": "Sequence", "agg": "Mean"}},
    ),
    "largest ratio as a weight": Row(
        {CORRECTION: {"level": "Sequence", "agg": "Max", "mode": "Mask", "high": "5"}},
        "spec.algorithm.loss.rolloutCorrection.agg is 'Max'",
        {CORRECTION: {"level": "Sequence", "agg": "Max", "mode": "Mask", "high": "5", "weighting": "None"}},
    ),
    "gspo with a token mean": Row(
        {f"{LOSS}.type": "gspo", f"{LOSS}.aggregation": "TokenMean"},
        "spec.algorithm.loss.aggregation is 'TokenMean'",
        {f"{LOSS}.type": "gspo", f"{LOSS}.aggregation": "SequenceMean"},
    ),
    "gspo with dualClip": Row(
        {f"{LOSS}.type": "gspo", f"{LOSS}.dualClip": "3"},
        "spec.algorithm.loss.dualClip is '3'",
        {f"{LOSS}.type": "ppo", f"{LOSS}.dualClip": "3"},
    ),
    "gspo with m2Threshold": Row(
        {f"{LOSS}.type": "gspo", f"{LOSS}.m2Threshold": "0.04"},
        "spec.algorithm.loss.m2Threshold is '0.04'",
        {f"{LOSS}.type": "gspo"},
    ),
    "cispo without clipHigh": Row(
        {f"{LOSS}.type": "cispo"},
        "spec.algorithm.loss.clipHigh is null",
        {f"{LOSS}.type": "cispo", f"{LOSS}.clipHigh": "4"},
    ),
    "cispo with clipHigh 0": Row(
        {f"{LOSS}.type": "cispo", f"{LOSS}.clipHigh": "0"},
        "spec.algorithm.loss.clipHigh is '0'",
        {f"{LOSS}.type": "cispo", f"{LOSS}.clipLow": "1", f"{LOSS}.clipHigh": "0.1"},
    ),
    "cispo with m2Threshold": Row(
        {f"{LOSS}.type": "cispo", f"{LOSS}.clipHigh": "4", f"{LOSS}.m2Threshold": "0.04"},
        "spec.algorithm.loss.m2Threshold is '0.04'",
        {f"{LOSS}.type": "cispo", f"{LOSS}.clipHigh": "4", f"{LOSS}.clipLow": "1"},
    ),
    "sapo with a clip band": Row(
        {f"{LOSS}.type": "sapo", f"{LOSS}.clipLow": "0.2"},
        "spec.algorithm.loss.clipLow is '0.2'",
        {f"{LOSS}.type": "sapo", f"{LOSS}.tauNeg": "1.05"},
    ),
    "sapo with temperature 0": Row(
        {f"{LOSS}.type": "sapo", f"{LOSS}.tauPos": "0"},
        "spec.algorithm.loss.tauPos is '0'",
        {f"{LOSS}.type": "sapo", f"{LOSS}.tauPos": "0.1"},
    ),
    "reinforce with a proximal policy": Row(
        {f"{LOSS}.type": "reinforce", f"{LOSS}.proximal": "Recompute"},
        "spec.algorithm.loss.proximal is 'Recompute'",
        {f"{LOSS}.type": "reinforce"},
    ),
    "custom loss without a name": Row(
        {f"{LOSS}.type": "custom"},
        "spec.algorithm.loss.name",
        {f"{LOSS}.type": "custom", f"{LOSS}.name": "mine"},
    ),
    "temperature of sapo in ppo": Row(
        {f"{LOSS}.tauPos": "1"},
        "spec.algorithm.loss.tauPos is '1'",
        {f"{LOSS}.type": "sapo", f"{LOSS}.tauPos": "1"},
    ),
    "dualClip of 1": Row({f"{LOSS}.dualClip": "1"}, "spec.algorithm.loss.dualClip is '1'", {f"{LOSS}.dualClip": "1.1"}),
    "clipLow above 1": Row(
        {f"{LOSS}.clipLow": "1.1"}, "spec.algorithm.loss.clipLow is '1.1'", {f"{LOSS}.clipLow": "1"}
    ),
    "negative clip": Row(
        {f"{LOSS}.clipHigh": "-0.1"}, "spec.algorithm.loss.clipHigh is '-0.1'", {f"{LOSS}.clipHigh": "0"}
    ),
    "negative coefficient": Row(
        {f"{LOSS}.entropyCoef": "-1e-3"},
        "spec.algorithm.loss.entropyCoef is '-1e-3'",
        {f"{LOSS}.entropyCoef": "1e-3"},
    ),
    "target of the entropy that is none": Row(
        {"algorithm.entropy.target": "0"}, "spec.algorithm.entropy.target is '0'", {"algorithm.entropy.target": "0.2"}
    ),
    "change of the entropy coefficient without a target": Row(
        {"algorithm.entropy.delta": "0.01"},
        "spec.algorithm.entropy.delta",
        {"algorithm.entropy.delta": "0.01", "algorithm.entropy.target": "0.2"},
    ),
    "no token of high entropy": Row(
        {"algorithm.entropy.topQuantile": "0"},
        "spec.algorithm.entropy.topQuantile is '0'",
        {"algorithm.entropy.topQuantile": "1"},
    ),
    "tokens of high entropy in a loss of rows": Row(
        {"algorithm.entropy.topQuantile": "0.2", f"{LOSS}.type": "gspo"},
        "spec.algorithm.entropy.topQuantile is '0.2', but loss.type is 'gspo'",
        {"algorithm.entropy.topQuantile": "0.2"},
    ),
    "entropy coefficient that begins above its bound": Row(
        {"algorithm.entropy.target": "0.2", f"{LOSS}.entropyCoef": "2"},
        "spec.algorithm.loss.entropyCoef is '2'",
        {"algorithm.entropy.target": "0.2", f"{LOSS}.entropyCoef": "0.01"},
    ),
    "negative factor": Row(
        {"algorithm.rewards.overlong": {"maxTokens": 1000, "tailTokens": 100, "factor": "-1"}},
        "spec.algorithm.rewards.overlong.factor is '-1'",
        {"algorithm.rewards.overlong": {"maxTokens": 1000, "tailTokens": 100, "factor": "0.5"}},
    ),
    "group of one with a group mean": Row(
        {"algorithm.groupSize": 1},
        "spec.algorithm.groupSize is 1, but advantageEstimator grpo compares samples within a group and needs at"
        " least 2",
        {"algorithm.groupSize": 2},
    ),
    "group of one with the zero-spread filter": Row(
        {"algorithm.groupSize": 1, "algorithm.advantageEstimator": "reinforcepp", "data.filterGroups.enabled": True},
        "spec.data.filterGroups.enabled is true",
        {"algorithm.groupSize": 1, "algorithm.advantageEstimator": "reinforcepp"},
    ),
    "leaveOneOut without a mean": Row(
        {"algorithm.normalizeReward": {"mean": "None", "std": "None", "leaveOneOut": True}},
        "spec.algorithm.normalizeReward.leaveOneOut is true",
        {"algorithm.normalizeReward": {"mean": "Group", "std": "None", "leaveOneOut": True}},
    ),
    "unbiased without a std": Row(
        {"algorithm.normalizeReward": {"mean": "Group", "std": "None", "unbiased": True}},
        "spec.algorithm.normalizeReward.unbiased is true",
        {"algorithm.normalizeReward": {"mean": "Group", "std": "Group", "unbiased": True}},
    ),
    "eps of advantages without a std": Row(
        {"algorithm.normalizeAdvantage": {"mean": "Batch", "std": "None", "eps": "1e-5"}},
        "spec.algorithm.normalizeAdvantage.eps is '1e-5'",
        {"algorithm.normalizeAdvantage": {"mean": "Batch", "std": "Batch", "eps": "1e-5"}},
    ),
    "stdCenter without a std": Row(
        {"algorithm.normalizeReward": {"mean": "Group", "std": "None", "stdCenter": "Own"}},
        "spec.algorithm.normalizeReward.stdCenter is 'Own'",
        {"algorithm.normalizeReward": {"mean": "Group", "std": "Batch", "stdCenter": "Own"}},
    ),
    "legacy turns with shaped rewards": Row(
        {**LEGACY, "algorithm.rewards.scale": "2"}, "spec.algorithm.rewards.scale is '2'", LEGACY
    ),
    "signed shaping with a scale": Row(
        {**SIGNED, "algorithm.rewards.scale": "2"},
        "spec.algorithm.rewards.scale is '2'",
        SIGNED,
    ),
    "legacy turns with a bias": Row(
        {**LEGACY, "algorithm.rewards.bias": "-0.5"},
        "spec.algorithm.rewards.bias is '-0.5'",
        {**TURNS, "algorithm.rewards.bias": "-0.5"},
    ),
    "discount above 1": Row(
        {"algorithm.advantageEstimator": "reinforcepp", "algorithm.gae": {"gamma": "1.01"}},
        "spec.algorithm.gae.gamma is '1.01'",
        {"algorithm.advantageEstimator": "reinforcepp", "algorithm.gae": {"gamma": "1"}},
    ),
    "lambda above 1": Row(
        {**GAE_PPO, "algorithm.gae": {"lambda": "1.5"}},
        "spec.algorithm.gae.lambda is '1.5'",
        {**GAE_PPO, "algorithm.gae": {"lambda": "1"}},
    ),
    "vapo without alpha": Row(
        {**GAE_PPO, "algorithm.gae": {"lambda": "vapo{0}"}},
        "spec.algorithm.gae.lambda is 'vapo{0}'",
        {**GAE_PPO, "algorithm.gae": {"lambda": "vapo{2}"}},
    ),
    "relative position above 1": Row(
        {**GAE_PPO, "algorithm.gae": {"lambda": "relativePosition{1.5}"}},
        "spec.algorithm.gae.lambda is 'relativePosition{1.5}'",
        {**GAE_PPO, "algorithm.gae": {"lambda": "relativePosition{0.25}"}},
    ),
    "lambda without a critic": Row(
        {"algorithm.gae": {"lambda": "0.95"}},
        "spec.algorithm.gae.lambda is '0.95'",
        {**GAE_PPO, "algorithm.gae": {"lambda": "0.95"}},
    ),
    "gamma in grpo": Row(
        {"algorithm.gae": {"gamma": "1"}},
        "spec.algorithm.gae.gamma is '1'",
        {"algorithm.advantageEstimator": "reinforceppBaseline", "algorithm.gae": {"gamma": "1"}},
    ),
    "turn unit without turns": Row(
        {**GAE_PPO, "algorithm.gae": {"unit": "Turn"}},
        "spec.algorithm.gae.unit is 'Turn'",
        {**GAE_PPO, **TURNS, "algorithm.gae": {"unit": "Turn"}},
    ),
    "ppo without a critic": Row(
        {"algorithm.advantageEstimator": "ppo"}, "spec.algorithm.advantageEstimator is 'ppo'", GAE_PPO
    ),
    "critic without ppo": Row({"algorithm.critic": {}}, "spec.algorithm.critic is {}", GAE_PPO),
    "denominator without constant": Row(
        {f"{LOSS}.constantDenominator": "3000"},
        "spec.algorithm.loss.constantDenominator is '3000'",
        {f"{LOSS}.constantDenominator": "3000", f"{LOSS}.aggregation": "Constant"},
    ),
    "cut answer that ends and goes on": Row(
        {**GAE_PPO, "algorithm.zeroTruncated": True, "algorithm.gae": {"bootstrapTruncated": True}},
        "spec.algorithm.gae.bootstrapTruncated is true",
        {**GAE_PPO, "algorithm.zeroTruncated": True, "algorithm.gae": {"bootstrapTruncated": False}},
    ),
    "tail longer than the answer": Row(
        {"algorithm.rewards.overlong": {"maxTokens": 100, "tailTokens": 101}},
        "spec.algorithm.rewards.overlong.tailTokens is 101",
        {"algorithm.rewards.overlong": {"maxTokens": 100, "tailTokens": 100}},
    ),
    "length penalty that never acts": Row(
        {"algorithm.rewards.overlong": {"maxTokens": 1100, "tailTokens": 76}},
        "spec.rollout.sampling.maxTokens is 1024",
        {"algorithm.rewards.overlong": {"maxTokens": 1100, "tailTokens": 77}},
    ),
    "filter that accepts nothing": Row(
        {"data.filterGroups": {"lower": "0.6", "upper": "0.5"}},
        "spec.data.filterGroups.lower is '0.6'",
        {"data.filterGroups": {"lower": "0.5", "upper": "0.5"}},
    ),
    "onStale when synchronous": Row(
        {"async": {"maxOffPolicySteps": 0, "onStale": "Drop"}},
        "spec.async.onStale is 'Drop'",
        {"async": {"maxOffPolicySteps": 1, "onStale": "Drop"}},
    ),
    "updates in flight when synchronous": Row(
        {"async": {"maxOffPolicySteps": 0, "inFlightWeightUpdates": True}},
        "spec.async.inFlightWeightUpdates is true",
        {"async": {"maxOffPolicySteps": 0, "inFlightWeightUpdates": False}},
    ),
    "versions too far apart": Row(
        {"weightSync.everySteps": 3}, "spec.weightSync.everySteps is 3", {"weightSync.everySteps": 2}
    ),
    "wait with rare versions": Row(
        {"weightSync.everySteps": 2, "async.onStale": "Wait"},
        "spec.weightSync.everySteps is 2",
        {"weightSync.everySteps": 1, "async.onStale": "Wait"},
    ),
    "anchors without deltas": Row(
        {"weightSync.delta": False, "weightSync.anchorEvery": 5},
        "spec.weightSync.anchorEvery is 5",
        {"weightSync.delta": True, "weightSync.anchorEvery": 5},
    ),
    "more minibatches than rows": Row(
        {"algorithm.promptsPerStep": 2, "algorithm.groupSize": 2, "algorithm.minibatches": 5},
        "spec.algorithm.minibatches is 5",
        {"algorithm.promptsPerStep": 2, "algorithm.groupSize": 2, "algorithm.minibatches": 4},
    ),
    "row that fits nowhere": Row(
        {"trainer.maxTokensPerMicroBatch": 2047},
        "spec.trainer.maxTokensPerMicroBatch is 2047",
        {"trainer.maxTokensPerMicroBatch": 2048},
    ),
    "greedy training": Row(
        {"rollout.sampling.temperature": "0"},
        "spec.rollout.sampling.temperature is '0'",
        {"rollout.sampling.temperature": "0.1"},
    ),
    "nucleus in training": Row(
        {"rollout.sampling.topP": "0.9"}, "spec.rollout.sampling.topP is '0.9'", {"rollout.sampling.topP": "1.0"}
    ),
    "top k in training": Row(
        {"rollout.sampling.topK": 50}, "spec.rollout.sampling.topK is 50", {"evaluation.sampling.topK": 50}
    ),
    "min p in training": Row(
        {"rollout.sampling.minP": "0.1"},
        "spec.rollout.sampling.minP is '0.1'",
        {"evaluation.sampling.minP": "0.1"},
    ),
    "rows that do not divide": Row(
        {"algorithm.promptsPerStep": 5, "algorithm.groupSize": 3, "trainer.processesPerNode": 2},
        "spec.algorithm.promptsPerStep is 5, but promptsPerStep x groupSize = 15 cannot be divided among 2 trainer",
        {"algorithm.promptsPerStep": 5, "algorithm.groupSize": 4, "trainer.processesPerNode": 2},
    ),
    "context too short for training": Row(
        {"rollout.engine.maxModelLen": 2047},
        "spec.rollout.engine.maxModelLen is 2047, but data.train maxPromptTokens 1024 + rollout.sampling.maxTokens 1024"
        " = 2048 tokens must fit",
        {"rollout.engine.maxModelLen": 2048},
    ),
    "context too short for a suite": Row(
        {
            "rollout.engine.maxModelLen": 2048,
            "evaluation.suites": [{"name": "s", "path": "s", "maxPromptTokens": 1025}],
        },
        "spec.evaluation.suites[0].maxPromptTokens is 1025",
        {
            "rollout.engine.maxModelLen": 2049,
            "evaluation.suites": [{"name": "s", "path": "s", "maxPromptTokens": 1025}],
        },
    ),
    "stops that the template replaces": Row(
        {"data.template": "qwen_math", "rollout.sampling.stop": ["\n"]},
        "spec.rollout.sampling.stop is [\"\\n\"], but data.template is 'qwen_math'",
        {"data.template": "raw", "rollout.sampling.stop": ["\n"]},
    ),
    "stop ids of a suite that the template replaces": Row(
        {"data.template": "r1", "evaluation.sampling.stopTokenIds": [2]},
        "spec.evaluation.sampling.stopTokenIds is [2], but data.template is 'r1'",
        {"data.template": "chat", "evaluation.sampling.stopTokenIds": [2]},
    ),
    "more groups in flight than can be trained": Row(
        {"async.maxInflightGroups": 65},
        "spec.async.maxInflightGroups is 65",
        {"async.maxInflightGroups": 64},
    ),
    "share above 1": Row(
        {"failurePolicy.minGroupFraction": "1.1"},
        "spec.failurePolicy.minGroupFraction is '1.1'",
        {"failurePolicy.minGroupFraction": "0.5"},
    ),
    "more than all rollouts taken by an evaluation": Row(
        {"evaluation.rolloutFraction": "2"},
        "spec.evaluation.rolloutFraction is '2'",
        {"evaluation.rolloutFraction": "1"},
    ),
    "more than all prompts of an epoch left out": Row(
        {"data.curriculum": {"filterThreshold": "0.9", "maxFilterPercentage": "1.5"}},
        "spec.data.curriculum.maxFilterPercentage is '1.5'",
        {"data.curriculum": {"filterThreshold": "1e4", "maxFilterPercentage": "0.1"}},
    ),
    "learning rate of 0": Row(
        {"trainer.optimizer.learningRate": "0"},
        "spec.trainer.optimizer.learningRate is '0'",
        {"trainer.optimizer.learningRate": "1e-9"},
    ),
    "a decay of a rate that does not fall": Row(
        {"trainer.optimizer.decaySteps": 4},
        "spec.trainer.optimizer.decaySteps is 4",
        {"trainer.optimizer.decaySteps": 4, "trainer.optimizer.schedule": "Linear"},
    ),
    "Muon without a learning rate of its own": Row(
        {"trainer.optimizer.type": "Muon", **MUON_PLACE},
        "spec.trainer.optimizer.type is 'Muon', but muon is not set",
        {**MUON, **MUON_PLACE},
    ),
    "numbers of Muon for AdamW": Row(
        {"trainer.optimizer.muon": {"learningRate": "1e-4"}},
        "spec.trainer.optimizer.muon is",
        {**MUON, **MUON_PLACE},
    ),
    "learning rate of 0 for Muon": Row(
        {**MUON, **MUON_PLACE, "trainer.optimizer.muon": {"learningRate": "0"}},
        "spec.trainer.optimizer.muon.learningRate is '0'",
        {**MUON, **MUON_PLACE},
    ),
    "momentum of 1": Row(
        {**MUON, **MUON_PLACE, "trainer.optimizer.muon": {"learningRate": "1e-4", "momentum": "1"}},
        "spec.trainer.optimizer.muon.momentum is '1'",
        {**MUON, **MUON_PLACE, "trainer.optimizer.muon": {"learningRate": "1e-4", "momentum": "0.9"}},
    ),
    "Muon under ZeRO 2": Row(
        {**MUON, **MUON_PLACE, "trainer.deepspeed.zeroStage": 2},
        "spec.trainer.optimizer.type is 'Muon', but deepspeed.zeroStage is 2",
        {**MUON, **MUON_PLACE},
    ),
    "Muon in float32": Row(
        {**MUON, **MUON_PLACE, "trainer.dtype": "float32"},
        "spec.trainer.optimizer.type is 'Muon', but dtype is 'float32'",
        {**MUON, **MUON_PLACE, "trainer.deepspeed.zeroStage": 0},
    ),
    "Muon with offload": Row(
        {**MUON, **MUON_PLACE, "trainer.deepspeed.offloadOptimizer": True},
        "spec.trainer.optimizer.type is 'Muon', but deepspeed.offloadOptimizer is true",
        {**MUON, **MUON_PLACE},
    ),
    "Muon for an adapter": Row(
        {**MUON, **MUON_PLACE, "model.lora": {"rank": 8}},
        "spec.trainer.optimizer.type is 'Muon', but spec.model.lora is set",
        {**MUON, **MUON_PLACE},
    ),
    "Muon with a critic": Row(
        {**MUON, **MUON_PLACE, "algorithm.advantageEstimator": "ppo", "algorithm.critic": {}},
        "spec.trainer.optimizer.type is 'Muon', but spec.algorithm.critic is set",
        {**MUON, **MUON_PLACE},
    ),
    "source with two places": Row(
        {"data.train.0.hub": "some/set"},
        "spec.data.train[0] is 'sums', but it has path and hub",
        {"data.train": [{"name": "sums", "hub": "some/set"}]},
    ),
    "source without a place": Row(
        {"data.train": [{"name": "sums"}]},
        "spec.data.train[0] is 'sums', but it has none of path, uri, hub and reasoningGym",
        {"data.train": [{"name": "sums", "reasoningGym": {"name": "chain_sum"}}]},
    ),
    "name that stands twice": Row(
        {"verifier.rewards": [{"name": "a", "type": "exact"}, {"name": "a", "type": "math"}]},
        "spec.verifier.rewards is 'a', but that name occurs 2 times",
        {"verifier.rewards": [{"name": "a", "type": "exact"}, {"name": "b", "type": "math"}]},
    ),
    "filter on a reward that is not there": Row(
        {"data.filterGroups.metric": "wrong"},
        "spec.data.filterGroups.metric is 'wrong'",
        {"data.filterGroups.metric": "right"},
    ),
    "bound on the mean success in two places": Row(
        {"workflow": BOUNDED, "data.filterGroups.lower": "0.2"},
        "spec.workflow.config.successRateLowerBound is 0.1, but data.filterGroups.lower is '0.2'",
        {"workflow": BOUNDED, "data.filterGroups.upper": "0.8"},
    ),
    "own grader in compat mode": Row(
        {"verifier.rewards.0.mode": "Compat"},
        "spec.verifier.rewards[0].mode is 'Compat'",
        {"verifier.rewards": [{"name": "r", "type": "gsm8k", "mode": "Compat"}]},
    ),
    "an option that the reward does not have": Row(
        {"verifier.rewards": [{"name": "r", "type": "boxed", "config": {"tagRule": "loose"}}]},
        "spec.verifier.rewards[0].config.tagRule is 'loose', but boxed has no such option",
        {"verifier.rewards": [{"name": "r", "type": "answer_tag", "config": {"tagRule": "loose"}}]},
    ),
    "packages for a reward that runs nothing": Row(
        {"verifier.rewards": [{"name": "r", "type": "math", "packages": ["numpy"]}]},
        'spec.verifier.rewards[0].packages is ["numpy"], but math runs no program; it is for code,',
        {"verifier.rewards": [{"name": "r", "type": "code", "packages": ["numpy", "scipy.optimize"]}]},
    ),
    "a package twice": Row(
        {"verifier.rewards": [{"name": "r", "type": "code", "packages": ["numpy", "numpy"]}]},
        "spec.verifier.rewards[0].packages[1] is 'numpy', but it is already in the list",
        {"verifier.rewards": [{"name": "r", "type": "areal-code", "packages": ["numpy", "pandas"]}]},
    ),
    "a module of the standard library as a package": Row(
        {"verifier.rewards": [{"name": "r", "type": "code", "packages": ["heapq"]}]},
        "spec.verifier.rewards[0].packages[0] is 'heapq', but it is a part of Python",
        {"verifier.rewards": [{"name": "r", "type": "repository-tests", "packages": ["numpy"]}]},
    ),
    "the verifier's own code as a package": Row(
        {"verifier.rewards": [{"name": "r", "type": "code", "packages": ["rljob_workers.verifier"]}]},
        "spec.verifier.rewards[0].packages[0] is 'rljob_workers.verifier', but it is the verifier's own code",
        {"verifier.rewards": [{"name": "r", "type": "code"}]},
    ),
    "no isolation by accident": Row(
        {"verifier.isolation": {"type": "None"}},
        "spec.verifier.isolation.type is 'None'",
        {"verifier.isolation": {"type": "None"}, "verifier.allowUnsafe": True},
    ),
    "fewest replicas above most": Row(
        {"rollout.autoscaling": {"minReplicas": 3, "maxReplicas": 2}},
        "spec.rollout.autoscaling.minReplicas is 3",
        {"rollout.autoscaling": {"minReplicas": 2, "maxReplicas": 2}},
    ),
    "DeepSpeed key that we set": Row(
        {"trainer.deepspeed.extra": {"gradient_clipping": 1}},
        "spec.trainer.deepspeed.extra.gradient_clipping is 1",
        {"trainer.deepspeed.extra": {"wall_clock_breakdown": True}},
    ),
    "engine key that we set": Row(
        {"rollout.engine.extraArgs": {"max_model_len": 9}},
        "spec.rollout.engine.extraArgs.max_model_len is 9",
        {"rollout.engine.extraArgs": {"block_size": 32}},
    ),
    "parameters offloaded without sharding": Row(
        {"trainer.deepspeed.offloadParameters": True},
        "spec.trainer.deepspeed.offloadParameters is true",
        {"trainer.deepspeed": {"offloadParameters": True, "zeroStage": 3}},
    ),
    "persistent without a place for checkpoints": Row(
        {"storage": {"type": "Persistent"}},
        "spec.storage.checkpoints is null",
        {"storage": {"type": "Persistent", "checkpoints": {"claimName": "mine"}}},
    ),
    "volumes of a job that has none": Row(
        {"storage": {"type": "Ephemeral", "checkpoints": {"size": "10Gi"}}},
        "spec.storage.type is 'Ephemeral', but checkpoints would not be read",
        {"storage": {"type": "Persistent", "checkpoints": {"size": "10Gi"}}},
    ),
    "volumes without a word on what they are for": Row(
        {"storage": {"state": {}, "checkpoints": {"size": "10Gi"}}},
        "spec.storage.type is null, but state and checkpoints would not be read",
        {"storage": {"type": "Persistent", "state": {}, "checkpoints": {"size": "10Gi"}}},
    ),
    "checkpoints in a store and on a claim": Row(
        {"storage": {"type": "Persistent", "checkpoints": {"uri": "s3://runs/mine", "size": "10Gi"}}},
        "spec.storage.checkpoints.uri is 's3://runs/mine', but size would name a claim",
        {"trainer.nodes": 2, "storage": {"type": "Persistent", "checkpoints": {"uri": "s3://runs/mine"}}},
    ),
    "checkpoints on a claim without name and size": Row(
        {"storage": {"type": "Persistent", "checkpoints": {"accessMode": "ReadWriteMany"}}},
        "spec.storage.checkpoints.uri is null, but name an existing claim",
        {"storage": {"type": "Persistent", "checkpoints": {"size": "10Gi", "accessMode": "ReadWriteMany"}}},
    ),
    "size of a claim that exists": Row(
        {"storage": {"type": "Persistent", "checkpoints": {"claimName": "mine", "size": "10Gi"}}},
        "spec.storage.checkpoints.size is '10Gi', but claimName is 'mine'",
        {"storage": {"type": "Persistent", "checkpoints": {"claimName": "mine", "accessMode": "ReadWriteMany"}}},
    ),
    "class of a claim that exists": Row(
        {"storage": {**CHECKPOINTS, "state": {"claimName": "ledger", "storageClassName": "fast"}}},
        "spec.storage.state.storageClassName is 'fast', but claimName is 'ledger'",
        {"storage": {**CHECKPOINTS, "state": {"size": "5Gi", "storageClassName": "fast", "retention": "Delete"}}},
    ),
    "checkpoints of two nodes on a volume of one": Row(
        {
            "trainer.nodes": 2,
            "storage": {"type": "Persistent", "checkpoints": {"claimName": "mine", "accessMode": "ReadWriteOnce"}},
        },
        "spec.storage.checkpoints.accessMode is 'ReadWriteOnce', but trainer.nodes is 2",
        {"trainer.nodes": 2, "storage": {"type": "Persistent", "checkpoints": {"claimName": "mine"}}},
    ),
    "checkpoints of two nodes on a volume of one pod": Row(
        {
            "trainer.nodes": 2,
            "storage": {"type": "Persistent", "checkpoints": {"size": "1Gi", "accessMode": "ReadWriteOncePod"}},
        },
        "spec.storage.checkpoints.accessMode is 'ReadWriteOncePod', but trainer.nodes is 2",
        {"storage": {"type": "Persistent", "checkpoints": {"size": "1Gi", "accessMode": "ReadWriteOncePod"}}},
    ),
    "a model at an address that is no object store's": Row(
        {"model": {"name": "https://example.com/mine"}},
        "spec.model.name is 'https://example.com/mine', but an address must be s3://bucket/prefix",
        {"model": {"name": "s3://models/mine"}},
    ),
    "a revision of a model in an object store": Row(
        {"model": {"name": "s3://models/mine", "revision": "main"}},
        "spec.model.revision is 'main', but model.name is 's3://models/mine', which has no revisions",
        {"model": {"name": "s3://models/mine"}},
    ),
    "a source of a built-in model": Row(
        {"model": {"name": "builtin:smollm2-135m-instruct", "source": {"secretName": "hub"}}},
        'spec.model.source is {"secretName": "hub"}',
        {"model": {"name": "org/model", "source": {"secretName": "hub"}}},
    ),
    "a source that says nothing": Row(
        {"model": {"name": "org/model", "source": {}}},
        "spec.model.source is {}",
        {"model": {"name": "org/model", "source": {"path": "/models/m"}}},
    ),
    "a revision of a folder": Row(
        {"model": {"name": "m", "revision": "main", "source": {"claimName": "models"}}},
        "spec.model.revision is 'main'",
        {"model": {"name": "org/m", "revision": "main", "source": {"secretName": "hub"}}},
    ),
    "a folder outside of the claim": Row(
        {"model": {"name": "m", "source": {"claimName": "models", "path": "a/../../b"}}},
        "spec.model.source.path is 'a/../../b'",
        {"model": {"name": "m", "source": {"claimName": "models", "path": "a/b"}}},
    ),
    "fork from a job and a place": Row(
        {"resumeFrom": {"job": "a", "uri": "/b"}}, "spec.resumeFrom is", {"resumeFrom": {"job": "a"}}
    ),
    "option that a tracker does not have": Row(
        {TRACKERS: [{"name": "a", "type": "tensorboard", "config": {"path": "/x"}}]},
        "spec.observability.trackers[0].config.path is '/x', but tensorboard has no such option; it has folder",
        {TRACKERS: [{"name": "a", "type": "tensorboard", "config": {"folder": "/x"}}]},
    ),
    "key of a tracker's service": Row(
        {TRACKERS: [{"name": "a", "type": "wandb", "config": {"apiKey": "0123456789abcdef"}}]},
        "spec.observability.trackers[0].config.apiKey is '***', but a manifest holds no keys: set WANDB_API_KEY in"
        " spec.coordinator.pod.env, from a Secret",
        {TRACKERS: [{"name": "a", "type": "wandb", "config": {"project": "arithmetic", "tags": ["a", "b"]}}]},
    ),
    "key in the address of a tracker's server": Row(
        {
            TRACKERS: [
                {"name": "a", "type": "mlflow", "config": {"trackingUri": "https://me:a-key@tracking.example.com"}}
            ]
        },
        "spec.observability.trackers[0].config.trackingUri is '***', but a manifest holds no keys: set"
        " MLFLOW_TRACKING_TOKEN, MLFLOW_TRACKING_USERNAME, MLFLOW_TRACKING_PASSWORD in",
        {TRACKERS: [{"name": "a", "type": "mlflow", "config": {"trackingUri": "https://tracking.example.com/mlflow"}}]},
    ),
    "token in the address that Trackio prints": Row(
        {TRACKERS: [{"name": "a", "type": "trackio", "config": {"serverUrl": "http://h:7860/?write_token=abc"}}]},
        "spec.observability.trackers[0].config.serverUrl is '***', but a manifest holds no keys",
        {TRACKERS: [{"name": "a", "type": "trackio", "config": {"serverUrl": "http://h:7860/"}}]},
    ),
    "store of MLflow that its package has not": Row(
        {TRACKERS: [{"name": "a", "type": "mlflow", "config": {"trackingUri": "sqlite:///runs.db"}}]},
        "spec.observability.trackers[0].config.trackingUri is 'sqlite:///runs.db', but must be http(s)://host",
        {TRACKERS: [{"name": "a", "type": "mlflow", "config": {"trackingUri": "/runs/mlflow"}}]},
    ),
    "project of W&B with a slash": Row(
        {TRACKERS: [{"name": "a", "type": "wandb", "config": {"project": "team/arithmetic"}}]},
        "spec.observability.trackers[0].config.project is 'team/arithmetic', but must have 1 to 128 characters",
        {TRACKERS: [{"name": "a", "type": "wandb", "config": {"entity": "team", "mode": "Offline"}}]},
    ),
    "Trackio in two places": Row(
        {TRACKERS: [{"name": "a", "type": "trackio", "config": {"spaceId": "o/s", "serverUrl": "http://h"}}]},
        'spec.observability.trackers[0].config is {"spaceId": "o/s", "serverUrl": "http://h"}, but spaceId and',
        {TRACKERS: [{"name": "a", "type": "trackio", "config": {"spaceId": "o/s"}}]},
    ),
    "trackers of one name": Row(
        {TRACKERS: [{"name": "a", "type": "tensorboard"}, {"name": "a", "type": "plugin:mine"}]},
        "spec.observability.trackers is 'a', but that name occurs 2 times",
        {TRACKERS: [{"name": "a", "type": "tensorboard"}, {"name": "b", "type": "tensorboard"}]},
    ),
    "fork from nowhere": Row({"resumeFrom": {"step": 3}}, "spec.resumeFrom is", {"resumeFrom": {"uri": "/b"}}),
    "fork from an object store": Row(
        {"resumeFrom": {"uri": "s3://bucket/run"}},
        "spec.resumeFrom.uri is 's3://bucket/run'",
        {"resumeFrom": {"uri": "file:///runs/a"}},
    ),
    "RuntimeClass without a name": Row(
        {"verifier.isolation": {"type": "RuntimeClass"}},
        "spec.verifier.isolation.runtimeClassName is null, but",
        {"verifier.isolation": {"type": "RuntimeClass", "runtimeClassName": "gvisor"}},
    ),
    "name of a RuntimeClass without its type": Row(
        {"verifier.isolation": {"runtimeClassName": "gvisor"}},
        "spec.verifier.isolation.runtimeClassName is 'gvisor'",
        {"verifier.isolation": {"type": "Sandbox"}},
    ),
    "accelerator of a verifier": Row(
        {"verifier.pod.resources.limits": {"nvidia.com/gpu": "1"}},
        "spec.verifier.pod.resources.limits is 'nvidia.com/gpu'",
        {"verifier.pod.resources.limits": {"cpu": "2", "memory": "1Gi"}},
    ),
    "device of a verifier by a claim": Row(
        {"verifier.pod.resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "one"}]},
        "spec.verifier.pod.resourceClaims is 'gpu'",
        {"rollout.pod.resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "one"}]},
    ),
    "GPU of a coordinator": Row(
        {"coordinator.pod.resources.limits": {"nvidia.com/gpu": "1"}},
        "spec.coordinator.pod.resources.limits.nvidia.com/gpu is 1, but a coordinator computes on no GPU: leave it out",
        {"coordinator.pod.resources.limits": {"memory": "1Gi"}},
    ),
    "fewer GPUs than tensor parallelism takes": Row(
        {"rollout.engine.tensorParallelSize": 4, "rollout.pod.resources.limits": {"nvidia.com/gpu": "2"}},
        "spec.rollout.pod.resources.limits.nvidia.com/gpu is 2, but engine.tensorParallelSize 4 needs 4 GPUs in each"
        " pod: write 4, or leave it out",
        {"rollout.engine.tensorParallelSize": 4, "rollout.pod.resources.limits": {"nvidia.com/gpu": "4"}},
    ),
    "fewer GPUs than the stages of a pipeline take": Row(
        {
            "rollout.engine": {"tensorParallelSize": 2, "extraArgs": {"pipeline_parallel_size": 2}},
            "rollout.pod.resources.limits": {"nvidia.com/gpu": "2"},
        },
        "spec.rollout.pod.resources.limits.nvidia.com/gpu is 2, but engine.tensorParallelSize 2 with"
        " engine.extraArgs.pipeline_parallel_size 2 needs 4 GPUs",
        {
            "rollout.engine": {"tensorParallelSize": 2, "extraArgs": {"pipeline_parallel_size": 2}},
            "rollout.pod.resources.limits": {"nvidia.com/gpu": "4"},
        },
    ),
    "fewer GPUs than trainer processes": Row(
        {"trainer.processesPerNode": 2, "trainer.pod.resources.limits": {"nvidia.com/gpu": "1"}},
        "spec.trainer.pod.resources.limits.nvidia.com/gpu is 1, but processesPerNode 2 needs 2 GPUs in each pod",
        {"trainer.processesPerNode": 2, "trainer.pod.resources.limits": {"nvidia.com/gpu": "2"}},
    ),
    "GPUs requested without a limit": Row(
        {"trainer.pod.resources.requests": {"nvidia.com/gpu": "1"}},
        "spec.trainer.pod.resources.requests.nvidia.com/gpu is '1', but limits has none: write the number in limits",
        {"trainer.pod.resources": {"requests": {"nvidia.com/gpu": "1"}, "limits": {"nvidia.com/gpu": "1"}}},
    ),
    "half a GPU": Row(
        {"trainer.pod.resources.limits": {"nvidia.com/gpu": "500m"}},
        "spec.trainer.pod.resources.limits.nvidia.com/gpu is '500m', but it must be a whole number",
        {"trainer.pod.resources.limits": {"nvidia.com/gpu.shared": "1"}},
    ),
    "two partitions of a GPU": Row(
        {"rollout.engine.tensorParallelSize": 2, "rollout.pod.resources.limits": {"nvidia.com/mig-3g.40gb": "2"}},
        "spec.rollout.pod.resources.limits.nvidia.com/mig-3g.40gb is 2, but a process sees one MIG partition alone",
        {"rollout.pod.resources.limits": {"nvidia.com/mig-3g.40gb": "1"}},
    ),
    "GPUs of a job for processors": Row(
        {"device": "cpu", "trainer.pod.resources.limits": {"nvidia.com/gpu": "1"}},
        "spec.device is 'cpu', but trainer.pod.resources.limits.nvidia.com/gpu asks for GPUs: leave those out, or use",
        {"device": "cuda", "trainer.pod.resources.limits": {"nvidia.com/gpu": "1"}},
    ),
    "claim without a source": Row(
        {"trainer.pod.resourceClaims": [{"name": "gpu"}]},
        "spec.trainer.pod.resourceClaims[0].name is 'gpu', but write one of resourceClaimName and",
        {"trainer.pod.resourceClaims": [{"name": "gpu", "resourceClaimName": "shared"}]},
    ),
    "Secret in a verifier's variable": Row(
        {"verifier.pod.env": [{"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]},
        "spec.verifier.pod.env is 'TOKEN'",
        {"verifier.pod.env": [{"name": "TZ", "value": "UTC"}]},
    ),
    "Secret as a verifier's variables": Row(
        {"verifier.pod.envFrom": [{"secretRef": {"name": "s"}}]},
        "spec.verifier.pod.envFrom is 's'",
        {"verifier.pod.envFrom": [{"configMapRef": {"name": "c"}}]},
    ),
    "Secret among a verifier's volumes": Row(
        {"verifier.pod.volumes": [{"name": "s", "secret": {"secretName": "prod-db"}}]},
        "spec.verifier.pod.volumes is 's'",
        {"verifier.pod.volumes": [{"name": "c", "configMap": {"name": "c"}}]},
    ),
    "source without a share": Row(
        {"data.train.0.weight": "0"}, "spec.data.train[0].weight is '0'", {"data.train.0.weight": "0.5"}
    ),
    "suite in two places": Row(
        {"evaluation.suites": [{"name": "s", "path": "s.jsonl", "hub": "org/set"}]},
        "spec.evaluation.suites[0] is 's'",
        {"evaluation.suites": [{"name": "s", "hub": "org/set"}]},
    ),
    "negative value coefficient": Row(
        {**GAE_PPO, "algorithm.critic": {"vfCoef": "-1"}}, "spec.algorithm.critic.vfCoef is '-1'", GAE_PPO
    ),
    "more than all of a GPU": Row(
        {"rollout.engine.gpuMemoryUtilization": "1.5"},
        "spec.rollout.engine.gpuMemoryUtilization is '1.5'",
        {"rollout.engine.gpuMemoryUtilization": "0.9"},
    ),
    "second filter without bounds": Row(
        {CORRECTION: {"reject": {"metric": "K1"}}},
        f"spec.{CORRECTION}.reject is",
        {CORRECTION: {"reject": {"metric": "K1", "high": "1"}}},
    ),
    "second filter of tokens with an aggregate": Row(
        {CORRECTION: {"reject": {"agg": "Mean", "high": "2"}}},
        f"spec.{CORRECTION}.reject.agg is 'Mean'",
        {CORRECTION: {"reject": {"level": "Sequence", "agg": "Mean", "high": "2"}}},
    ),
    "negative bound on rewards": Row(
        {"algorithm.rewards.clip": "-1"}, "spec.algorithm.rewards.clip is '-1'", {"algorithm.rewards.clip": "1"}
    ),
    "comparison of answers without a second one": Row(
        {"algorithm.groupSize": 1, "verifier.rewards": [JUDGED | {"config": {**URL, "form": "pairwise"}}]},
        "spec.verifier.rewards[0].config.form is 'pairwise'",
        {"algorithm.groupSize": 4, "verifier.rewards": [JUDGED | {"config": {**URL, "form": "pairwise"}}]},
    ),
    "two keys in one variable": Row(
        {"verifier.rewards": [keyed("open-ai"), keyed("open.ai")]},
        "spec.verifier.rewards[1].config.apiKey is 'open.ai'",
        {"verifier.rewards": [keyed("open-ai"), keyed("openai")]},
    ),
    "user code without a type that names it": Row(
        {"workflow.code": {"path": "mine.py"}},
        "spec.workflow.code.path is 'mine.py'",
        {"workflow.code": {"path": "mine.py"}, "workflow.type": "mine:Game"},
    ),
}


@pytest.mark.covers("algorithms 12", "algorithms 12.13", "security", "workflows 4", "workflows 5.3")
@pytest.mark.parametrize("case", TABLE)
def test_setting_is_refused(case: str, make_job: MakeJob) -> None:
    row = TABLE[case]
    sentences = rules.problems(make_job(row.refused).spec)
    assert len([sentence for sentence in sentences if sentence.startswith(row.blamed)]) == 1, sentences


@pytest.mark.covers("algorithms 12")
@pytest.mark.parametrize("case", TABLE)
def test_neighbouring_setting_is_accepted(case: str, make_job: MakeJob) -> None:
    assert rules.problems(make_job(TABLE[case].accepted).spec) == []


def test_every_rule_has_a_case(make_job: MakeJob) -> None:
    jobs = [make_job(row.refused) for row in TABLE.values()]
    assert {name for job in jobs for name, _ in rules.broken(job.spec)} >= set(rules.names_of_all())


def test_manifest_of_defaults_breaks_no_rule(make_job: MakeJob) -> None:
    assert rules.problems(make_job().spec) == []
    assert rules.warnings(make_job().spec) == []


WARNED: dict[str, tuple[Mapping[str, object], str]] = {
    "teacher that is the policy": (
        {"model.name": "./small", "teacher": {"model": "./small"}},
        "spec.teacher.model is './small', but it is the model that is trained",
    ),
    "turns that share a baseline": (LEGACY, "spec.workflow.config.layout is 'legacy'"),
    "turns whose tokens share a baseline": (
        {
            **LEGACY,
            "algorithm.advantageEstimator": "reinforcepp",
            "algorithm.normalizeAdvantage": {"mean": "Group", "std": "Batch"},
        },
        "spec.workflow.config.layout is 'legacy'",
    ),
    "feedback as a conversation of its own": (
        {
            **TURNS,
            "workflow.config": {"layout": "legacy", "legacyFeedback": True},
            "algorithm.advantageEstimator": "reinforcepp",
        },
        "spec.workflow.config.legacyFeedback is 'true'",
    ),
    "GPUs that no process uses": (
        {"rollout.pod.resources.limits": {"nvidia.com/gpu": "8"}},
        "spec.rollout.pod.resources.limits.nvidia.com/gpu is 8, but rollout.engine.tensorParallelSize uses 1",
    ),
    "uncapped weight of old samples": (
        {"async.maxOffPolicySteps": 2, CORRECTION: {"mode": "None"}},
        "spec.algorithm.loss.rolloutCorrection.mode is 'None', but samples may be 2 steps old",
    ),
    "product over long answers": (
        {"rollout.sampling.maxTokens": 1025, CORRECTION: {"level": "Sequence", "agg": "Sum"}},
        "spec.algorithm.loss.rolloutCorrection.agg is 'Sum'",
    ),
    "wide gspo band": ({f"{LOSS}.type": "gspo"}, "spec.algorithm.loss.clipLow is '0.2'"),
    "weights rounded between trainer and rollout": (
        {"trainer.dtype": "float32"},
        "spec.trainer.dtype is 'float32', but versions are published in spec.model.dtype bfloat16",
    ),
    "weights rounded by the engine": (
        {"trainer.dtype": "float32", "model.dtype": "float32", "rollout.engine.dtype": "bfloat16"},
        "spec.rollout.engine.dtype is 'bfloat16', but the engine rounds the float32 weights",
    ),
    "weights published finer than they are": (
        {"model.dtype": "float32"},
        "spec.model.dtype is 'float32', but the weights of a trainer in bfloat16 are published",
    ),
    "a clip band that is centred on the policy itself": (
        {f"{LOSS}.clipHigh": "0.28", f"{LOSS}.proximal": "Recompute"},
        "spec.algorithm.loss.clipHigh is '0.28', but a step makes one update from proximal Recompute",
    ),
    "programs that nothing confines": (
        {"verifier.rewards.0.type": "code", "verifier.isolation": {"type": "None"}, "verifier.allowUnsafe": True},
        "spec.verifier.isolation.type is 'None', but reward",
    ),
    "groups that may be larger than a message": (
        {
            "algorithm.groupSize": 64,
            "rollout.sampling.maxTokens": 90_000,
            "trainer.maxTokensPerMicroBatch": 100_000,
        },
        "spec.algorithm.groupSize is 64, but groups of rows of up to",
    ),
    "r1 prompt with a boxed grader": (
        {"data.template": "r1", "verifier.rewards.0.type": "boxed"},
        "spec.data.template is 'r1'",
    ),
}


@pytest.mark.covers("algorithms 12", "workflows 5.2", "workflows 8.1")
@pytest.mark.parametrize("case", WARNED)
def test_doubtful_setting_is_warned_of_and_not_refused(case: str, make_job: MakeJob) -> None:
    changes, begin = WARNED[case]
    spec = make_job(changes).spec
    (sentence,) = rules.warnings(spec)
    assert sentence.startswith(begin)
    assert rules.problems(spec) == []


ONE_MACHINE: dict[str, tuple[Mapping[str, object], str]] = {
    "autoscaling": (
        {"rollout.autoscaling": {"maxReplicas": 2}},
        "spec.rollout.autoscaling.provider is 'HPA', but on one machine the replicas stay",
    ),
    "a RuntimeClass": (
        {"verifier.isolation": {"type": "RuntimeClass", "runtimeClassName": "gvisor"}},
        "spec.verifier.isolation.runtimeClassName is 'gvisor', but it is for pods alone: rljob run refuses it",
    ),
}


@pytest.mark.parametrize("case", ONE_MACHINE)
def test_what_is_for_clusters_alone_is_warned_of_on_one_machine_and_not_in_a_cluster(
    case: str, make_job: MakeJob
) -> None:
    changes, begin = ONE_MACHINE[case]
    job = make_job(changes)
    assert rules.warnings(job.spec) == []
    (sentence,) = resolve.warnings(job)
    assert sentence.startswith(begin)


@pytest.mark.parametrize(
    ("changes", "without_effect"),
    [
        pytest.param({}, [], id="nothing is written"),
        pytest.param({"clipLow": "0.2", "clipHigh": "0.3"}, [], id="samples may be old, so the band is around theirs"),
        pytest.param(
            {"clipLow": "0.2", "clipHigh": "0.3", "proximal": "Recompute"}, ["clipLow", "clipHigh"], id="one update"
        ),
        pytest.param({"clipLow": "0.2", "proximal": "Reuse"}, ["clipLow"], id="the forward itself is the centre"),
        pytest.param({"dualClip": "3", "proximal": "Recompute"}, ["dualClip"], id="the cap on negative advantages"),
        pytest.param({"type": "gspo", "clipLow": "3e-4"}, ["clipLow"], id="ratios of sequences"),
        pytest.param({"type": "cispo", "clipHigh": "4"}, ["clipHigh"], id="a clipped weight"),
        pytest.param({"type": "sapo", "tauPos": "2"}, ["tauPos"], id="a smooth band"),
        pytest.param({"clipLow": "0.2", "proximal": "Behavior"}, [], id="a band around the policy that sampled"),
        pytest.param({"clipLow": "0.2", "proximal": "LogLinear"}, [], id="a centre between the two"),
    ],
)
def test_a_band_without_effect_is_named_with_what_gives_it_one(
    changes: Mapping[str, object], without_effect: list[str], make_job: MakeJob
) -> None:
    loss = {f"{LOSS}.{key}": value for key, value in changes.items()}
    sentences = list(rules.band_without_effect(make_job(loss).spec))
    assert [sentence.split(" is ")[0] for sentence in sentences] == [f"spec.{LOSS}.{key}" for key in without_effect]
    assert all("algorithm.minibatches" in sentence and "proximal Behavior" in sentence for sentence in sentences)


@pytest.mark.parametrize("more", ["minibatches", "epochs"])
def test_a_second_update_gives_a_band_its_effect(more: str, make_job: MakeJob) -> None:
    spec = make_job({f"{LOSS}.clipLow": "0.2", f"algorithm.{more}": 2}).spec
    assert list(rules.band_without_effect(spec)) == []


FORMATS = ("bfloat16", "float16", "float32")


@pytest.mark.parametrize("model", FORMATS)
@pytest.mark.parametrize("trainer", ["bfloat16", "float32"])
@pytest.mark.parametrize("engine", [None, *FORMATS])
def test_every_combination_of_number_formats_serves_what_is_trained_or_is_warned_of(
    model: str, trainer: str, engine: str | None, make_job: MakeJob
) -> None:
    """What a rollout samples from has passed the wire and the engine; bfloat16 weights pass any of the three whole."""
    changes = {"model.dtype": model, "trainer.dtype": trainer}
    spec = make_job(changes | ({"rollout.engine.dtype": engine} if engine else {})).spec
    assert rules.problems(spec) == []
    served = [model, engine or model]
    rounded = trainer == "float32" and served != ["float32", "float32"]
    wasteful = trainer == "bfloat16" and model == "float32"
    told = [sentence.split(" is ")[0] for sentence in rules.warnings(spec)]
    at = "spec.trainer.dtype" if model != "float32" else "spec.rollout.engine.dtype"
    assert told == [at] * rounded + ["spec.model.dtype"] * wasteful


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, "spec.storage.type is null, but say where ledger, checkpoints and model go: type Persistent"),
        (
            {"storage": {"type": "Ephemeral"}, "weightSync.transport": "file"},
            "spec.weightSync.transport is 'file', but trainer, rollouts and coordinator must mount one volume",
        ),
        (
            {
                "storage": {"type": "Persistent", "checkpoints": {"size": "1Gi", "accessMode": "ReadWriteOnce"}},
                "weightSync.transport": "file",
            },
            "spec.weightSync.transport is 'file', but trainer, rollouts and coordinator must mount one volume",
        ),
        (
            {
                "storage": {"type": "Persistent", "checkpoints": {"uri": "s3://runs"}},
                "weightSync.transport": "file",
            },
            "spec.weightSync.transport is 'file', but trainer, rollouts and coordinator must mount one volume",
        ),
        (
            {"storage": {"type": "Ephemeral"}, "resumeFrom": {"job": "old"}},
            "not supported yet: spec.resumeFrom.job = 'old' in a cluster",
        ),
    ],
)
def test_what_runs_on_one_machine_and_in_no_cluster_is_told_to_a_cluster_alone(
    make_job: MakeJob, changes: Mapping[str, object], said: str
) -> None:
    spec = make_job(changes).spec
    assert rules.problems(spec) == []
    (found,) = rules.cluster_problems(spec)
    assert found.startswith(said)


@pytest.mark.parametrize(
    "changes",
    [
        {"storage": {"type": "Ephemeral"}},
        {"storage": CHECKPOINTS},
        {"storage": CHECKPOINTS, "weightSync.transport": "file"},
        {"storage": {"type": "Persistent", "checkpoints": {"uri": "gs://runs"}}, "trainer.nodes": 4},
        {"storage": CHECKPOINTS, "resumeFrom": {"uri": "file:///var/lib/rljob/u-0/checkpoints", "step": 3}},
    ],
)
def test_a_cluster_takes_what_says_where_its_state_goes(make_job: MakeJob, changes: Mapping[str, object]) -> None:
    spec = make_job(changes).spec
    assert [*rules.problems(spec), *rules.cluster_problems(spec)] == []


@pytest.mark.parametrize(
    ("changes", "mode"),
    [
        ({}, "ReadWriteOnce"),
        ({"trainer.nodes": 2}, "ReadWriteMany"),
        ({"weightSync.transport": "file"}, "ReadWriteMany"),
    ],
)
def test_checkpoints_are_for_as_many_nodes_as_write_them(
    make_job: MakeJob, changes: Mapping[str, object], mode: str
) -> None:
    claim = make_job({"storage": CHECKPOINTS, **changes}).spec.storage.checkpoint_claim
    assert claim is not None
    assert claim.access_mode == mode
    assert not claim.is_written("access_mode")
