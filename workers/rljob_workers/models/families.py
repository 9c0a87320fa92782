"""Which models can be trained, decided from config.json alone: before weights are downloaded and anything is
started.

The trainer packs rows into one stream and attention keeps them apart (trainer/model/attention.py). That is exact for
layers that look at other tokens through attention only; a layer that carries state along the stream (Mamba, gated delta
net, short convolution, RWKV) would hand every row the state of the one before it, and train on it without an error.
Rows one by one would be exact for those too, but there is no update of such layers in a running engine that was proven,
so they are refused. Models that are neither in the table nor refused here are judged by the self-test at the trainer's
start (trainer/model/selftest.py). docs/models.md has the table; tests hold each of its rows to 1e-5.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

from rljob_api import errors
from rljob_workers.models import vision

Config = Mapping[str, object]

# `model_type` of config.json: what a reader calls it. Each is tested: packed rows, exported names, a saved folder.
SUPPORTED = {
    "gemma3_text": "Gemma 3 (text)",
    "glm4": "GLM-4",
    "llama": "Llama, SmolLM2",
    "mistral": "Mistral",
    "olmo2": "OLMo 2",
    "phi3": "Phi-3, Phi-4",
    "qwen2": "Qwen2, Qwen2.5",
    "qwen3": "Qwen3",
    "qwen3_moe": "Qwen3 mixture of experts",
    "smollm3": "SmolLM3",
}
# Layers that see the tokens of a row through attention over all of it or a window.
_ATTENTION = ("full_attention", "attention", "sliding_attention")
# Families with recurrent or convolutional state; newer ones also say so in `layer_types`.
_STATEFUL = (
    "bamba", "falcon_h1", "falcon_mamba", "jamba", "kimi_linear", "lfm2", "lfm2_moe", "mamba", "mamba2", "minimax",
    "nemotron_h", "olmo_hybrid", "plamo2", "qwen3_5", "qwen3_5_moe", "qwen3_5_moe_text", "qwen3_5_text", "qwen3_next",
    "recurrent_gemma", "rwkv", "xlstm", "zamba", "zamba2",
)  # fmt: skip
_STATE_KEYS = ("mamba_", "ssm_", "conv_L_cache", "linear_num_", "hybrid_override_pattern", "lru_width", "time_mix_")
_LAYER_LISTS = ("layer_types", "layers_block_type", "block_types")
# Further layers at the end of the files that predict more than the next token.
_AHEAD = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_layers", "num_mtp_modules")
# What a head or scores are multiplied with or bounded by; the trainer computes softmax(hidden @ weight / temperature).
_HEAD_SETTINGS = ("final_logit_softcapping", "logits_scaling", "logit_scale")
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
_OTHER_INPUTS = ("vision_config", "audio_config", "speech_config")


def check(
    name: str,
    folder: Path,
    *,
    longest: int,
    field: str = "spec.model.name",
    adapted: bool = False,
    shows: bool = False,
) -> None:
    """Raise ManifestError naming `field` if the model of `folder` cannot be trained on rows of `longest` tokens.
    adapted: an adapter of it is trained. shows: records have pictures.
    """
    config = read(folder)
    problems = [
        *refusals(config, longest=longest),
        *(_adapter(config) if adapted else ()),
        *_pictures(config, shows=shows),
    ]
    if problems:
        raise errors.ManifestError(*(f"{field} is {name!r}, but {problem}" for problem in problems))


def read(folder: Path) -> Config:
    """Return the folder's config.json."""
    config: Config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    return config


def refusals(config: Config, *, longest: int) -> list[str]:
    """Return why the model cannot be trained, a clause each. longest: tokens of a row, prompt and answer."""
    text = vision.text_config(config)
    return [*_parts(config), *(problem for rule in _RULES for problem in rule(text, longest))]


def is_tested(config: Config) -> bool:
    """Return whether the family is one of the table."""
    return vision.text_config(config).get("model_type") in SUPPORTED


def _stateful(config: Config, _longest: int) -> Iterator[str]:
    kinds = next((config[name] for name in _LAYER_LISTS if isinstance(config.get(name), list)), None)
    name = config.get("model_type")
    if isinstance(kinds, list):
        other = sorted({str(kind) for kind in kinds} - set(_ATTENTION))
        if other:
            yield (
                f"its layers of kind {', '.join(other)} ({name}) are not attention over the row: rows that are packed"
                " together would see each other; take a model of attention layers, docs/models.md lists them"
            )
        return
    keys = sorted(key for key in config if key.startswith(_STATE_KEYS))
    if name in _STATEFUL or keys:
        why = f"config.json has {keys[0]}" if keys else f"its type is {name}"
        yield (
            f"it has layers with a state that runs along the row ({why}): rows that are packed together would see each"
            " other; take a model of attention layers, docs/models.md lists them"
        )


def _attention(config: Config, _longest: int) -> Iterator[str]:
    if config.get("attn_logit_softcapping") is not None:
        yield "its attention scores have a soft cap (attn_logit_softcapping), which the trainer does not compute"
    if config.get("model_type") == "gpt_oss":
        yield "its attention has sinks, which the trainer does not compute"
    if config.get("alibi") or config.get("model_type") in ("bloom", "mpt"):
        yield "its positions are a bias on attention scores (ALiBi), which the trainer does not compute"


def _head(config: Config, _longest: int) -> Iterator[str]:
    for setting in _HEAD_SETTINGS:
        if config.get(setting) not in (None, 1.0):
            yield f"its config sets {setting} to {config[setting]}, which the trainer does not compute"


def _positions(config: Config, longest: int) -> Iterator[str]:
    for rope in _ropes(config):
        kind = rope.get("rope_type") or rope.get("type")
        if kind == "dynamic":
            yield (
                "its rotary positions are scaled by the longest row that is computed with them (rope_type dynamic):"
                " trainer and engine would not agree; set rope_type to yarn or default in its config.json"
            )
        trained = rope.get("original_max_position_embeddings") or config.get("original_max_position_embeddings")
        # Older files of Phi-3 call it su.
        if kind in ("longrope", "su") and isinstance(trained, int) and longest > trained:
            yield (
                f"its rotary positions change beyond {trained} tokens (rope_type longrope), while rows may have"
                f" {longest}; set spec.rollout.engine.maxModelLen to at most {trained}"
            )


def _ropes(config: Config) -> Iterator[Config]:
    """Yield the settings of rotary positions; some models have one per kind of layer."""
    for name in ("rope_parameters", "rope_scaling"):
        rope = config.get(name)
        if isinstance(rope, dict):
            yield rope
            yield from (each for each in rope.values() if isinstance(each, dict))


def _files(config: Config, _longest: int) -> Iterator[str]:
    if config.get("is_encoder_decoder"):
        yield "it is an encoder with a decoder; only decoders are trained"
    for name in _AHEAD:
        if config.get(name):
            yield (
                f"its files hold layers that predict further tokens ({name} is {config[name]}), which are neither"
                " trained nor served; take a model without them"
            )
    if config.get("quantization_config"):
        yield "its weights are quantised (quantization_config), and the trainer needs them whole"


def _parts(config: Config) -> Iterator[str]:
    """What is in front of the text model."""
    if vision.reads_pictures(config):
        if problem := vision.problem(config):
            yield problem
        if not is_tested(config):
            yield (
                f"its text model is of type {vision.text_config(config).get('model_type')}, and with pictures only"
                " those of docs/models.md are trained"
            )
        return
    if others := [name for name in _OTHER_INPUTS if config.get(name)]:
        yield (
            f"it also takes images or sound (config.json has {others[0]}), and the weights of that part are neither"
            f" trained nor served; take the family's text model, or with pictures one of {', '.join(vision.MODELS)}"
        )


def _pictures(config: Config, *, shows: bool) -> Iterator[str]:
    if shows and not vision.reads_pictures(config):
        yield (
            f"it reads no pictures (its type is {config.get('model_type')}), which the records have by columns.images;"
            f" take a model of type {', '.join(vision.MODELS)}, or leave columns.images out"
        )
    if not shows and vision.reads_pictures(config):
        yield (
            f"it reads pictures (its type is {config.get('model_type')}), and no source of spec.data.train has any;"
            " name their column by columns.images, or take its text model"
        )


def _adapter(config: Config) -> Iterator[str]:
    if experts := [name for name in _EXPERTS if config.get(name)]:
        yield (
            f"it is a mixture of experts ({experts[0]} is {config[experts[0]]}), for which no adapter is trained: leave"
            " spec.model.lora out, or take a dense model"
        )


_RULES = (_files, _stateful, _attention, _head, _positions)
