"""What a teacher makes of tokens: against plain torch, and against the exact reverse KL of whole distributions."""

import pytest
import torch

from rljob_api import types
from rljob_api.manifest.loss import LossSpec
from rljob_api.manifest.model import TeacherSpec
from rljob_testing.sections import section
from rljob_workers.trainer.algorithms import distillation, loss
from rljob_workers.trainer.algorithms.statistics import Sum

VOCAB, POSITIONS = 11, 7
# No weight between engine and trainer.
PLAIN = LossSpec.model_validate({"type": "reinforce", "rolloutCorrection": {"mode": "None", "weighting": "None"}})


def config(**changes: object) -> TeacherSpec:
    return section(TeacherSpec, model="teacher", **changes)


def logits(seed: int) -> torch.Tensor:
    """Return logits [POSITIONS, VOCAB] near enough to one another that no bound acts."""
    return torch.randn(POSITIONS, VOCAB, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def inputs(logprobs: torch.Tensor, advantages: torch.Tensor) -> loss.LossInputs:
    count = len(logprobs)
    return loss.LossInputs(
        logprobs=logprobs,
        entropies=torch.zeros(count),
        behavior=logprobs.detach(),
        advantages=advantages,
        version_steps=torch.zeros(count, dtype=torch.int32),
        row_index=torch.zeros(count, dtype=torch.long),
        row_tokens=torch.tensor([float(count)]),
        row_masked=torch.tensor([False]),
        minibatch=types.Minibatch(num_tokens=count, num_rows=1),
        trainer_version=0,
    )


def gradient_of_a_sample(policy: torch.Tensor, teacher: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Return the gradient [POSITIONS, VOCAB] of the loss of one sampled token per position."""
    theta = policy.clone().requires_grad_()
    chosen = torch.log_softmax(theta, dim=-1).gather(1, tokens[:, None])[:, 0]
    taught = torch.log_softmax(teacher, dim=-1).gather(1, tokens[:, None])[:, 0]
    made = loss.policy_loss(
        inputs(chosen, distillation.advantages(chosen, taught, torch.zeros_like(chosen), config())), PLAIN
    )
    made.loss.backward()
    assert theta.grad is not None
    return theta.grad


@pytest.mark.covers("algorithms 6.8")
def test_the_gradient_of_a_sample_is_its_log_ratio_times_that_of_its_log_probability() -> None:
    """Plain torch: the softmax's own derivative, written out."""
    policy, teacher = logits(1), logits(2)
    tokens = torch.randint(VOCAB, (POSITIONS,), generator=torch.Generator().manual_seed(3))
    probabilities = torch.softmax(policy, dim=-1)
    ratio = (probabilities / torch.softmax(teacher, dim=-1)).log().gather(1, tokens[:, None])
    expected = ratio * (torch.nn.functional.one_hot(tokens, VOCAB) - probabilities) / POSITIONS
    torch.testing.assert_close(gradient_of_a_sample(policy, teacher, tokens), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.covers("algorithms 6.8")
def test_in_the_mean_over_what_the_policy_samples_the_gradient_is_that_of_the_reverse_kl() -> None:
    """Each token of the vocabulary as the sample, weighed by its probability, against autograd of the exact KL."""
    policy, teacher = logits(1), logits(2)
    probabilities = torch.softmax(policy, dim=-1)
    mean = sum(
        probabilities[:, token, None]
        * gradient_of_a_sample(policy, teacher, torch.full((POSITIONS,), token, dtype=torch.long))
        for token in range(VOCAB)
    )
    theta = policy.clone().requires_grad_()
    log_policy, log_teacher = torch.log_softmax(theta, dim=-1), torch.log_softmax(teacher, dim=-1)
    torch.nn.functional.kl_div(log_teacher, log_policy, log_target=True, reduction="sum").div(POSITIONS).backward()
    torch.testing.assert_close(mean, theta.grad, rtol=1e-6, atol=1e-6)


THETA, TEACHER = torch.tensor([-1.0, -2.0, -0.1]), torch.tensor([-3.0, -0.5, -40.0])
TASK = torch.tensor([0.5, -1.0, 2.0])


@pytest.mark.covers("algorithms 6.8")
@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        # log q - log pi is -2, 1.5, -39.9; the last one is bounded by 10 nats.
        ({}, [-2.0, 1.5, -10.0]),
        ({"coef": 0.5}, [-1.0, 0.75, -5.0]),
        ({"coef": 0.5, "task_reward": True}, [-0.5, -0.25, -3.0]),
    ],
)
def test_advantages_are_the_bounded_log_ratio_with_or_without_those_of_the_task(
    changes: dict[str, object], expected: list[float]
) -> None:
    assert distillation.advantages(THETA, TEACHER, TASK, config(**changes)).tolist() == pytest.approx(expected)


def test_the_distance_is_over_trained_tokens_whose_log_ratio_is_a_number() -> None:
    teacher = torch.tensor([-3.0, float("-inf"), -0.6])
    found = distillation.sums(THETA, teacher, torch.tensor([True, True, False]))
    # Only the first token: -1 - (-3).
    assert {name: float(value) for name, value in found.items()} == {Sum.TEACHER_TOKENS: 1.0, Sum.TEACHER_KL: 2.0}
