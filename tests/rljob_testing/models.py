"""Tiny models for tests: random weights, a local byte-level tokenizer, in Hugging Face layout."""

import json
import pathlib
from typing import Any, Literal

_CHAT = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
_SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


def make_tiny_tokenizer(folder: pathlib.Path, *more: str) -> int:
    """Write a byte-level tokenizer (one token per byte, three special ones and `more`) and return its vocabulary
    size.
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    special = (*_SPECIAL, *more)
    vocabulary = {token: index for index, token in enumerate((*special, *alphabet))}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<|im_start|>",
        "eos_token": "<|im_end|>",
        "pad_token": "<|im_end|>",
        "clean_up_tokenization_spaces": False,
        "model_max_length": 1024,
        "chat_template": _CHAT,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return len(vocabulary)


def make_tiny_llama(
    folder: pathlib.Path,
    *,
    seed: int = 0,
    layers: int = 2,
    hidden: int = 64,
    tied: bool = True,
    dtype: str = "bfloat16",
    scale: float = 0.15,
) -> pathlib.Path:
    """Write a random Llama with its tokenizer; loadable by vLLM and transformers. Head dimension is 32.

    `scale` is the standard deviation of the weights: large enough that logits differ between tokens.
    """
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    vocabulary = make_tiny_tokenizer(folder)
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 32,
        num_key_value_heads=max(1, hidden // 64),
        head_dim=32,
        max_position_embeddings=1024,
        initializer_range=scale,
        tie_word_embeddings=tied,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=2,
    )
    model = LlamaForCausalLM(config).to(getattr(torch, dtype))
    model.save_pretrained(folder)
    return folder


def make_tiny_qwen3_moe(folder: pathlib.Path, *, seed: int = 0) -> pathlib.Path:
    """Write a random mixture of four experts with its tokenizer, bf16; loadable by vLLM and transformers."""
    import torch
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    vocabulary = make_tiny_tokenizer(folder)
    torch.manual_seed(seed)
    config = Qwen3MoeConfig(  # type: ignore[call-arg]  # its fields come from annotations that mypy does not see
        vocab_size=vocabulary,
        hidden_size=64,
        intermediate_size=128,
        moe_intermediate_size=64,
        num_experts=4,
        num_experts_per_tok=2,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        max_position_embeddings=1024,
        initializer_range=0.15,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=2,
    )
    model = Qwen3MoeForCausalLM(config)
    model.bfloat16().save_pretrained(folder)
    return folder


PICTURE_TOKEN, PICTURE_SIZE, PICTURE_PATCH = "<picture>", 16, 8


def spread(model: Any) -> None:
    """Draw every tensor, in place: matrices large enough that tokens differ, norms near what they were. Some classes
    leave tensors at constants, behind which a missing one would hide.
    """
    import torch

    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(std=0.15)
            else:
                parameter.add_(torch.rand_like(parameter) * 0.1)


def make_tiny_llava(
    folder: pathlib.Path, *, seed: int = 0, dtype: str = "bfloat16", tower: str = "siglip"
) -> pathlib.Path:
    """Write a random LLaVA with its processor: a small Llama behind a tower that makes 4 vectors of a picture. tower:
    siglip or clip. Loadable by vLLM and transformers.
    """
    import torch
    import transformers

    vocabulary = make_tiny_tokenizer(folder, PICTURE_TOKEN)
    torch.manual_seed(seed)
    sizes: dict[str, Any] = {
        "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 1,
        "image_size": PICTURE_SIZE, "patch_size": PICTURE_PATCH,
    }  # fmt: skip
    vision: transformers.PretrainedConfig
    if tower == "siglip":
        vision = transformers.SiglipVisionConfig(**sizes | {"vision_use_head": False})
    else:
        vision = transformers.CLIPVisionConfig(**sizes, projection_dim=32)
    strategy: Literal["full", "default"] = "full" if tower == "siglip" else "default"
    config = transformers.LlavaConfig(
        vision_config=vision,
        text_config=transformers.LlamaConfig(
            vocab_size=vocabulary, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=2,
            num_key_value_heads=1, head_dim=32, max_position_embeddings=1024, tie_word_embeddings=True,
            bos_token_id=1, eos_token_id=2, pad_token_id=2,
        ),
        image_token_index=len(_SPECIAL),
        vision_feature_select_strategy=strategy,
        vision_feature_layer=-1 if tower == "siglip" else -2,
        image_seq_length=4,
        tie_word_embeddings=True,
    )  # fmt: skip
    model = transformers.LlavaForConditionalGeneration(config)
    spread(model)
    model.tie_weights()
    model.to(getattr(torch, dtype)).save_pretrained(folder)
    _name_as_hubs_do(folder / "model.safetensors")
    processor = transformers.LlavaProcessor(
        image_processor=transformers.SiglipImageProcessorPil(size={"height": PICTURE_SIZE, "width": PICTURE_SIZE}),
        tokenizer=transformers.AutoTokenizer.from_pretrained(folder),
        patch_size=PICTURE_PATCH,
        vision_feature_select_strategy=strategy,
        image_token=PICTURE_TOKEN,
        num_additional_image_tokens=0 if tower == "siglip" else 1,
        chat_template=_CHAT,
    )
    processor.save_pretrained(folder)
    return folder


def _name_as_hubs_do(file: pathlib.Path) -> None:
    """Give a tower's tensors the names that published models have, and vLLM reads: a new model is saved with others."""
    from safetensors.torch import load_file, save_file

    tensors = {
        name.replace("vision_tower.", "vision_tower.vision_model."): each for name, each in load_file(file).items()
    }
    save_file(tensors, file, metadata={"format": "pt"})


def picture(seed: int = 0, *, size: tuple[int, int] = (PICTURE_SIZE, PICTURE_SIZE), form: str = "PNG") -> bytes:
    """Return the file of a picture of random colours."""
    import io
    import random

    from PIL import Image

    rng = random.Random(seed)
    made = Image.new("RGB", size)
    made.putdata([tuple(rng.randrange(256) for _ in range(3)) for _ in range(size[0] * size[1])])
    file = io.BytesIO()
    made.save(file, format=form)
    return file.getvalue()
