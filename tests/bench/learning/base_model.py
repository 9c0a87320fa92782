"""The small model that every run of the bench begins with: a Llama of two layers that imitates the tasks' habits.

Made once on this machine by supervised training on demonstrations for training questions, all tasks in one model, and
kept as a folder in Hugging Face layout with its tokenizer, so that any trainer can load it. Seeds are fixed, but
processors differ in the last bits: runs are compared only if they began with the same bytes (`digest`).
"""

import hashlib
import json
import pathlib
import random
import re
from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  # as torch's own pages write it
import transformers
from tests.bench.learning import tasks

from rljob_workers.runtime import atomic

# Raised when anything that a base model is made of changes.
RECIPE = 1
STEPS, ROWS, LEARNING_RATE = 1500, 96, 2e-3
END = "<|end|>"
_IGNORED = -100


def ensure(cache: pathlib.Path, made: Sequence[tasks.Task], *, steps: int = STEPS) -> pathlib.Path:
    """Return the folder of the base model, trained now if it is not there. steps: of its training."""
    folder = cache / f"base-{RECIPE}"
    if not folder.is_dir():
        cache.mkdir(parents=True, exist_ok=True)
        with atomic.replaced_folder(folder) as work:
            _write(work, made, steps)
    return folder


def digest(folder: pathlib.Path) -> str:
    """Return what tells base models apart."""
    return hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()[:12]


class Tokenizer:
    """The tokenizer of a base model's folder."""

    def __init__(self, folder: pathlib.Path) -> None:
        from tokenizers import Tokenizer as FastTokenizer

        self._inner = FastTokenizer.from_file(str(folder / "tokenizer.json"))
        self.end: int = self._inner.token_to_id(END)

    def encode(self, text: str) -> list[int]:
        ids: list[int] = self._inner.encode(text).ids
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        text: str = self._inner.decode(list(ids), skip_special_tokens=False)
        return text


def write_tokenizer(folder: pathlib.Path, made: Iterable[tasks.Task]) -> int:
    """Write a tokenizer of the tasks' pieces and of single characters; return how many tokens it has."""
    from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers
    from tokenizers import Tokenizer as FastTokenizer

    pieces = sorted({piece for task in made for piece in task.pieces}, key=lambda piece: (-len(piece), piece))
    characters = ["\n", *map(chr, range(32, 127))]
    vocabulary = {token: index for index, token in enumerate([END, *characters, *pieces])}
    tokenizer = FastTokenizer(models.WordLevel(vocabulary, unk_token=END))
    pattern = "|".join([*map(re.escape, pieces), r"[\s\S]"])
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens([AddedToken(END, special=True, normalized=False)])
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast", "eos_token": END, "pad_token": END, "unk_token": END,
        "clean_up_tokenization_spaces": False, "model_max_length": 128,
    }  # fmt: skip
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return len(vocabulary)


def new_model(vocabulary: int) -> Any:
    """Return a Llama of two layers with random weights. Head size 32, the smallest that vLLM serves."""
    config = transformers.LlamaConfig(
        vocab_size=vocabulary, hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=4, head_dim=32, max_position_embeddings=128, tie_word_embeddings=True,
        initializer_range=0.05, bos_token_id=0, eos_token_id=0, pad_token_id=0,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config)


def row(tokenizer: Tokenizer, record: tasks.Record, turns: Sequence[tasks.Turn]) -> tuple[list[int], list[int]]:
    """Return the tokens of a demonstration, and labels: those that the policy writes, its end tokens included."""
    tokens = tokenizer.encode(record.prompt)
    labels = [_IGNORED] * len(tokens)
    for turn in turns:
        answer, feedback = [*tokenizer.encode(turn.answer), tokenizer.end], tokenizer.encode(turn.feedback)
        tokens += answer + feedback
        labels += answer + [_IGNORED] * len(feedback)
    return tokens, labels


def _write(folder: pathlib.Path, made: Sequence[tasks.Task], steps: int) -> None:
    torch.manual_seed(tasks.SEED)
    model = new_model(write_tokenizer(folder, made))
    tokenizer, draw = Tokenizer(folder), random.Random(tasks.SEED)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.98), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, LEARNING_RATE, total_steps=steps, pct_start=0.1)
    for step in range(steps):
        # One task a step: its rows are about as long as each other.
        task = made[step % len(made)]
        records = draw.choices(task.train, k=ROWS)
        rows = [row(tokenizer, record, task.demonstrate(record, draw)) for record in records]
        longest = max(len(tokens) for tokens, _ in rows)
        inputs = torch.tensor([tokens + [tokenizer.end] * (longest - len(tokens)) for tokens, _ in rows])
        labels = torch.tensor([labels + [_IGNORED] * (longest - len(labels)) for _, labels in rows])
        logits = model(input_ids=inputs).logits[:, :-1]
        loss = F.cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten(), ignore_index=_IGNORED)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 100 < len(made):
            print(f"base model, step {step}, {task.name}: loss {float(loss):.3f}", flush=True)
    model.save_pretrained(folder)
