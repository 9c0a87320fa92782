"""What bf16 rounding leaves of small updates: `python -m tests.bench.rounding` writes its page.

The small model, one group of addition, and Adam with the recipe's numbers. Ways to get served bf16 weights from fp32
masters are compared by how much of the first-order gain (gradient times change) arrives after a few equal updates, by
how many weights change from version to version, by the bytes of that, and by what real updates do to the right answer.
"""

import argparse
import dataclasses
import json
import math
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import transformers

from rljob_api import process_config
from rljob_workers.local import prepare
from rljob_workers.models import builtin
from rljob_workers.trainer.engine import masters
from rljob_workers.weights import delta, image

ROOT = pathlib.Path(__file__).parents[2]
PAGE = ROOT / "docs/rounding.md"
DATA = ROOT / "crds/examples/data/addition-train.jsonl"
MODEL = process_config.ModelFiles(name="builtin:smollm2-135m-instruct", cache_dir=str(prepare.cache_dir()))
LEARNING_RATE, BETAS = 1e-5, (0.9, 0.95)
UPDATES = (1, 5, 15)
# What is added to the right sum in the answers of the group; 0 has reward 1.
OFFSETS = (0, 1, -1, 10)
Tensors = dict[str, torch.Tensor]
# Served weights of masters; the number of the version.
Way = Callable[[str, torch.Tensor, int], torch.Tensor]


def nearest(_name: str, values: torch.Tensor, _version: int) -> torch.Tensor:
    return values.bfloat16().float()


def redrawn(name: str, values: torch.Tensor, version: int) -> torch.Tensor:
    """Stochastic rounding with draws of its own for each version."""
    generator = torch.Generator().manual_seed(masters.key_of(version, name))
    bits = values.view(torch.int32)
    drawn = torch.randint(0, 1 << 16, bits.shape, generator=generator, dtype=torch.int32)
    return ((bits + drawn) & -(1 << 16)).view(torch.float32)


def exact(_name: str, values: torch.Tensor, _version: int) -> torch.Tensor:
    return values.clone()


@dataclasses.dataclass(frozen=True, slots=True)
class Choice:
    """spread: whether masters begin at places of their own. two_bytes: whether an element takes two bytes."""

    way: Way
    spread: bool = False
    two_bytes: bool = True


CHOICES: Mapping[str, Choice] = {
    "nearest": Choice(nearest),
    "drawn for each version": Choice(redrawn),
    "spread masters": Choice(nearest, spread=True),
    "float32 on the wire": Choice(exact, two_bytes=False),
}


class Group:
    """One prompt with a right and wrong answers, as a loss."""

    def __init__(self, folder: pathlib.Path) -> None:
        tokenizer: Any = transformers.AutoTokenizer.from_pretrained(folder)
        record = json.loads(DATA.read_text(encoding="utf-8").splitlines()[0])
        prompt = tokenizer(record["prompt"], add_special_tokens=False).input_ids
        rows = [
            tokenizer(f"{int(record['answer']) + offset}\n", add_special_tokens=False).input_ids for offset in OFFSETS
        ]
        self._first, self._ends = len(prompt), [len(prompt) + len(row) for row in rows]
        self._tokens = torch.full((len(rows), max(self._ends)), 2)
        for index, row in enumerate(rows):
            self._tokens[index, : self._ends[index]] = torch.tensor(prompt + row)
        rewards = torch.tensor([float(offset == 0) for offset in OFFSETS])
        self._advantages = (rewards - rewards.mean()) / rewards.std()

    def loss(self, model: Any) -> tuple[torch.Tensor, float]:
        """Return the policy loss, and the probability of the right answer."""
        logprobs = torch.log_softmax(model(input_ids=self._tokens).logits.float(), -1)
        picked = logprobs[:, :-1].gather(2, self._tokens[:, 1:, None])[:, :, 0]
        sums = torch.stack([row[self._first - 1 : end - 1].sum() for row, end in zip(picked, self._ends, strict=True)])
        return -(self._advantages * sums).sum() / (sum(self._ends) - len(OFFSETS) * self._first), float(
            sums[0].detach().exp()
        )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """kept: share of the first-order gain after `UPDATES`; changed: share of weights between the last two versions;
    num_bytes: of that change; right: probability of the right answer after 0, 1, ... real updates.
    """

    kept: Sequence[float]
    changed: float
    num_bytes: int
    right: Sequence[float]


def started(weights: Tensors, choice: Choice) -> Tensors:
    made = {name: value.clone() for name, value in weights.items()}
    for name, value in made.items():
        if choice.spread:
            masters.spread(value.view(-1), key=masters.key_of(0, name))
    return made


def kept(weights: Tensors, gradients: Tensors, choice: Choice) -> list[float]:
    """Return the share of the gain of k equal first updates of Adam that served weights have of that of the masters."""
    begin, shares = started(weights, choice), []
    for count in UPDATES:
        whole = arrived = 0.0
        for name, gradient in gradients.items():
            moved = -count * LEARNING_RATE * torch.sign(gradient)
            served = choice.way(name, begin[name] + moved, count)
            whole += float((gradient.double() * moved).sum())
            arrived += float((gradient.double() * (served - weights[name])).sum())
        shares.append(arrived / whole)
    return shares


def played(
    model: Any, group: Group, weights: Tensors, choice: Choice, *, steps: int
) -> tuple[list[float], Tensors, Tensors]:
    """Make real updates; return the probabilities of the right answer and the last two versions."""
    values = started(weights, choice)
    first, second = ({name: torch.zeros_like(value) for name, value in values.items()} for _ in range(2))
    right, before, served = [], dict(weights), dict(weights)
    for step in range(steps + 1):
        for name, parameter in model.named_parameters():
            parameter.data.copy_(served[name])
        loss, probability = group.loss(model)
        right.append(probability)
        if step == steps:
            break
        model.zero_grad()
        loss.backward()
        norm = math.sqrt(sum(float(parameter.grad.double().square().sum()) for parameter in model.parameters()))
        before, served = served, {}
        for name, parameter in model.named_parameters():
            gradient = parameter.grad * min(1.0, 1.0 / norm)
            first[name].mul_(BETAS[0]).add_(gradient, alpha=1 - BETAS[0])
            second[name].mul_(BETAS[1]).addcmul_(gradient, gradient, value=1 - BETAS[1])
            mean, square = (
                state[name] / (1 - beta ** (step + 1)) for state, beta in zip((first, second), BETAS, strict=True)
            )
            values[name] -= LEARNING_RATE * mean / (square.sqrt() + 1e-8)
            served[name] = choice.way(name, values[name], step + 1)
    return right, before, served


def size_of(folder: pathlib.Path, before: Tensors, after: Tensors, *, two_bytes: bool) -> tuple[float, int]:
    """Return the share of changed elements and the bytes that the project's own encoding needs."""
    layout = image.layout_from_safetensors(folder, "bfloat16" if two_bytes else "float32")
    images = []
    for tensors in (before, after):
        flat = bytearray(layout.image_bytes)
        view = torch.frombuffer(flat, dtype=torch.uint8)
        for spec in layout.tensors:
            target = view[spec.offset : spec.offset + spec.length].view(getattr(torch, spec.dtype)).view(spec.shape)
            target.copy_(tensors[spec.name])
        images.append(memoryview(flat))
    found = delta.encode(layout, *images)
    num_bytes = layout.image_bytes if found.data is None else len(found.data)
    return found.changed / image.num_elements(layout), num_bytes


def measure(folder: pathlib.Path, *, steps: int) -> dict[str, Measured]:
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    group = Group(folder)
    weights = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    group.loss(model)[0].backward()
    gradients = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    found = {}
    for name, choice in CHOICES.items():
        shares = kept(weights, gradients, choice)
        right, before, after = played(model, group, weights, choice, steps=steps)
        changed, num_bytes = size_of(folder, before, after, two_bytes=choice.two_bytes)
        found[name] = Measured(kept=shares, changed=changed, num_bytes=num_bytes, right=right)
        print(name, found[name], flush=True)
    return found


def page(found: Mapping[str, Measured]) -> str:
    rows = [
        f"| {name} | {' | '.join(f'{share:.0%}' for share in one.kept)} | {one.changed:.1%} |"
        f" {one.num_bytes / 1e6:.1f} | {' '.join(f'{value:.3f}' for value in one.right)} |"
        for name, one in found.items()
    ]
    return _TEXT + "\n".join(rows) + "\n"


_TEXT = f"""# Small updates and bf16
<!-- Written by `python -m tests.bench.rounding`. -->
A weight in bf16 has 8 significant bits. Near 0.1 its step is 0.0005, fifty times an update of Adam at a rate of
1e-5. Model files hold bf16 values, so masters that are copied from them begin in the middle of their rounding
intervals, and the first updates change nothing that the forward pass or a rollout sees. Ways out, on SmolLM2-135M, one
group of addition, learning rate {LEARNING_RATE:g}:

- *nearest*: masters are copies of the weights, and are rounded to the nearest.
- *drawn for each version*: stochastic rounding, with new draws for each version.
- *spread masters*: rounded to the nearest, while masters begin at random places of the intervals
  (`workers/rljob_workers/trainer/engine/masters.py`). This is what the trainer does, at every ZeRO stage.
- *float32 on the wire*: nothing is rounded; twice the bytes, and an engine that computes in float32.

*kept*: share of the first-order gain of 1, 5 and 15 equal updates. *changed*: weights that differ between the last two
versions. *MB*: what that takes on the wire. *right*: probability of the right answer after 0, 1, ... real updates.

| way | kept, 1 | 5 | 15 | changed | MB | right |
|---|---|---|---|---|---|---|
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and write the page."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.rounding", description=__doc__)
    parser.add_argument("--page", type=pathlib.Path, default=PAGE)
    parser.add_argument("--steps", type=int, default=4, help="real updates")
    asked = parser.parse_args(arguments)
    torch.set_num_threads(1)
    asked.page.write_text(page(measure(builtin.ensure_model(MODEL), steps=asked.steps)), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
