"""Tiny random models of families: each that can be trained, and some that cannot. Their folders are what a hub has."""

import pathlib
from typing import Any

from rljob_testing import models

VOCAB = 96
WINDOW = 16
_SIZES: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.2,
    "pad_token_id": 0,
}
_EXPERTS: dict[str, Any] = {"moe_intermediate_size": 16, "num_experts": 4, "num_experts_per_tok": 2}
_DELTA_NET: dict[str, Any] = {
    "head_dim": 8,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}
_MAMBA: dict[str, Any] = {"mamba_n_heads": 4, "mamba_n_groups": 1, "mamba_d_state": 8}

# model_type: class of its config and what differs from the sizes above. All that models/families.py calls supported.
TRAINED: dict[str, tuple[str, dict[str, Any]]] = {
    "gemma3_text": ("Gemma3TextConfig", {"head_dim": 8, "sliding_window": WINDOW, "query_pre_attn_scalar": 8}),
    "glm4": ("Glm4Config", {"head_dim": 8}),
    "llama": ("LlamaConfig", {}),
    "mistral": ("MistralConfig", {"sliding_window": WINDOW}),
    "olmo2": ("Olmo2Config", {}),
    "phi3": ("Phi3Config", {}),
    "qwen2": ("Qwen2Config", {"tie_word_embeddings": True}),
    "qwen3": ("Qwen3Config", {"head_dim": 8}),
    "qwen3_moe": ("Qwen3MoeConfig", {"head_dim": 8, **_EXPERTS}),
    "smollm3": ("SmolLM3Config", {}),
}
# Layers with a state that runs along the stream. What the leak does to log-probabilities is reported by the self-test.
STATEFUL: dict[str, tuple[str, dict[str, Any]]] = {
    "falcon_h1": ("FalconH1Config", {"mamba_d_ssm": 32, "mamba_d_head": 8, "mamba_chunk_size": 16, **_MAMBA}),
    "granitemoehybrid": (
        "GraniteMoeHybridConfig",
        {
            "shared_intermediate_size": 64,
            "num_hidden_layers": 2,
            "layer_types": ["mamba", "attention"],
            "num_local_experts": 0,
            "num_experts_per_tok": 0,
            "mamba_d_head": 16,
            "mamba_expand": 2,
            **_MAMBA,
        },
    ),
    "lfm2": ("Lfm2Config", {"layer_types": ["conv", "full_attention"] * 2, "conv_L_cache": 3}),
    "qwen3_5_text": ("Qwen3_5TextConfig", _DELTA_NET),
    "qwen3_next": ("Qwen3NextConfig", {"shared_expert_intermediate_size": 16, **_EXPERTS, **_DELTA_NET}),
}


def save(family: str, folder: pathlib.Path, *, dtype: str = "float32", seed: int = 0) -> pathlib.Path:
    """Write a random model of a family as a Hugging Face folder, as a hub would have it."""
    import torch
    import transformers

    torch.manual_seed(seed)
    name, changes = {**TRAINED, **STATEFUL}[family]
    config = getattr(transformers, name)(**{**_SIZES, **changes})
    model = transformers.AutoModelForCausalLM.from_config(config)
    models.spread(model)
    model.to(getattr(torch, dtype)).save_pretrained(folder)
    return folder
