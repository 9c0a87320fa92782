"""Large models of random weights in Hugging Face layout: few layers, wide ones. One tensor is in memory at a time."""

import dataclasses
import pathlib
import tempfile
from collections.abc import Iterator

import torch

from rljob_api import types
from rljob_testing import models
from rljob_workers.trainer.state import model_folder
from rljob_workers.weights import image

HEAD_DIM = 128


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Width:
    """A model of Qwen3's shape: hidden units, a multiple of 512, and layers. 4,096 and 13 are 6.3 GB in bfloat16."""

    hidden: int
    layers: int

    def matrices(self) -> dict[str, tuple[int, int]]:
        """Return outputs and inputs of each matrix of a layer."""
        hidden, inner, keys = self.hidden, 4 * self.hidden, self.hidden // 4
        return {
            "self_attn.q_proj": (hidden, hidden),
            "self_attn.k_proj": (keys, hidden),
            "self_attn.v_proj": (keys, hidden),
            "self_attn.o_proj": (hidden, hidden),
            "mlp.gate_proj": (inner, hidden),
            "mlp.up_proj": (inner, hidden),
            "mlp.down_proj": (hidden, inner),
        }

    def tensors(self, vocabulary: int) -> list[tuple[str, tuple[int, ...]]]:
        """Return name and shape of each tensor."""
        hidden = self.hidden
        shapes: list[tuple[str, tuple[int, ...]]] = [
            ("model.embed_tokens.weight", (vocabulary, hidden)),
            ("model.norm.weight", (hidden,)),
            ("lm_head.weight", (vocabulary, hidden)),
        ]
        of_layer: dict[str, tuple[int, ...]] = {
            **self.matrices(),
            "self_attn.q_norm": (HEAD_DIM,),
            "self_attn.k_norm": (HEAD_DIM,),
            "input_layernorm": (hidden,),
            "post_attention_layernorm": (hidden,),
        }
        for layer in range(self.layers):
            shapes += [(f"model.layers.{layer}.{name}.weight", shape) for name, shape in of_layer.items()]
        return shapes


def make(folder: pathlib.Path, width: Width, *, seed: int = 0, most_file_bytes: int = 1 << 30) -> types.Layout:
    """Write a model in bfloat16 with a tokenizer of one token per byte, loadable by vLLM and transformers, in files of
    at most `most_file_bytes`. Return its layout.
    """
    import transformers

    folder.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as parts:
        source = pathlib.Path(parts)
        vocabulary = models.make_tiny_tokenizer(source)
        config = transformers.Qwen3Config(
            architectures=["Qwen3ForCausalLM"],
            vocab_size=vocabulary,
            hidden_size=width.hidden,
            intermediate_size=4 * width.hidden,
            num_hidden_layers=width.layers,
            num_attention_heads=width.hidden // HEAD_DIM,
            num_key_value_heads=width.hidden // HEAD_DIM // 4,
            head_dim=HEAD_DIM,
            max_position_embeddings=1024,
            tie_word_embeddings=False,
            bos_token_id=1,
            eos_token_id=2,
            pad_token_id=2,
        )
        config.save_pretrained(source)
        layout = image.make_layout((name, "bfloat16", shape) for name, shape in width.tensors(vocabulary))
        model_folder.write(folder, layout, _random(layout, seed), model_dir=source, most_file_bytes=most_file_bytes)
    return layout


def _random(layout: types.Layout, seed: int) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield norms of one and matrices that keep the size of what passes through them."""
    generator = torch.Generator().manual_seed(seed)
    for spec in layout.tensors:
        if len(spec.shape) == 1:
            yield spec.name, torch.ones(spec.shape, dtype=torch.bfloat16)
        else:
            deviation = 1.0 if spec.name == "model.embed_tokens.weight" else spec.shape[1] ** -0.5
            yield spec.name, torch.empty(spec.shape, dtype=torch.bfloat16).normal_(std=deviation, generator=generator)
