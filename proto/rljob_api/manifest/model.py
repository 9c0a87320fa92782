"""`spec.model`, `spec.teacher` and `spec.judge`: which model is trained, and which ones score what it samples."""

import math
import re
from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from rljob_api.manifest.base import (
    FORBIDDEN,
    FREE,
    INT32,
    OBJECT_URI_FORM,
    OBJECT_URI_PATTERN,
    SET,
    CelRule,
    Config,
    Decimal,
    Name,
    Path,
    Problem,
    Section,
    Text,
    is_object_uri,
    no_effect,
    rule,
)
from rljob_api.manifest.pod import PodSpec, ResourcesSpec, gpu_problems

BUILTIN = "builtin:"
ALL_LINEAR = "all-linear"
# Embeddings and output heads, by the names that models give them.
NO_TARGETS = ("lm_head", "embed_tokens", "wte")
Dtype = Literal["bfloat16", "float16", "float32"]


class ModelSourceSpec(Section):
    """Where the weights come from when not from a hub."""

    claim_name: Name | None = Field(
        default=None, description="PersistentVolumeClaim that holds the model folder; only read in a cluster."
    )
    path: Path | None = Field(
        default=None, description="Folder inside the claim. Without a claim, and on one machine, as spec.model.name."
    )
    secret_name: Name | None = Field(
        default=None,
        description="Secret whose keys become variables of rollouts and trainer, such as HF_TOKEN; only in a cluster.",
    )


class ReferenceSpec(Section):
    """The frozen policy that the KL term compares with."""

    name: Path = Field(description="Hub id, path or builtin name of the reference model.")
    revision: Text | None = Field(default=None, description="Hub revision of the reference model.")


class LoraSpec(Section):
    """A low-rank adapter (LoRA) is trained and the model's own weights stay as they are: W + alpha / rank x B A.

    Source: Hu et al. (arXiv:2106.09685). Dropout is no field: ratios compare two forwards of the same weights.
    """

    rank: int = Field(default=16, ge=1, le=512, description="Rank r of the adapter: A is [r, in], B is [out, r].")
    alpha: int = Field(
        default_factory=lambda fields: 2 * fields["rank"],
        ge=1,
        le=65536,
        description="The adapter's part is multiplied with alpha / rank. Default: twice the rank.",
    )
    targets: tuple[Text, ...] = Field(
        default=(ALL_LINEAR,),
        min_length=1,
        max_length=64,
        json_schema_extra=SET,
        description="Names of the linear layers that get an adapter, such as q_proj; all-linear: every one in the"
        " model's layers. Embeddings and the output head never have one.",
    )

    @rule(
        CelRule(
            field="targets",
            rule=f"self.targets.size() == 1 || !('{ALL_LINEAR}' in self.targets)",
            message="all-linear already names every layer: leave the others out, or it",
        ),
        CelRule(
            field="targets",
            rule="self.targets.all(t, !(t in ['lm_head', 'embed_tokens', 'wte']))",
            message="embeddings and the output head have no adapter: they are often one tensor; name linear layers",
        ),
    )
    def targets_are_linear_layers(self) -> Iterator[Problem]:
        if len(self.targets) > 1 and ALL_LINEAR in self.targets:
            because = f"{ALL_LINEAR} already names every layer: leave the others out, or it"
            yield "targets", list(self.targets), because
        for target in self.targets:
            if target in NO_TARGETS:
                because = (
                    f"{target} has no adapter: embeddings and the output head are often one tensor, and an engine has"
                    " no slot for theirs; name linear layers, or all-linear"
                )
                yield "targets", list(self.targets), because

    @rule()
    def targets_stand_once(self) -> Iterator[Problem]:
        if len(set(self.targets)) < len(self.targets):
            yield "targets", list(self.targets), "a layer is named twice: name each once"


def _address(field: str, *, unless: str = "") -> CelRule:
    """Return the rule that a text with :// in it names something in an object store."""
    is_address = f"!self.{field}.contains('://') || self.{field}.matches('{OBJECT_URI_PATTERN}')"
    return CelRule(
        field=field,
        rule=f"{unless} || {is_address}" if unless else is_address,
        message=f"an address must be {OBJECT_URI_FORM}",
    )


class ModelSpec(Section):
    """Which model is trained."""

    name: Path = Field(
        description="Hugging Face id, folder, builtin:smollm2-135m-instruct, or a folder of an object store, such as"
        " s3://bucket/model: keys come by the environment of rollouts and trainer."
    )
    revision: Text | None = Field(default=None, description="Hub revision: branch, tag or commit.")
    dtype: Dtype = Field(
        default="bfloat16",
        description="Number format of published and served weights, whatever the model's files hold.",
    )
    trust_remote_code: bool = Field(default=False, description="Run Python code that comes with the model.")
    tokenizer: Path = Field(
        default_factory=lambda fields: fields["name"], description="Tokenizer. Default: model.name."
    )
    source: ModelSourceSpec | None = Field(default=None, description="Where weights come from when not a hub.")
    reference: ReferenceSpec | None = Field(
        default=None,
        description="Reference model of the KL term; needed exactly when algorithm.loss.klCoef is above 0. With lora,"
        " unset: the model without its adapter, of which no second copy is loaded.",
    )
    lora: LoraSpec | None = Field(
        default=None,
        description="Train a low-rank adapter instead of all weights. Versions, checkpoints and optimizer state then"
        " hold the adapter alone.",
    )

    @rule(
        _address("name"),
        _address("tokenizer", unless="!has(self.tokenizer)"),
        _address("reference.name", unless="!has(self.reference)"),
        CelRule(
            field="source.path",
            rule="!has(self.source) || !has(self.source.path) || !self.source.path.contains('://')",
            message="it is a folder: an object store is named by model.name",
        ),
    )
    def addresses_are_of_object_stores(self) -> Iterator[Problem]:
        """What looks like a URI is no hub id and no folder; one with keys in it gets no further than this."""
        names = {
            "name": self.name,
            "tokenizer": self.tokenizer if self.is_written("tokenizer") else "",
            "reference.name": self.reference.name if self.reference else "",
        }
        for field, name in names.items():
            if "://" in name and not is_object_uri(name):
                yield field, name, f"an address must be {OBJECT_URI_FORM}"
        folder = (self.source.path if self.source else None) or ""
        if "://" in folder:
            yield "source.path", folder, "it is a folder: an object store is named by model.name"

    @rule(
        CelRule(
            field="revision",
            reason=FORBIDDEN,
            rule=f"!has(self.revision) || !self.name.matches('{OBJECT_URI_PATTERN}')",
            message="model.name is a folder of an object store, which has no revisions: leave revision out",
        ),
    )
    def objects_have_no_revisions(self) -> Iterator[Problem]:
        """Revisions are of a hub."""
        if self.revision is not None and is_object_uri(self.name):
            yield "revision", self.revision, no_effect(f"model.name is '{self.name}', which has no revisions")

    @rule()
    def source_has_a_use(self) -> Iterator[Problem]:
        """A source says where a model is that is neither in the package nor, with a folder, on a hub."""
        source = self.source
        if source is None:
            return
        if self.name.startswith(BUILTIN):
            written = source.model_dump(exclude_none=True, by_alias=True)
            yield "source", written, no_effect(f"model.name is '{self.name}'")
        elif source == ModelSourceSpec():
            yield "source", {}, "it is empty: set claimName, path or secretName, or leave it out"
        has_folder = source.claim_name is not None or source.path is not None
        if has_folder and self.revision is not None:
            yield "revision", self.revision, no_effect("model.source names a folder, which has no revisions")
        if source.claim_name is not None and _leaves(source.path or ""):
            yield "source.path", source.path, "it leaves the claim: give a path below it, without .."


def _leaves(path: str) -> bool:
    return path.startswith("/") or ".." in path.split("/")


def _misnamed(section: str, model: str, revision: str | None) -> Iterator[Problem]:
    """Yield what is wrong with the model and revision of a section that is loaded as it is named."""
    if "://" in model and not is_object_uri(model):
        yield "model", model, f"an address must be {OBJECT_URI_FORM}"
    if revision is not None and (is_object_uri(model) or model.startswith(BUILTIN)):
        yield "revision", revision, no_effect(f"{section}.model is '{model}', which has no revisions")


class TeacherSpec(Section):
    """On-policy distillation: a frozen model scores the tokens that the policy sampled, and the policy learns from the
    per-token reverse KL to it (docs/distillation.md).
    """

    model: Path = Field(
        description="Hub id, folder, builtin name or folder of an object store; with the policy's vocabulary."
    )
    revision: Text | None = Field(default=None, description="Hub revision of the teacher.")
    coef: Decimal = Field(
        default=Decimal("1"),
        description="Each token's advantage is this times log(teacher / policy).",
    )
    top_k: int | None = Field(
        default=None,
        ge=1,
        le=1024,
        description="Learn its K likeliest tokens in each place (forward KL); unset: the sampled one.",
    )
    task_reward: bool = Field(default=False, description="Learn the task's rewards too: advantages are added.")
    steps: int | None = Field(
        default=None, ge=1, le=INT32, description="How many first steps of RL it scores; all if unset."
    )

    @property
    def ignores_rewards(self) -> bool:
        """Whether no step of the run learns from the task's rewards."""
        return not self.task_reward and self.steps is None

    @rule(
        _address("model"),
        CelRule(
            field="coef",
            rule="double(self.coef) > 0.0",
            message="it must be above 0",
        ),
    )
    def names_a_model_to_learn_from(self) -> Iterator[Problem]:
        yield from _misnamed("teacher", self.model, self.revision)
        if self.coef <= 0:
            yield "coef", self.coef, "it must be above 0: leave teacher out for none"


# Options of vLLM's server that are ours to set, and by what else.
SERVER_KEYS = {
    "model": "judge.model",
    "revision": "judge.revision",
    "tensor_parallel_size": "judge.tensorParallelSize",
    "max_model_len": "judge.maxModelLen",
    **dict.fromkeys(("host", "port", "uds", "api_key", "served_model_name", "config", "root_path"), "the judge itself"),
}
# Of those that are not, how many GPUs there must be for each of tensorParallelSize.
_MULTIPLIES_GPUS = ("pipeline_parallel_size", "data_parallel_size")


class JudgeSpec(Section):
    """A language model that the job serves, by vLLM, for its rewards of type judge without a URL. Image, nodes,
    variables and volumes of its pod are those of rollout (docs/judges.md).
    """

    model: Path = Field(description="Hub id, folder, builtin name or folder of an object store.")
    revision: Text | None = Field(default=None, description="Hub revision.")
    tensor_parallel_size: int = Field(default=1, ge=1, le=64, description="GPUs.")
    max_model_len: int | None = Field(
        default=None, ge=1, le=10_000_000, description="Longest prompt + reply, tokens. Default: the model's."
    )
    extra_args: Config = Field(
        default={},
        max_length=64,
        json_schema_extra=FREE,
        description="Further options of vllm serve, by their Python names.",
    )
    resources: ResourcesSpec = Field(default=ResourcesSpec(), description="Of its pod.")

    @property
    def pod(self) -> PodSpec:
        """What its pod asks for."""
        return PodSpec(resources=self.resources)

    @property
    def num_gpus(self) -> int:
        """GPUs of the pod on a job for GPUs: those of each copy and stage."""
        counts = [self.extra_args.get(key, 1) for key in _MULTIPLIES_GPUS]
        return self.tensor_parallel_size * math.prod(count for count in counts if isinstance(count, int))

    @rule(_address("model"))
    def names_a_model_that_judges(self) -> Iterator[Problem]:
        yield from _misnamed("judge", self.model, self.revision)

    @rule()
    def extra_options_are_extra(self) -> Iterator[Problem]:
        for key, value in self.extra_args.items():
            if (name := key.replace("-", "_")) in SERVER_KEYS:
                yield f"extraArgs.{key}", value, f"{SERVER_KEYS[name]} sets it: leave it out"
            elif not re.fullmatch("[a-z][a-z0-9_]*", key):
                yield f"extraArgs.{key}", value, "it must be the name of an option of vllm serve, such as max_num_seqs"

    @rule()
    def gpus_are_those_of_a_pod(self) -> Iterator[Problem]:
        yield from self.pod.gpus_are_limits()
        yield from self.pod.partitions_are_not_joined()
        because = f"tensorParallelSize {self.tensor_parallel_size}, times its copies and stages in extraArgs,"
        for path, value, reason in gpu_problems(self.pod, needed=self.num_gpus, because=because):
            yield path.removeprefix("pod."), value, reason
