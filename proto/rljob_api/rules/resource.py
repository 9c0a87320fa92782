"""Rules of the resource itself: ranges of decimals, unique names, and settings that exclude each other."""

import itertools
from collections import Counter
from collections.abc import Iterator

from pydantic import BaseModel

from rljob_api import fields, suites
from rljob_api.manifest.base import number
from rljob_api.manifest.job import JobSpec
from rljob_api.manifest.verifier import REPRODUCED_REWARDS, RUNTIME_CLASS, runtime_class
from rljob_api.messages import ignored, refuse
from rljob_api.resolution.common import BUILTIN

SHARES = (
    "failurePolicy.minStepBatchFraction",
    "failurePolicy.minGroupFraction",
    "failurePolicy.maxInfraFailureFraction",
    "evaluation.rolloutFraction",
    "rollout.engine.gpuMemoryUtilization",
    "rollout.autoscaling.trainerWaitTarget",
    "model.lora.dropout",
    "data.curriculum.maxFilterPercentage",
)
# Keys that the trainer or the rollout sets from other fields: saying them twice could only contradict.
DEEPSPEED_KEYS = {
    "train_batch_size": "spec.algorithm",
    "train_micro_batch_size_per_gpu": "spec.trainer.maxTokensPerMicroBatch",
    "gradient_accumulation_steps": "spec.trainer.maxTokensPerMicroBatch",
    "gradient_clipping": "spec.trainer.optimizer.maxGradNorm",
    "optimizer": "spec.trainer.optimizer",
    "scheduler": "spec.trainer.optimizer.schedule",
    "bf16": "spec.trainer.dtype",
    "fp16": "spec.trainer.dtype",
}
ENGINE_KEYS = {
    "model": "spec.model.name",
    "tokenizer": "spec.model.tokenizer",
    "dtype": "spec.rollout.engine.dtype",
    "max_model_len": "spec.rollout.engine.maxModelLen",
    "max_num_seqs": "spec.rollout.engine.maxNumSeqs",
    "tensor_parallel_size": "spec.rollout.engine.tensorParallelSize",
    "gpu_memory_utilization": "spec.rollout.engine.gpuMemoryUtilization",
    "enforce_eager": "spec.rollout.engine.enforceEager",
    "kv_cache_dtype": "spec.rollout.engine.kvCacheDtype",
    "seed": "spec.seed",
    "trust_remote_code": "spec.model.trustRemoteCode",
    "worker_extension_cls": "the rollout itself",
    "weight_transfer_config": "the rollout itself",
    "logprobs_mode": "the rollout itself",
}
VERIFIER_RESOURCES = ("cpu", "memory", "ephemeral-storage")
RESERVED_PREFIXES = ("rljob.dev/", "app.kubernetes.io/", "kueue.x-k8s.io/", "batch.kubernetes.io/")
ROLES = ("coordinator", "rollout", "verifier", "trainer")


def shares_in_range(spec: JobSpec) -> Iterator[str]:
    """Shares lie between 0 and 1."""
    for path, value in itertools.chain.from_iterable(fields.values_at(spec, path) for path in SHARES):
        if isinstance(value, str) and not 0 <= number(value) <= 1:
            yield refuse(path, value, "it is a share and must be from 0 to 1")


def optimizer_in_range(spec: JobSpec) -> Iterator[str]:
    """The optimizer's numbers make sense."""
    optimizer, path = spec.trainer.optimizer, "trainer.optimizer"
    for key, value in (
        ("learningRate", optimizer.learning_rate),
        ("maxGradNorm", optimizer.max_grad_norm),
        ("eps", optimizer.eps),
    ):
        if number(value) <= 0:
            yield refuse(f"{path}.{key}", value, "it must be above 0")
    if number(optimizer.weight_decay) < 0:
        yield refuse(f"{path}.weightDecay", optimizer.weight_decay, "it must not be negative")
    for index, beta in enumerate(optimizer.betas):
        if not 0 <= number(beta) < 1:
            yield refuse(f"{path}.betas[{index}]", beta, "it must be at least 0 and below 1")


def one_place_per_source(spec: JobSpec) -> Iterator[str]:
    """A source has exactly one of path, hub and reasoningGym, and a weight above 0."""
    for path, source in suites.sources(spec):
        places = {"path": source.path, "hub": source.hub, "reasoningGym": source.reasoning_gym}
        present = [key for key, value in places.items() if value is not None]
        if len(present) != 1:
            what = " and ".join(present) if present else "none of path, hub and reasoningGym"
            yield refuse(f"{path}", source.name, f"it has {what}: set exactly one of them")
    for index, train in enumerate(spec.data.train):
        if number(train.weight) <= 0:
            yield refuse(
                f"data.train[{index}].weight", train.weight, "it must be above 0: leave the source out instead"
            )


def names_are_unique(spec: JobSpec) -> Iterator[str]:
    """Lists that are keyed by a field have each key once."""
    yield from _duplicates(spec, "")


def _duplicates(model: BaseModel, prefix: str) -> Iterator[str]:
    for key, info in fields.fields_of(type(model)).items():
        value, path = getattr(model, fields.attribute(type(model), key)), f"{prefix}{key}"
        if isinstance(value, BaseModel):
            yield from _duplicates(value, f"{path}.")
        elif isinstance(value, tuple) and isinstance(info.json_schema_extra, dict):
            for index, item in enumerate(value):
                if isinstance(item, BaseModel):
                    yield from _duplicates(item, f"{path}[{index}].")
            for list_key in _list_keys(info.json_schema_extra.get("x-kubernetes-list-map-keys")):
                counts = Counter(getattr(item, fields.attribute(type(item), list_key)) for item in value)
                for name in (name for name, count in counts.items() if count > 1):
                    yield refuse(
                        path, name, f"that {list_key} stands {counts[name]} times and must be unique in the list"
                    )


def _list_keys(keys: object) -> list[str]:
    return [str(key) for key in keys] if isinstance(keys, list) else []


def filter_metric_exists(spec: JobSpec) -> Iterator[str]:
    """The group filter judges the sum or a reward that exists."""
    metric, names = spec.data.filter_groups.metric, [reward.name for reward in spec.verifier.rewards]
    if metric != "sum" and metric not in names:
        yield refuse("data.filterGroups.metric", metric, f"it must be sum or the name of a reward: {', '.join(names)}")


def compat_needs_an_original(spec: JobSpec) -> Iterator[str]:
    """Our own graders have nothing to be compatible with."""
    for path, _, reward in suites.rewards(spec):
        if reward.mode == "compat" and reward.type not in REPRODUCED_REWARDS:
            yield refuse(
                f"{path}.mode",
                "compat",
                f"reward type {reward.type} reproduces no other grader: use strict",
            )


def unsafe_isolation_is_admitted(spec: JobSpec) -> Iterator[str]:
    """No isolation needs to be said twice."""
    if spec.verifier.isolation == "none" and not spec.verifier.allow_unsafe:
        yield refuse(
            "verifier.isolation", "none", "allowUnsafe is false: set it to true to run graders without isolation"
        )


def one_runtime_class(spec: JobSpec) -> Iterator[str]:
    """The pods' RuntimeClass is the one that isolation asks for."""
    asked, written = runtime_class(spec.verifier.isolation), spec.verifier.pod.runtime_class_name
    if asked and written is not None and written != asked:
        yield refuse(
            "verifier.pod.runtimeClassName", written, f"verifier.isolation is {RUNTIME_CLASS}{asked}: leave it out"
        )


def replica_bounds(spec: JobSpec) -> Iterator[str]:
    """minReplicas <= maxReplicas."""
    scaling = spec.rollout.autoscaling
    if scaling is not None and scaling.min_replicas > scaling.max_replicas:
        yield refuse(
            "rollout.autoscaling.minReplicas", scaling.min_replicas, f"it is above maxReplicas {scaling.max_replicas}"
        )


def keys_that_we_set(spec: JobSpec) -> Iterator[str]:
    """Free-form options do not repeat what other fields say."""
    for path, config, owned in (
        ("trainer.deepspeed.extra", spec.trainer.deepspeed.extra, DEEPSPEED_KEYS),
        ("rollout.engine.extraArgs", spec.rollout.engine.extra_args, ENGINE_KEYS),
    ):
        for key in (key for key in config if key in owned):
            yield refuse(f"{path}.{key}", config[key], f"{owned[key]} sets it: leave it out")


def offload_needs_sharding(spec: JobSpec) -> Iterator[str]:
    """Offload is a feature of the sharded stages."""
    deepspeed = spec.trainer.deepspeed
    if deepspeed.offload_parameters and deepspeed.zero_stage != 3:
        yield refuse(
            "trainer.deepspeed.offloadParameters", True, f"zeroStage is {deepspeed.zero_stage}: only stage 3 can"
        )
    if deepspeed.offload_optimizer and deepspeed.zero_stage == 0:
        yield refuse("trainer.deepspeed.offloadOptimizer", True, "zeroStage is 0: stages 1 to 3 can")


def one_kind_of_storage(spec: JobSpec) -> Iterator[str]:
    """An existing claim, a new claim or an emptyDir."""
    storage = spec.storage
    new_claim = storage.size or storage.storage_class_name
    if storage.claim_name is not None and new_claim:
        yield refuse(
            "storage.claimName", storage.claim_name, "size and storageClassName are for a new claim: leave them out"
        )
    if storage.empty_dir and (storage.claim_name is not None or new_claim or storage.access_modes):
        yield refuse("storage.emptyDir", True, "a claim is set too: choose one")
    elif storage.size is None and storage.claim_name is None and (new_claim or storage.access_modes):
        yield refuse("storage.size", None, "a new claim needs a size")


def a_source_has_a_use(spec: JobSpec) -> Iterator[str]:
    """A source says where a model is that is neither in the package nor, with a folder, on a hub."""
    source, name = spec.model.source, spec.model.name
    if source is None:
        return
    if name.startswith(BUILTIN):
        yield ignored("model.source", source.model_dump(exclude_none=True, by_alias=True), f"model.name is '{name}'")
    elif source == type(source)():
        yield refuse("model.source", {}, "it says nothing: set claimName, path or secretName, or leave it out")
    has_folder = source.claim_name is not None or source.path is not None
    if has_folder and spec.model.revision is not None:
        yield ignored("model.revision", spec.model.revision, "model.source names a folder, which has no revisions")
    if source.claim_name is not None and _leaves(source.path or ""):
        yield refuse("model.source.path", source.path, "it leaves the claim: give a path below it, without ..")


def _leaves(path: str) -> bool:
    return path.startswith("/") or ".." in path.split("/")


def one_checkpoint_to_fork_from(spec: JobSpec) -> Iterator[str]:
    """A fork names a job or a place, and only folders are read."""
    fork = spec.resume_from
    if fork is None:
        return
    if (fork.job is None) == (fork.uri is None):
        what = "job and uri are both set" if fork.job else "neither job nor uri is set"
        yield refuse("resumeFrom", {"job": fork.job, "uri": fork.uri}, f"{what}: set exactly one of them")
    scheme, colon, _ = (fork.uri or "").partition("://")
    if colon and scheme != "file":
        yield refuse("resumeFrom.uri", fork.uri, "only folders are read: give a path or a file:// URI")


def issuer_and_tls(spec: JobSpec) -> Iterator[str]:
    """cert-manager needs an issuer, and nothing else reads one."""
    security = spec.security
    if security.tls == "certManager" and security.cert_manager_issuer is None:
        yield refuse("security.tls", "certManager", "certManagerIssuer is not set: name an Issuer or ClusterIssuer")
    if security.tls != "certManager" and security.cert_manager_issuer is not None:
        yield ignored("security.certManagerIssuer", security.cert_manager_issuer, f"tls is '{security.tls}'")


def reserved_labels(spec: JobSpec) -> Iterator[str]:
    """Users do not set labels that we or Kubernetes decide by."""
    for role, kind in itertools.product(ROLES, ("labels", "annotations")):
        for path, keys in fields.values_at(spec, f"{role}.pod.{kind}"):
            reserved = [key for key in keys if key.startswith(RESERVED_PREFIXES)] if isinstance(keys, dict) else []
            for key in reserved:
                prefix = key.split("/")[0]
                yield refuse(path, key, f"the prefix {prefix}/ is reserved: use one of your own")


def verifiers_are_confined(spec: JobSpec) -> Iterator[str]:
    """A verifier runs what a model wrote: it gets no accelerator, no Secret and no pod template of a user's."""
    pod, path = spec.verifier.pod, "verifier.pod"
    for kind, given in (("requests", pod.resources.requests), ("limits", pod.resources.limits)):
        for key in [key for key in given if key not in VERIFIER_RESOURCES]:
            yield refuse(
                f"{path}.resources.{kind}", key, f"verifiers get {', '.join(VERIFIER_RESOURCES)} and nothing else"
            )
    for variable in pod.env:
        if variable.value_from is not None and variable.value_from.secret_key_ref is not None:
            yield refuse(f"{path}.env", variable.name, "graded code could read a Secret: leave it out")
    for source in pod.env_from:
        if source.secret_ref is not None:
            yield refuse(f"{path}.envFrom", source.secret_ref.name, "graded code could read a Secret: leave it out")
    for volume in pod.volumes:
        if volume.secret is not None:
            yield refuse(
                f"{path}.volumes",
                volume.name,
                f"graded code could read Secret {volume.secret.secret_name}: leave it out",
            )
    if pod.pod_template_ref is not None:
        yield refuse(
            f"{path}.podTemplateRef", pod.pod_template_ref, "a template could loosen what confines graded code"
        )
