"""What a run of the bench comes to, for every trainer alike: held-out scores of its last weights by our graders."""

import dataclasses
import pathlib
import statistics

import torch
import transformers
from tests.bench.learning import base_model, sampling, tasks


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """rewards: mean of each step's samples. held_out: mean greedy score of the last version on questions that were not
    trained; sampled: the same at temperature 1. gap: mean over the steps of |log-probability of the trainer's policy -
    that of the sampling one|. cpu_s: of the steps alone, with sampling and grading: loading and scoring are left out.
    """

    rewards: tuple[float, ...]
    held_out: float
    sampled: float
    gap: float
    cpu_s: float


def sampler_of(model: pathlib.Path, base: pathlib.Path) -> sampling.Sampler:
    """Return what samples from a model's folder, with the tokenizer of the base model."""
    weights = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    return sampling.Sampler(weights, base_model.Tokenizer(base))


def score(sampler: sampling.Sampler, task: tasks.Task, *, greedy: bool) -> float:
    """Return the mean score on the held-out questions; the noise is the same for everyone."""
    noise = None if greedy else sampling.noise_of("held-out", task.name, rows=len(task.held_out))
    return statistics.fmean(row.reward for row in sampler.sample(task, task.held_out, noise=noise))
