"""Makers for the trainer's tests: configs, rows, micro-batches, a tiny model. Written apart from the real packing."""

import dataclasses
import pathlib
import random
from collections.abc import Mapping, Sequence

from rljob_api import enums, process_config, types
from rljob_api.manifest.algorithm import GaeSpec, NormalizeSpec
from rljob_testing import sections
from rljob_testing.sections import section

VOCAB = 64
# No checkpoint but the last.
TRAINING: Mapping[str, object] = {
    "seed": 1,
    "maxSteps": 4,
    "checkpoint.everySteps": 1000,
    "trainer.optimizer.learningRate": "1e-3",
    "trainer.maxTokensPerMicroBatch": 1024,
    "trainer.gradientCheckpointing": False,
}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A prompt and what was sampled after it; `extra` is inserted text between two sampled turns."""

    prompt: tuple[int, ...]
    sampled: tuple[int, ...]
    behavior: tuple[float, ...]
    advantages: tuple[float, ...]
    version_steps: tuple[int, ...]
    masked: bool = False
    inserted: tuple[int, ...] = ()
    second_turn: tuple[int, ...] = ()
    rewards: tuple[float, ...] = ()
    turn_ids: tuple[int, ...] = ()
    truncated: bool = False
    group: int = 0

    @property
    def tokens(self) -> tuple[int, ...]:
        """Return the whole row."""
        return self.prompt + self.sampled + self.inserted + self.second_turn

    @property
    def targets(self) -> list[int]:
        """Return the indices of sampled tokens in the row."""
        first = list(range(len(self.prompt), len(self.prompt) + len(self.sampled)))
        second = range(len(self.tokens) - len(self.second_turn), len(self.tokens))
        return [*first, *second]


def make_rows(
    *, groups: int, size: int, seed: int = 0, longest: int = 6, vocab: int = VOCAB, step: int = 0, turns: bool = False
) -> list[list[Row]]:
    """Return `groups` groups of `size` rows with random lengths, advantages and behavior log-probabilities.

    A row also earns its advantage as a reward on its last token; the first row of each group was cut by length.
    """
    rng = random.Random(seed)

    def text(most: int) -> tuple[int, ...]:
        return tuple(rng.randrange(1, vocab) for _ in range(rng.randint(1, most)))

    made = []
    for number in range(groups):
        prompt, group = text(longest) + text(1), []
        for index in range(size):
            sampled = text(longest)
            second = text(3) if turns else ()
            count = len(sampled) + len(second)
            behavior = tuple(rng.uniform(-6.0, -2.0) for _ in range(count))
            advantage = rng.uniform(-2.0, 2.0)
            group.append(
                Row(
                    prompt=prompt,
                    sampled=sampled,
                    behavior=behavior,
                    advantages=(advantage,) * count,
                    version_steps=(step,) * count,
                    inserted=text(2) if turns else (),
                    second_turn=second,
                    rewards=(0.0,) * (count - 1) + (advantage,),
                    turn_ids=(0,) * len(sampled) + (1,) * len(second),
                    truncated=index == 0,
                    group=number,
                )
            )
        made.append(group)
    return made


class _Pack:
    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.positions: list[int] = []
        self.segments: list[types.Segment] = []
        self.targets: list[int] = []
        self.predictors: list[int] = []
        self.rows: list[Row] = []
        self.row_index: list[int] = []

    def segment(self, row: Row, first: int, parent: int) -> int:
        start = len(self.tokens)
        self.tokens += row.tokens[first:]
        self.positions += range(first, len(row.tokens))
        self.segments.append(types.Segment(start=start, end=len(self.tokens), parent=parent))
        return start

    def add(self, row: Row, *, start: int, first: int, opener: int) -> None:
        for index in row.targets:
            self.targets.append(start + index - first)
            self.predictors.append(opener if index == first else start + index - first - 1)
            self.row_index.append(len(self.rows))
        self.rows.append(row)


def pack(groups: Sequence[Sequence[Row]], *, shared: bool, update: int = 0) -> types.MicroBatch:
    """Return one micro-batch. `shared`: a group's prompt appears once, its rows' other tokens are its children."""
    made = _Pack()
    for group in groups:
        if shared:
            prompt = dataclasses.replace(group[0], sampled=(), inserted=(), second_turn=())
            root = len(made.segments)
            base = made.segment(prompt, 0, -1)
            for row in group:
                first = len(row.prompt)
                made.add(row, start=made.segment(row, first, root), first=first, opener=base + first - 1)
        else:
            for row in group:
                made.add(row, start=made.segment(row, 0, -1), first=0, opener=-1)
    return types.MicroBatch(
        update=update,
        tokens=types.ints(made.tokens),
        position_ids=types.ints(made.positions),
        segments=made.segments,
        target_index=types.ints(made.targets),
        predictor_index=types.ints(made.predictors),
        logprobs=types.floats([value for row in made.rows for value in row.behavior]),
        advantages=types.floats([value for row in made.rows for value in row.advantages]),
        version_steps=types.ints([value for row in made.rows for value in row.version_steps]),
        row_index=types.ints(made.row_index),
        rows=[
            types.RowHeader(
                group_id=types.GroupId("g"),
                sample_index=index,
                num_tokens=len(row.targets),
                row=index,
                raw_reward=0.0,
                shaped_reward=0.0,
                masked=row.masked,
                truncated=row.truncated,
                group=row.group,
            )
            for index, row in enumerate(made.rows)
        ],
        rewards=types.floats([value for row in made.rows for value in row.rewards]),
        turn_ids=types.ints([value for row in made.rows for value in row.turn_ids]),
    )


def minibatch_of(groups: Sequence[Sequence[Row]]) -> types.Minibatch:
    """Return the denominators of all rows."""
    rows = [row for group in groups for row in group]
    return types.Minibatch(num_tokens=sum(len(row.targets) for row in rows), num_rows=len(rows))


def make_header(*, step: int, minibatches: Sequence[types.Minibatch], num_micro_batches: int = 1) -> types.BatchHeader:
    """Return the header of a batch."""
    return types.BatchHeader(
        kind=enums.BatchKind.BATCH,
        step=step,
        trainer_version=step - 1,
        num_updates=len(minibatches),
        num_micro_batches=num_micro_batches,
        minibatches=list(minibatches),
    )


def make_trainer_config(
    folder: pathlib.Path,
    changes: Mapping[str, object] | None = None,
    *,
    model_dir: pathlib.Path | None = None,
    dtype: str = "float32",
    **by_name: object,
) -> process_config.TrainerConfig:
    """Return a config of one node on this machine's CPU, one thread a rank, with changes as in `sections`."""
    files = process_config.ModelFiles(name="tiny", path=str(model_dir or folder), cache_dir=str(folder / "cache"))
    ours = {**TRAINING, "trainer.dtype": dtype, "model.dtype": dtype, **(changes or {})}
    return sections.make_config(process_config.TrainerConfig, folder, ours, model=files, **by_name)


def make_returns(
    *,
    gamma: float = 1.0,
    lambda_: str = "1.0",
    unit: str = "Token",
    bootstrap_truncated: bool = False,
    normalize: NormalizeSpec | None = None,
) -> dict[str, object]:
    """Return the changes by which the trainer makes the advantages, without a critic unless one is added."""
    gae = section(GaeSpec, gamma=gamma, lambda_=lambda_, unit=unit, bootstrap_truncated=bootstrap_truncated)
    return {
        "algorithm.advantageEstimator": "ppo",
        "algorithm.gae": gae,
        "algorithm.normalizeAdvantage": normalize or section(NormalizeSpec, mean="None", std="None"),
    }


def make_tiny_model(folder: pathlib.Path, *, dtype: str = "float32", seed: int = 0) -> pathlib.Path:
    """Write a random Llama of two layers with tied embeddings and grouped heads as a Hugging Face folder."""
    import torch
    import transformers

    torch.manual_seed(seed)
    config = transformers.LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        tie_word_embeddings=True,
        initializer_range=0.3,
    )
    model = transformers.LlamaForCausalLM(config).to(getattr(torch, dtype))
    model.save_pretrained(folder)
    (folder / "tokenizer.json").write_text("{}", encoding="utf-8")
    return folder
