"""Makes the model of counting-pictures-cpu.yaml: `python crds/examples/make_picture_model.py FOLDER`, some minutes.

SmolLM2-135M-Instruct with a small SigLIP tower in front, as a LLaVA model. Nothing is downloaded.

1. The tower and its projection are trained on pictures that are drawn here, with the text model's own embeddings as
   targets: of each of the picture's cells they learn to give what the word for the shape in it would give. So the text
   model reads a picture as it reads a list of words.
2. The last layers of the text model learn the form of an answer, `[3]`, from a few examples: without that hardly one
   answer in fifty is a number in brackets, and RL has nothing to reward. They count a little better than chance then.
"""

import argparse
import contextlib
import dataclasses
import pathlib
import random
from collections.abc import Mapping
from typing import Any

import make_picture_data as pictures
import safetensors.torch
import torch
import transformers

from rljob_api import process_config
from rljob_workers.data.pictures import MARK
from rljob_workers.models import builtin

TEXT = "builtin:smollm2-135m-instruct"
# One of the tokens that the text model has and never learned; its row of the embeddings is never read.
IMAGE_TOKEN = "<empty_output>"
EMPTY = "."
STEPS, BATCH, LEARNING_RATE, SEED = 1500, 64, 1e-3, 5
# Of the answers' form: the first layer that learns it, examples, passes over them.
FIRST_LAYER, EXAMPLES, EPOCHS, EXAMPLES_AT_ONCE, ANSWER_RATE = 22, 128, 6, 16, 5e-5
# [, the number, ] and the end token.
ANSWER_TOKENS = 4


def build(text: pathlib.Path) -> tuple[transformers.LlavaForConditionalGeneration, transformers.LlavaProcessor]:
    """Return the untrained model and its processor."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(text)
    language = transformers.AutoModelForCausalLM.from_pretrained(text, dtype=torch.float32)
    image_token_id = tokenizer.convert_tokens_to_ids(IMAGE_TOKEN)
    vision = transformers.SiglipVisionConfig(
        hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=2,
        image_size=pictures.SIZE, patch_size=pictures.CELL, vision_use_head=False,
    )  # fmt: skip
    config = transformers.LlavaConfig(
        vision_config=vision,
        text_config=language.config,
        image_token_index=image_token_id,
        vision_feature_select_strategy="full",
        vision_feature_layer=-1,
        image_seq_length=pictures.CELLS**2,
        tie_word_embeddings=True,
    )
    config.eos_token_id, config.pad_token_id, config.bos_token_id = 2, 2, 1
    model = transformers.LlavaForConditionalGeneration(config).float()
    model.model.language_model.load_state_dict(language.model.state_dict())
    model.tie_weights()
    processor = transformers.LlavaProcessor(
        image_processor=transformers.SiglipImageProcessorPil(
            size={"height": pictures.SIZE, "width": pictures.SIZE}, do_convert_rgb=True
        ),
        tokenizer=tokenizer,
        patch_size=pictures.CELL,
        vision_feature_select_strategy="full",
        image_token=IMAGE_TOKEN,
        num_additional_image_tokens=0,
        chat_template=tokenizer.chat_template,
    )
    return model, processor


def train(model: transformers.LlavaForConditionalGeneration, processor: transformers.LlavaProcessor) -> float:
    """Train the tower and the projection; return the share of cells whose nearest word is right in the last steps."""
    words = {shape: f" {shape}" for shape in pictures.SHAPES} | {"": EMPTY}
    ids = [processor.tokenizer(word, add_special_tokens=False)["input_ids"][0] for word in words.values()]
    with torch.no_grad():
        targets = model.get_input_embeddings()(torch.tensor(ids))
    scale = targets.std()
    index = {name: place for place, name in enumerate(words)}
    rng = random.Random(SEED)
    trained = [*model.model.vision_tower.parameters(), *model.model.multi_modal_projector.parameters()]
    optimizer = torch.optim.AdamW(trained, lr=LEARNING_RATE)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=LEARNING_RATE, total_steps=STEPS)
    right = 0.0
    for step in range(STEPS):
        scenes = [pictures.scene(rng, rng.choice(pictures.SHAPES)) for _ in range(BATCH)]
        drawn = [pictures.draw(rng, cells).quantize(16).convert("RGB") for cells in scenes]
        pixels = processor.image_processor(drawn, return_tensors="pt")["pixel_values"]
        wanted = torch.tensor([[index[shape] for shape in cells] for cells in scenes])
        given = torch.stack(list(model.model.get_image_features(pixels, return_dict=True).pooler_output))
        loss = ((given - targets[wanted]) / scale).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if step >= STEPS - 20:
            nearest = torch.cdist(given.detach(), targets[None]).argmin(-1)
            right += float((nearest == wanted).float().mean()) / 20
        if step % 100 == 0:
            print(f"step {step}: loss {loss.item():.4f}", flush=True)
    return right


@dataclasses.dataclass
class _Before:
    """What a layer is called with: hidden states [n, T, h], and what is the same for all rows."""

    states: torch.Tensor
    others: Mapping[str, Any]


class _ReachedError(Exception):
    """The layer that is asked for is reached."""


def examples(processor: transformers.LlavaProcessor, rng: random.Random, count: int) -> tuple[torch.Tensor, Any]:
    """Return ids [count, T] of questions with their answers, all as long, and the pictures' pixels."""
    tokenizer, rows, drawn = processor.tokenizer, [], []
    for _ in range(count):
        shape = rng.choice(pictures.SHAPES)
        cells = pictures.scene(rng, shape)
        question = pictures.question(shape).replace(MARK, IMAGE_TOKEN * pictures.CELLS**2)
        text = tokenizer.apply_chat_template(
            [{"role": "user", "content": question}], tokenize=False, add_generation_prompt=True
        )
        answer = f"[{cells.count(shape)}]{tokenizer.eos_token}"
        rows.append(tokenizer(text + answer, add_special_tokens=False)["input_ids"])
        drawn.append(pictures.draw(rng, cells).quantize(16).convert("RGB"))
    return torch.tensor(rows), processor.image_processor(drawn, return_tensors="pt")["pixel_values"]


def before(model: transformers.LlavaForConditionalGeneration, ids: torch.Tensor, pixels: torch.Tensor) -> _Before:
    """Return what FIRST_LAYER gets: computed once, for all passes over the examples."""
    calls: list[_Before] = []

    def reach(_layer: object, args: tuple[torch.Tensor, ...], named: dict[str, Any]) -> None:
        others = {name: value for name, value in named.items() if name not in ("hidden_states", "attention_mask")}
        calls.append(_Before(args[0] if args else named["hidden_states"], {**others, "attention_mask": None}))
        raise _ReachedError

    hook = model.model.language_model.layers[FIRST_LAYER].register_forward_pre_hook(reach, with_kwargs=True)
    for start in range(0, len(ids), EXAMPLES_AT_ONCE):
        part = slice(start, start + EXAMPLES_AT_ONCE)
        with contextlib.suppress(_ReachedError), torch.no_grad():
            model.model(input_ids=ids[part], pixel_values=pixels[part], use_cache=False)
    hook.remove()
    return _Before(torch.cat([call.states for call in calls]), calls[0].others)


def teach(model: transformers.LlavaForConditionalGeneration, processor: transformers.LlavaProcessor) -> float:
    """Let the last layers learn the form of answers; return the mean probability of right ones that were not shown."""
    text = model.model.language_model
    ids, pixels = examples(processor, random.Random(SEED + 1), EXAMPLES + EXAMPLES_AT_ONCE * 2)
    known, answers = before(model, ids, pixels), ids[:, -ANSWER_TOKENS:]
    model.requires_grad_(False)
    trained = [parameter for layer in text.layers[FIRST_LAYER:] for parameter in layer.parameters()]
    for parameter in trained:
        parameter.requires_grad_(True)
    optimizer = torch.optim.AdamW(trained, lr=ANSWER_RATE, weight_decay=0.0)

    def scores(rows: torch.Tensor) -> torch.Tensor:
        states = known.states[rows]
        for layer in text.layers[FIRST_LAYER:]:
            result = layer(states, **known.others)
            states = result[0] if isinstance(result, tuple) else result
        return model.lm_head(text.norm(states[:, -ANSWER_TOKENS - 1 : -1]))

    for epoch in range(EPOCHS):
        for rows in torch.randperm(EXAMPLES).split(EXAMPLES_AT_ONCE):
            loss = torch.nn.functional.cross_entropy(scores(rows).flatten(0, 1), answers[rows].flatten())
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(trained, 1.0)
            optimizer.step()
        print(f"epoch {epoch}: loss {loss.item():.3f}", flush=True)
    with torch.no_grad():
        rows = torch.arange(EXAMPLES, len(ids))
        right = scores(rows).log_softmax(-1).gather(-1, answers[rows][..., None])
    return float(right.sum((1, 2)).exp().mean())


def save(folder: pathlib.Path, model: torch.nn.Module, processor: transformers.LlavaProcessor) -> None:
    """Write a Hugging Face folder whose tensors have the names that published models have, and engines read."""
    model.to(torch.bfloat16).save_pretrained(folder)
    processor.save_pretrained(folder)
    file = folder / "model.safetensors"
    tensors = safetensors.torch.load_file(file)
    named = {name.replace("vision_tower.", "vision_tower.vision_model."): tensor for name, tensor in tensors.items()}
    safetensors.torch.save_file(named, file, metadata={"format": "pt"})


def main() -> None:
    """Build, train, save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=pathlib.Path)
    folder = parser.parse_args().folder
    torch.manual_seed(SEED)
    files = process_config.ModelFiles(name=TEXT, cache_dir=str(pathlib.Path.home() / ".cache/rljob/models"))
    model, processor = build(builtin.ensure_model(files))
    print(f"cells right: {train(model, processor):.4f}", flush=True)
    print(f"probability of a right answer: {teach(model, processor):.2f}", flush=True)
    save(folder, model, processor)


if __name__ == "__main__":
    main()
