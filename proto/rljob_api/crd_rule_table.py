"""The CEL rules that speak of one state of the object; those that compare two states are in `crd_rules`."""

import dataclasses

from pydantic import JsonValue

from rljob_api.manifest.base import JOB_NAME_PATTERN
from rljob_api.manifest.job import MAX_JOB_NAME

INVALID = "FieldValueInvalid"
FORBIDDEN = "FieldValueForbidden"
REQUIRED = "FieldValueRequired"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CelRule:
    """One rule at the schema node `at` (path, "" for the root, [] for list items); `field` is relative to that node."""

    at: str
    rule: str
    message: str
    field: str = ""
    reason: str = INVALID
    values: str = ""

    def to_schema(self) -> dict[str, JsonValue]:
        """Return the entry of x-kubernetes-validations."""
        entry: dict[str, JsonValue] = {"rule": self.rule, "message": self.message, "reason": self.reason}
        if self.field:
            entry["fieldPath"] = f".{self.field}"
        if self.values:
            entry["messageExpression"] = self.values
        return entry


ROOT = (
    CelRule(
        at="",
        rule=f"size(self.metadata.name) <= {MAX_JOB_NAME} && self.metadata.name.matches('{JOB_NAME_PATTERN}')",
        message=f"metadata.name must be at most {MAX_JOB_NAME} lower-case letters, digits and dashes,"
        " beginning with a letter",
    ),
)

ACROSS_SECTIONS = (
    CelRule(
        at="spec",
        field="algorithm.promptsPerStep",
        rule="self.algorithm.promptsPerStep * self.algorithm.groupSize"
        " % (self.trainer.nodes * self.trainer.processesPerNode) == 0",
        message="promptsPerStep x groupSize must be divisible by trainer.nodes x processesPerNode",
        values="'promptsPerStep x groupSize = %d cannot be divided among %d trainer processes; change one of them'"
        ".format([self.algorithm.promptsPerStep * self.algorithm.groupSize,"
        " self.trainer.nodes * self.trainer.processesPerNode])",
    ),
    CelRule(
        at="spec",
        field="rollout.engine.maxModelLen",
        rule="!has(self.rollout.engine.maxModelLen) || self.data.train.all(s,"
        " s.maxPromptTokens + self.rollout.sampling.maxTokens <= self.rollout.engine.maxModelLen)",
        message="maxPromptTokens + rollout.sampling.maxTokens must fit maxModelLen: raise it, or lower one of them",
    ),
    CelRule(
        at="spec",
        field="trainer.maxTokensPerMicroBatch",
        rule="self.data.train.all(s, s.maxPromptTokens + self.rollout.sampling.maxTokens"
        " <= self.trainer.maxTokensPerMicroBatch)",
        message="maxTokensPerMicroBatch must hold the longest row, maxPromptTokens + rollout.sampling.maxTokens",
    ),
    CelRule(
        at="spec",
        field="weightSync.everySteps",
        rule="self.weightSync.everySteps <= self.async.maxOffPolicySteps + 1",
        message="everySteps must be at most async.maxOffPolicySteps + 1, or the bound cannot be met",
    ),
    CelRule(
        at="spec",
        field="weightSync.everySteps",
        rule="!has(self.async.onStale) || self.async.onStale != 'wait' || self.weightSync.everySteps == 1",
        message="async.onStale wait needs a version every step: use 1",
    ),
    CelRule(
        at="spec",
        field="async.maxInflightGroups",
        rule="!has(self.async.maxInflightGroups) || self.async.maxInflightGroups"
        " <= (self.async.maxOffPolicySteps + 1) * self.algorithm.promptsPerStep",
        message="maxInflightGroups must be at most (maxOffPolicySteps + 1) x promptsPerStep",
    ),
    CelRule(
        at="spec",
        field="data.filterGroups.enabled",
        reason=FORBIDDEN,
        rule="self.algorithm.groupSize > 1 || !has(self.data.filterGroups.enabled) || !self.data.filterGroups.enabled",
        message="a group of one has no spread and would always be rejected: use false, or a larger groupSize",
    ),
    CelRule(
        at="spec",
        field="model.reference",
        rule="(double(self.algorithm.loss.klCoef) > 0.0) == has(self.model.reference)",
        message="a reference model is needed exactly when algorithm.loss.klCoef is above 0",
    ),
    CelRule(
        at="spec",
        field="rollout.sampling.maxTokens",
        rule="!has(self.algorithm.rewards.overlong) || self.rollout.sampling.maxTokens"
        " > self.algorithm.rewards.overlong.maxTokens - self.algorithm.rewards.overlong.tailTokens",
        message="the overlong penalty would never act: lower algorithm.rewards.overlong.maxTokens",
    ),
    CelRule(
        at="spec",
        field="algorithm.gae.unit",
        reason=FORBIDDEN,
        rule="!has(self.algorithm.gae.unit) || self.algorithm.gae.unit != 'turn'"
        " || !(self.workflow.type in ['rlvr', 'math_code_single_step'])",
        message="this workflow has no turns: use token",
    ),
    CelRule(
        at="spec",
        field="maxSteps",
        reason=FORBIDDEN,
        rule="self.maxSteps >= oldSelf.maxSteps",
        message="maxSteps may only be raised; to end a run early, suspend or delete it",
    ),
    CelRule(
        at="spec.managedBy", rule="self == oldSelf", reason=FORBIDDEN, message="managedBy is immutable: make a new job"
    ),
)

ALGORITHM = (
    CelRule(
        at="spec.algorithm",
        field="minibatches",
        rule="self.promptsPerStep * self.groupSize >= self.minibatches",
        message="minibatches must be at most promptsPerStep x groupSize rows",
    ),
    CelRule(
        at="spec.algorithm",
        field="groupSize",
        rule="self.groupSize > 1 || (has(self.normalizeReward) ? self.normalizeReward.mean != 'group'"
        " : self.advantageEstimator in ['reinforcepp', 'ppo'])",
        message="the estimator compares samples within a group and needs groupSize of at least 2",
    ),
    CelRule(
        at="spec.algorithm",
        field="loss.proximal",
        reason=FORBIDDEN,
        rule="!has(self.loss.proximal) || self.loss.proximal != 'reuse' || self.minibatches * self.epochs == 1",
        message="reuse needs one minibatch and one epoch: use recompute",
    ),
    CelRule(
        at="spec.algorithm",
        field="critic",
        rule="(self.advantageEstimator == 'ppo') == has(self.critic)",
        message="a critic is needed by advantageEstimator ppo and ignored by every other one",
    ),
    CelRule(
        at="spec.algorithm",
        field="gae",
        reason=FORBIDDEN,
        rule="self.advantageEstimator == 'ppo' || (!has(self.gae.lambda) && !has(self.gae.bootstrapTruncated))",
        message="gae.lambda and gae.bootstrapTruncated are for advantageEstimator ppo: leave them out",
    ),
    CelRule(
        at="spec.algorithm",
        field="gae",
        reason=FORBIDDEN,
        rule="self.advantageEstimator in ['ppo', 'reinforcepp', 'reinforceppBaseline']"
        " || (!has(self.gae.gamma) && !has(self.gae.unit))",
        message="this estimator does not discount over time: leave gae.gamma and gae.unit out",
    ),
    CelRule(
        at="spec.algorithm",
        field="gae.bootstrapTruncated",
        reason=FORBIDDEN,
        rule="!self.zeroTruncated || !has(self.gae.bootstrapTruncated) || !self.gae.bootstrapTruncated",
        message="with zeroTruncated a cut answer cannot both end and go on: use false",
    ),
    CelRule(
        at="spec.algorithm.rewards.overlong",
        field="tailTokens",
        rule="self.tailTokens <= self.maxTokens",
        message="tailTokens must be at most maxTokens",
    ),
)

LOSS = (
    CelRule(
        at="spec.algorithm.loss",
        field="klEstimator",
        reason=FORBIDDEN,
        rule="!has(self.klEstimator) || self.klEstimator != 'k1'"
        " || (has(self.klPlacement) && self.klPlacement == 'reward')",
        message="k1 in the loss has zero expected gradient: use k3 or k2, or klPlacement reward",
    ),
    CelRule(
        at="spec.algorithm.loss",
        field="klCoef",
        rule="double(self.klCoef) > 0.0 || (!has(self.klEstimator) && !has(self.klPlacement))",
        message="klEstimator and klPlacement are ignored when klCoef is 0: leave them out",
    ),
    CelRule(
        at="spec.algorithm.loss",
        field="rolloutCorrection",
        reason=FORBIDDEN,
        rule="!has(self.proximal) || self.proximal != 'behaviour' || !has(self.rolloutCorrection)",
        message="with proximal behaviour the weight is always 1: leave rolloutCorrection out",
    ),
    CelRule(
        at="spec.algorithm.loss",
        field="constantDenominator",
        reason=FORBIDDEN,
        rule="!has(self.constantDenominator) || (has(self.aggregation) && self.aggregation == 'constant')",
        message="constantDenominator is for aggregation constant: leave it out",
    ),
    CelRule(
        at="spec.algorithm.loss",
        field="dualClip",
        rule="!has(self.dualClip) || double(self.dualClip) > 1.0",
        message='dualClip must be above 1: "3.0" is usual',
    ),
    CelRule(
        at="spec.algorithm.loss",
        field="clipLow",
        rule="!has(self.clipLow) || (double(self.clipLow) >= 0.0 && double(self.clipLow) <= 1.0)",
        message="clipLow must be from 0 to 1",
    ),
    CelRule(
        at="spec.algorithm.loss",
        field="clipHigh",
        rule="!has(self.clipHigh) || double(self.clipHigh) >= 0.0",
        message="clipHigh must not be negative",
    ),
    CelRule(
        at="spec.algorithm.loss",
        field="type",
        rule="self.type == 'sapo' || (!has(self.tauPos) && !has(self.tauNeg))",
        message="tauPos and tauNeg are for loss.type sapo: leave them out",
    ),
    CelRule(
        at="spec.algorithm.loss",
        field="type",
        rule="self.type == 'ppo' || (!has(self.dualClip) && !has(self.m2Threshold))",
        message="dualClip and m2Threshold are for loss.type ppo: leave them out",
    ),
    CelRule(
        at="spec.algorithm.loss",
        field="type",
        rule="!(self.type in ['sapo', 'reinforce']) || (!has(self.clipLow) && !has(self.clipHigh))",
        message="this loss.type has no clip band: leave clipLow and clipHigh out",
    ),
    CelRule(
        at="spec.algorithm.loss",
        field="clipHigh",
        reason=REQUIRED,
        rule="self.type != 'cispo' || (has(self.clipHigh) && double(self.clipHigh) > 0.0)",
        message='loss.type cispo needs clipHigh above 0: "4.0" is usual',
    ),
    CelRule(
        at="spec.algorithm.loss",
        field="aggregation",
        rule="self.type != 'gspo' || !has(self.aggregation) || self.aggregation == 'sequenceMean'",
        message="loss.type gspo averages over rows: use sequenceMean",
    ),
    CelRule(
        at="spec.algorithm.loss",
        field="proximal",
        reason=FORBIDDEN,
        rule="self.type != 'reinforce' || !has(self.proximal)",
        message="loss.type reinforce has no proximal policy: leave it out",
    ),
)

_CORRECTION = "spec.algorithm.loss.rolloutCorrection"
CORRECTION = (
    CelRule(
        at=_CORRECTION,
        field="mode",
        rule="self.mode != 'truncate'"
        " || (self.metric == 'ratio' && (!has(self.weighting) || self.weighting == 'ratio'))",
        message="mode truncate clamps the ratio as a weight: use metric ratio and weighting ratio, or mode mask",
    ),
    CelRule(
        at=_CORRECTION,
        field="mode",
        rule="self.mode != 'none' || (!has(self.low) && !has(self.high))",
        message="mode none has no bounds: leave low and high out",
    ),
    CelRule(
        at=_CORRECTION,
        field="mode",
        rule="self.mode != 'mask' || has(self.low) || has(self.high)",
        message="mode mask needs low or high",
    ),
    CelRule(
        at=_CORRECTION,
        field="agg",
        rule="(self.level == 'sequence') == has(self.agg)",
        message="agg is needed at level sequence and ignored at level token",
    ),
    CelRule(
        at=_CORRECTION,
        field="low",
        rule="!has(self.low) || !has(self.high) || double(self.low) <= double(self.high)",
        message="low must be at most high",
    ),
)


def _normalization(key: str) -> tuple[CelRule, ...]:
    at = f"spec.algorithm.{key}"
    return (
        CelRule(
            at=at,
            field="leaveOneOut",
            reason=FORBIDDEN,
            rule="!self.leaveOneOut || self.mean != 'none'",
            message="leaveOneOut is ignored with mean none: use false",
        ),
        CelRule(
            at=at,
            field="std",
            rule="self.std != 'none' || (!has(self.unbiased) && !has(self.eps) && !has(self.stdCenter))",
            message="unbiased, eps and stdCenter are ignored with std none: leave them out",
        ),
    )


def _source(at: str) -> CelRule:
    return CelRule(
        at=at,
        rule="(has(self.path) ? 1 : 0) + (has(self.hub) ? 1 : 0) + (has(self.reasoningGym) ? 1 : 0) == 1",
        message="set exactly one of path, hub and reasoningGym",
    )


SECTIONS = (
    *_normalization("normalizeReward"),
    *_normalization("normalizeAdvantage"),
    _source("spec.data.train[]"),
    _source("spec.evaluation.suites[]"),
    CelRule(
        at="spec.data.filterGroups",
        field="lower",
        rule="!has(self.lower) || !has(self.upper) || double(self.lower) <= double(self.upper)",
        message="lower must be at most upper, or no group would be accepted",
    ),
    CelRule(
        at="spec.async",
        field="maxOffPolicySteps",
        rule="self.maxOffPolicySteps > 0 || (!has(self.onStale)"
        " && (!has(self.inFlightWeightUpdates) || !self.inFlightWeightUpdates))",
        message="onStale and inFlightWeightUpdates are ignored when maxOffPolicySteps is 0: leave them out",
    ),
    CelRule(
        at="spec.rollout.sampling",
        rule="double(self.temperature) > 0.0 && double(self.topP) == 1.0 && (self.topK == 0 || self.topK >= 100000000)"
        " && double(self.minP) == 0.0",
        message="training needs log-probabilities of the sampled distribution:"
        " temperature above 0, topP 1, topK 0 and minP 0",
    ),
    CelRule(
        at="spec.rollout.sampling",
        field="minTokens",
        rule="self.minTokens <= self.maxTokens",
        message="minTokens must be at most maxTokens",
    ),
    CelRule(
        at="spec.rollout.autoscaling",
        field="minReplicas",
        rule="self.minReplicas <= self.maxReplicas",
        message="minReplicas must be at most maxReplicas",
    ),
    CelRule(
        at="spec.verifier",
        field="isolation",
        reason=FORBIDDEN,
        rule="self.isolation != 'none' || self.allowUnsafe",
        message="isolation none needs allowUnsafe: true",
    ),
    CelRule(
        at="spec.verifier",
        field="pod.runtimeClassName",
        rule="!self.isolation.startsWith('runtimeClass:') || !has(self.pod) || !has(self.pod.runtimeClassName)"
        " || self.isolation == 'runtimeClass:' + self.pod.runtimeClassName",
        message="pod.runtimeClassName must be the one of isolation: leave it out",
    ),
    CelRule(
        at="spec.trainer.optimizer",
        field="learningRate",
        rule="double(self.learningRate) > 0.0",
        message="learningRate must be above 0",
    ),
    CelRule(
        at="spec.trainer.deepspeed",
        field="offloadParameters",
        rule="!self.offloadParameters || self.zeroStage == 3",
        message="offloadParameters needs zeroStage 3",
    ),
    CelRule(
        at="spec.trainer.deepspeed",
        field="offloadOptimizer",
        rule="!self.offloadOptimizer || self.zeroStage > 0",
        message="offloadOptimizer needs zeroStage 1, 2 or 3",
    ),
    CelRule(
        at="spec.resumeFrom",
        rule="has(self.job) != has(self.uri)",
        message="a fork needs exactly one of job and uri",
    ),
    CelRule(
        at="spec.security",
        field="certManagerIssuer",
        rule="(self.tls == 'certManager') == has(self.certManagerIssuer)",
        message="certManagerIssuer is needed with tls certManager and ignored otherwise",
    ),
)

RULES = (*ROOT, *ACROSS_SECTIONS, *ALGORITHM, *LOSS, *CORRECTION, *SECTIONS)
