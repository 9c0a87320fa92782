"""How much memory a resolved job needs, in words, where the shape of its model can be known without loading it."""

import json
import pathlib
from typing import Any

from rljob_api import memory, roles
from rljob_api.resolve import ResolvedJob

# Shapes of the models that come inside a wheel, from their config.json.
_BUILTIN_SHAPES = {
    "builtin:smollm2-135m-instruct": memory.ModelShape(
        num_params=134_515_008, num_layers=30, hidden_size=576, vocab_size=49_152, num_kv_heads=3, head_dim=64
    )
}


def lines(resolved: ResolvedJob) -> list[str]:
    """Return one line per part; a single line saying so if the model's shape cannot be known here."""
    trainer, rollout = resolved.trainer, resolved.rollouts[0]
    shape = shape_of(trainer.model)
    if shape is None:
        return [f"unknown: {trainer.model.name} has no config.json on this machine"]
    ranks = trainer.nodes * trainer.processes_per_node
    needed = memory.memory_estimate(
        shape,
        zero_stage=trainer.deepspeed.zero_stage,
        num_ranks=ranks,
        tokens_per_micro_batch=trainer.max_tokens_per_micro_batch,
        logits_chunk_tokens=trainer.logits_chunk_tokens,
        gradient_checkpointing=trainer.gradient_checkpointing,
        max_model_len=rollout.engine.max_model_len,
        max_num_seqs=rollout.engine.max_num_seqs,
        critic=trainer.critic is not None,
        reference=trainer.reference is not None,
    )
    models = {"state": needed.state_bytes, "critic": needed.critic_bytes, "reference": needed.reference_bytes}
    held = ", ".join(f"{name} {_gb(size)}" for name, size in models.items() if size)
    return [
        f"model: {shape.num_params / 1e6:,.0f} M parameters",
        f"trainer, each of {ranks} ranks: {_gb(needed.trainer_rank_bytes)} at most ({held}, "
        f"activations of a full micro-batch {_gb(needed.activation_bytes)}, output head {_gb(needed.head_bytes)})",
        f"trainer, weight images on the host: {_gb(needed.host_image_bytes)}",
        f"each of {len(resolved.rollouts)} rollouts: {_gb(needed.weight_bytes + needed.kv_bytes)} "
        f"(weights {_gb(needed.weight_bytes)}, full key-value cache {_gb(needed.kv_bytes)}), besides the engine itself",
    ]


def shape_of(model: roles.ModelConfig) -> memory.ModelShape | None:
    """Return a model's shape from our table or its config.json, None if neither has it."""
    if model.name in _BUILTIN_SHAPES:
        return _BUILTIN_SHAPES[model.name]
    path = pathlib.Path(model.path or model.name) / "config.json"
    return _shape(json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else None


def _shape(config: dict[str, Any]) -> memory.ModelShape | None:
    """Count the parameters of a Llama-like decoder: embeddings, attention, gated MLP. None for another kind."""
    needed = ("hidden_size", "num_hidden_layers", "vocab_size", "num_attention_heads", "intermediate_size")
    if any(key not in config for key in needed):
        return None
    hidden, layers, vocab, heads, inner = (int(config[key]) for key in needed)
    kv_heads = int(config.get("num_key_value_heads") or heads)
    head_dim = int(config.get("head_dim") or hidden // heads)
    attention = hidden * head_dim * (2 * heads + 2 * kv_heads)
    norms = 2 * hidden
    embeddings = vocab * hidden * (1 if config.get("tie_word_embeddings") else 2)
    return memory.ModelShape(
        num_params=embeddings + layers * (attention + 3 * hidden * inner + norms) + hidden,
        num_layers=layers,
        hidden_size=hidden,
        vocab_size=vocab,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
    )


def _gb(size: int) -> str:
    return f"{size / 1e9:.2f} GB"
