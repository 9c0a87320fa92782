"""A step with a teacher: loss and gradient, packed and split, against the equation written out row by row.

The reference knows no packing: Hugging Face's own attention on one row of each model at a time and torch's log_softmax.
fp32, 1e-5 relative to the largest entry of a gradient, as for other losses: tokens of both signs cancel. What is token
by token is held to 1e-6 in algorithms/test_distillation.py.
"""

import dataclasses
import pathlib
from collections.abc import Mapping, Sequence

import pytest
import torch
import transformers

from rljob_api import enums, types
from rljob_api.manifest.job import JobSpec
from rljob_testing import trainer_makers as makers
from rljob_testing.clock import FakeClock
from rljob_testing.model_engine import FrozenScorer, ModelEngine
from rljob_testing.packed_loss import Gradients, gradients_of
from rljob_testing.sections import make_spec
from rljob_workers.trainer import learner
from rljob_workers.trainer.model import attention, batch_tensors, policy

Stat = enums.StepStat
GROUPS = makers.make_rows(groups=3, size=2, seed=5)
ROWS = [row for group in GROUPS for row in group]
WHOLE = makers.minibatch_of(GROUPS)
# What is compared with is the log-ratio of policy and teacher alone: no weight between engine and trainer.
PLAIN = {"type": "reinforce", "rolloutCorrection": {"mode": "None", "weighting": "None"}}
# The random models of these tests are far apart: the bound acts on some of their tokens, and not on all.
BOUND = 10.0


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, pathlib.Path]:
    return {
        name: makers.make_tiny_model(tmp_path_factory.mktemp(name), seed=seed)
        for seed, name in enumerate(("policy", "teacher"))
    }


@pytest.fixture(scope="module")
def packed(folders: dict[str, pathlib.Path]) -> dict[str, policy.Policy]:
    transformers.AttentionInterface.register(attention.NAME, attention.packed_attention)
    return {
        name: policy.Policy(
            transformers.AutoModelForCausalLM.from_pretrained(folder, attn_implementation=attention.NAME).train(),
            temperature=1.0,
            chunk_tokens=7,
        )
        for name, folder in folders.items()
    }


@pytest.fixture(scope="module")
def plain(folders: dict[str, pathlib.Path]) -> dict[str, torch.nn.Module]:
    return {
        name: transformers.AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").train()
        for name, folder in folders.items()
    }


def logprobs_of(model: torch.nn.Module, row: makers.Row) -> torch.Tensor:
    """Return log-probabilities of the row's sampled tokens, of the row alone."""
    log_probs = torch.log_softmax(model(input_ids=torch.tensor([row.tokens])).logits[0].float(), dim=-1)
    return torch.stack([log_probs[target - 1, row.tokens[target]] for target in row.targets])


def plain_gradients(models: dict[str, torch.nn.Module], *, coef: float, task: float) -> tuple[float, float, Gradients]:
    """Return L = -(1 / N) sum A log pi, A = coef * clamp(log q - log pi) + task * advantage, the mean of
    log pi - log q, and the gradient of L.
    """
    policy_model = models["policy"]
    policy_model.zero_grad()
    total, distance = torch.zeros(()), 0.0
    for row in ROWS:
        theta = logprobs_of(policy_model, row)
        with torch.no_grad():
            teacher = logprobs_of(models["teacher"], row)
        gap = teacher - theta.detach()
        advantages = coef * gap.clamp(-BOUND, BOUND) + task * torch.tensor(row.advantages)
        total = total - (advantages * theta).sum() / WHOLE.num_tokens
        distance -= float(gap.sum())
    total.backward()
    return float(total.detach()), distance / WHOLE.num_tokens, gradients_of(policy_model)


def job(**teacher: object) -> JobSpec:
    return make_spec({"algorithm.loss": PLAIN}, teacher={"model": "teacher", **teacher})


def learn(
    spec: JobSpec,
    packed: dict[str, policy.Policy],
    parts: Sequence[types.MicroBatch],
    *,
    teacher: str = "teacher",
    step: int = 1,
    sft_steps: int = 0,
) -> tuple[learner.Learned, FrozenScorer, Gradients]:
    trained, frozen = packed["policy"], FrozenScorer(packed[teacher])
    trained.zero_grad()
    header = dataclasses.replace(makers.make_header(step=step, minibatches=[WHOLE]), sft_steps=sft_steps)
    made = learner.Learner(engine=ModelEngine(trained), teacher=frozen, spec=spec, clock=FakeClock())
    return made.learn(header, parts), frozen, gradients_of(trained.lm)


def in_parts(number: int) -> list[types.MicroBatch]:
    """Return the rows in so many micro-batches; one of them has its groups' prompts once."""
    if number == 1:
        return [makers.pack(GROUPS, shared=True)]
    return [makers.pack([ROWS[place::number]], shared=False) for place in range(number)]


@pytest.mark.covers("algorithms 6.8")
@pytest.mark.parametrize("number", [1, 2, 3])
@pytest.mark.parametrize(("coef", "task_reward"), [("1", False), ("0.25", False), ("0.5", True)])
def test_a_step_with_a_teacher_has_the_gradient_of_the_log_ratio_as_each_tokens_advantage(
    packed: dict[str, policy.Policy],
    plain: dict[str, torch.nn.Module],
    number: int,
    coef: str,
    task_reward: bool,
) -> None:
    loss, distance, gradients = plain_gradients(plain, coef=float(coef), task=float(task_reward))
    learned, frozen, found = learn(job(coef=coef, taskReward=task_reward), packed, in_parts(number))
    assert frozen.scored == number
    assert learned.stats[Stat.LOSS] == pytest.approx(loss, rel=1e-6)
    assert learned.stats[Stat.TEACHER_KL] == pytest.approx(distance, rel=1e-6)
    assert found.keys() == gradients.keys()
    for name, theirs in gradients.items():
        bound = 1e-5 * float(theirs.abs().max())
        torch.testing.assert_close(found[name], theirs, rtol=1e-5, atol=bound, msg=name)


@pytest.mark.parametrize("number", [1, 2, 3])
@pytest.mark.parametrize(("coef", "top_k", "task_reward"), [("1", 1, False), ("0.25", 3, False), ("0.5", 3, True)])
def test_a_teacher_s_likeliest_tokens_in_every_place_have_the_gradient_of_their_cross_entropy(
    packed: dict[str, policy.Policy],
    plain: dict[str, torch.nn.Module],
    number: int,
    coef: str,
    top_k: int,
    task_reward: bool,
) -> None:
    """L = -(1 / N) sum (coef * sum_k q(v_k) log pi(v_k) + task * advantage * log pi(y)), row by row."""
    model = plain["policy"]
    model.zero_grad()
    total = torch.zeros(())
    for row in ROWS:
        places = [target - 1 for target in row.targets]
        theta, teacher = (
            torch.log_softmax(one(input_ids=torch.tensor([row.tokens])).logits[0].float(), dim=-1)[places]
            for one in (model, plain["teacher"])
        )
        top = teacher.detach().topk(top_k, dim=-1)
        total = total - float(coef) * (theta.gather(1, top.indices) * top.values.softmax(-1)).sum() / WHOLE.num_tokens
        if task_reward:
            sampled = theta.gather(1, torch.tensor([[row.tokens[target]] for target in row.targets]))[:, 0]
            total = total - (torch.tensor(row.advantages) * sampled).sum() / WHOLE.num_tokens
    total.backward()
    learned, frozen, found = learn(job(coef=coef, topK=top_k, taskReward=task_reward), packed, in_parts(number))
    assert frozen.scored == number
    assert learned.stats[Stat.LOSS] == pytest.approx(float(total.detach()), rel=1e-6)
    for name, theirs in gradients_of(model).items():
        bound = 1e-5 * float(theirs.abs().max())
        torch.testing.assert_close(found[name], theirs, rtol=1e-5, atol=bound, msg=name)


class ScoringEngine(ModelEngine):
    """Counts the forwards that are no part of an update."""

    scored = 0

    def score(self, tensors: batch_tensors.BatchTensors) -> torch.Tensor:
        self.scored += 1
        with torch.no_grad():
            return self.forward(tensors)[0]


@pytest.mark.parametrize(("teacher", "scored"), [({"topK": 3}, 0), ({"topK": 3, "taskReward": True}, 2), ({}, 2)])
def test_several_updates_of_a_step_cost_no_forward_before_them_where_a_teacher_s_likeliest_tokens_are_all_they_learn(
    packed: dict[str, policy.Policy], teacher: Mapping[str, object], scored: int
) -> None:
    spec = make_spec({"algorithm.minibatches": 2}, teacher={"model": "teacher", **teacher})
    engine, cut = ScoringEngine(packed["policy"]), (GROUPS[:2], GROUPS[2:])
    minibatches = [makers.minibatch_of(groups) for groups in cut]
    made = learner.Learner(engine=engine, teacher=FrozenScorer(packed["teacher"]), spec=spec, clock=FakeClock())
    parts = [makers.pack(groups, shared=True, update=at) for at, groups in enumerate(cut)]
    learned = made.learn(makers.make_header(step=1, minibatches=minibatches), parts)
    assert engine.scored == scored
    # The engine is compared with the policy that the step starts from, and not with one that has moved.
    compared = WHOLE.num_tokens if scored else minibatches[0].num_tokens
    assert learned.stats[Stat.MISMATCH_TOKENS] == compared


@pytest.mark.covers("algorithms 6.8")
@pytest.mark.parametrize("type_", ["ppo", "gspo", "cispo", "sapo", "reinforce"])
def test_a_policy_that_is_its_teacher_learns_exactly_nothing(packed: dict[str, policy.Policy], type_: str) -> None:
    loss = {"type": type_, **({"clipHigh": "4"} if type_ == "cispo" else {})}
    spec = make_spec({"algorithm.loss": loss}, teacher={"model": "teacher"})
    learned, _, found = learn(spec, packed, in_parts(2), teacher="policy")
    assert learned.stats[Stat.TEACHER_KL] == 0.0
    assert learned.stats[Stat.LOSS] == 0.0
    assert all(not gradient.any() for gradient in found.values())


@pytest.mark.covers("algorithms 6.8")
def test_rows_without_advantage_are_trained_where_a_teacher_scores_them(packed: dict[str, policy.Policy]) -> None:
    quiet = [dataclasses.replace(row, advantages=(0.0,) * len(row.advantages)) for row in ROWS]
    expected, _, gradients = learn(job(), packed, [makers.pack([ROWS], shared=False)])
    learned, _, found = learn(job(), packed, [makers.pack([quiet], shared=False)])
    assert learned.stats[Stat.LOSS] == expected.stats[Stat.LOSS]
    assert all(torch.equal(found[name], value) for name, value in gradients.items())


def test_answers_that_leave_the_loss_leave_the_distance_to_the_teacher_too(packed: dict[str, policy.Policy]) -> None:
    masked = [dataclasses.replace(row, masked=index > 0) for index, row in enumerate(ROWS)]
    learned, _, _ = learn(job(), packed, [makers.pack([masked], shared=False)])
    alone, _, _ = learn(job(), packed, [makers.pack([ROWS[:1]], shared=False)])
    assert learned.stats[Stat.TEACHER_KL] == pytest.approx(alone.stats[Stat.TEACHER_KL], rel=1e-6)


@pytest.mark.covers("algorithms 6.8")
@pytest.mark.parametrize(("step", "is_taught"), [(3, True), (4, True), (5, False)])
def test_a_teacher_scores_the_first_steps_of_rl_alone_where_their_number_is_written(
    packed: dict[str, policy.Policy], step: int, is_taught: bool
) -> None:
    learned, frozen, _ = learn(job(steps=2), packed, in_parts(1), step=step, sft_steps=2)
    assert (frozen.scored, Stat.TEACHER_KL in learned.stats) == (int(is_taught), is_taught)


def test_a_log_ratio_that_is_not_finite_moves_nothing(packed: dict[str, policy.Policy]) -> None:
    class Broken(FrozenScorer):
        def score(self, tensors: object) -> torch.Tensor:
            return torch.full((WHOLE.num_tokens,), float("-inf"))

    packed["policy"].zero_grad()
    made = learner.Learner(
        engine=ModelEngine(packed["policy"]), teacher=Broken(packed["teacher"]), spec=job(), clock=FakeClock()
    )
    learned = made.learn(makers.make_header(step=1, minibatches=[WHOLE]), in_parts(1))
    assert learned.stats[Stat.LOSS] == 0.0
    assert Stat.TEACHER_KL not in learned.stats
    assert learned.nonfinite["logprob"] == WHOLE.num_tokens
