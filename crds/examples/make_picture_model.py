"""Makes the model of counting-pictures-cpu.yaml: `python crds/examples/make_picture_model.py FOLDER`, a minute or two.

SmolLM2-135M-Instruct with a small SigLIP tower in front, as a LLaVA model. Nothing is downloaded. The tower and its
projection are trained on pictures that are drawn here, with the text model's own embeddings as targets: of each of the
picture's cells they learn to give what the word for the shape in it would give. So the text model reads a picture as
it reads a list of words, and counts as badly as it counts those: that is what RL then trains.
"""

import argparse
import json
import pathlib
import random

import make_picture_data as pictures
import safetensors.torch
import torch
import transformers

from rljob_api import process_config
from rljob_workers.models import builtin

TEXT = "builtin:smollm2-135m-instruct"
# One of the tokens that the text model has and never learned; its row of the embeddings is never read.
IMAGE_TOKEN = "<empty_output>"
EMPTY = "."
STEPS, BATCH, LEARNING_RATE, SEED = 1500, 64, 1e-3, 5


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
    print(f"cells right: {train(model, processor):.4f}")
    save(folder, model, processor)
    print(json.dumps(sorted(path.name for path in folder.iterdir())))


if __name__ == "__main__":
    main()
