"""The updates of a step, over an engine that only records. Numbers of the loss are tested elsewhere."""

import contextlib
import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch

from rljob_api import enums, errors, types
from rljob_api.manifest.algorithm import CriticSpec
from rljob_api.manifest.loss import CorrectionSpec, LossSpec
from rljob_api.manifest.trainer import OptimizerSpec
from rljob_testing.clock import FakeClock
from rljob_testing.sections import make_spec, section
from rljob_testing.trainer_makers import make_header, make_returns, make_rows, minibatch_of, pack
from rljob_workers.trainer import critic as critics
from rljob_workers.trainer import learner
from rljob_workers.trainer.algorithms import entropy
from rljob_workers.trainer.engine import mfu, schedule
from rljob_workers.trainer.model import batch_tensors, logprobs

Stat = enums.StepStat


@dataclasses.dataclass(frozen=True)
class Outcome:
    grad_norm: float
    applied: bool


class FakeEngine:
    """Log-probabilities are one number; `others` is what the busiest rank reports for each reduction."""

    def __init__(
        self, *, norms: Sequence[float] = (), world_size: int = 1, most: Callable[[float], float] = lambda own: own
    ) -> None:
        self.world_size, self.device = world_size, torch.device("cpu")
        self.accelerator: mfu.Accelerator | None = None
        self.events: list[str] = []
        self.losses: list[float] = []
        self.rates: list[float] = []
        self.theta = torch.tensor(-1.0, requires_grad=True)
        self._norms, self._most = list(norms), most

    def forward(self, tensors: batch_tensors.BatchTensors) -> tuple[torch.Tensor, torch.Tensor]:
        self.events.append(f"forward {tensors.update}")
        logprobs = self.theta.expand(len(tensors.targets)) * 1.0
        return logprobs, torch.full_like(logprobs, 0.5)

    def forward_taught(
        self, tensors: batch_tensors.BatchTensors, lesson: logprobs.Likeliest
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        raise AssertionError(f"nothing teaches update {tensors.update} {lesson.ids.shape}")

    def score(self, tensors: batch_tensors.BatchTensors) -> torch.Tensor:
        self.events.append("score")
        return torch.full((len(tensors.targets),), -1.0)

    def backward(self, loss: torch.Tensor) -> None:
        self.events.append("backward")
        self.losses.append(float(loss.detach()))
        loss.backward()

    def step(self, learning_rate: float) -> Outcome:
        self.events.append("step")
        self.rates.append(learning_rate)
        norm = self._norms.pop(0) if self._norms else 1.0
        return Outcome(norm, math.isfinite(norm))

    def add_to_average(self, *, first: bool) -> None:
        self.events.append("average first" if first else "average")

    def take_average(self) -> None:
        self.events.append("take average")

    def total(self, values: Sequence[float]) -> list[float]:
        return list(values)

    def largest(self, values: Sequence[float]) -> list[float]:
        return [self._most(value) for value in values]


def learner_of(
    engine: FakeEngine,
    *,
    minibatches: int = 1,
    epochs: int = 1,
    loss: LossSpec | None = None,
    warmup_steps: int = 0,
) -> learner.Learner:
    optimizer = section(OptimizerSpec, learning_rate=1.0, warmup_steps=warmup_steps)
    spec = make_spec({"algorithm.epochs": epochs}, minibatches=minibatches, loss=loss, optimizer=optimizer)
    return learner.Learner(engine=engine, spec=spec, clock=FakeClock())


def step_of(updates: int, *, step: int = 1) -> tuple[types.BatchHeader, list[types.MicroBatch]]:
    groups = [make_rows(groups=1, size=2, seed=update, step=step - 1) for update in range(updates)]
    header = make_header(step=step, minibatches=[minibatch_of(group) for group in groups])
    return header, [pack(group, shared=True, update=update) for update, group in enumerate(groups)]


@pytest.mark.covers("algorithms 11")
def test_one_update_needs_no_forward_for_the_proximal_policy() -> None:
    engine = FakeEngine()
    learned = learner_of(engine, loss=section(LossSpec, proximal="Recompute")).learn(*step_of(1))
    assert engine.events == ["forward 0", "backward", "step"]
    assert learned.stats[Stat.RATIO_MEAN] == 1.0


@pytest.mark.covers("algorithms 6.1")
def test_the_proximal_policy_is_scored_for_the_whole_step_before_the_first_of_several_updates() -> None:
    engine = FakeEngine()
    learner_of(engine, minibatches=2).learn(*step_of(2))
    assert engine.events == ["score", "score", "forward 0", "backward", "step", "forward 1", "backward", "step"]


@pytest.mark.parametrize("proximal", ["Behavior", "LogLinear"])
def test_the_proximal_policy_from_the_engine_costs_no_forward(proximal: str) -> None:
    engine = FakeEngine()
    loss = section(LossSpec, constant_denominator=8.0, proximal=proximal, rollout_correction=None)
    learner_of(engine, minibatches=2, loss=loss).learn(*step_of(2))
    assert "score" not in engine.events


@pytest.mark.covers("algorithms 6.5")
def test_losses_are_multiplied_by_the_ranks_that_gradients_are_averaged_over() -> None:
    alone, four = FakeEngine(), FakeEngine(world_size=4)
    for engine in (alone, four):
        learner_of(engine).learn(*step_of(1))
    assert four.losses == pytest.approx([4 * alone.losses[0]])


def test_a_run_ends_with_the_mean_of_its_last_weights_by_an_update_at_a_rate_of_0() -> None:
    engine = FakeEngine()
    optimizer = section(OptimizerSpec, learning_rate=1.0, average_steps=2)
    spec = make_spec({"maxSteps": 3, "algorithm.minibatches": 2}, optimizer=optimizer)
    learns = learner.Learner(engine=engine, spec=spec, clock=FakeClock())
    seen = []
    for step in (1, 2, 3):
        engine.events.clear()
        learned = learns.learn(*step_of(2, step=step))
        seen.append([event for event in engine.events if "average" in event or event == "step"])
    assert seen == [
        ["step", "step"],
        ["step", "step", "average first"],
        ["step", "step", "average", "take average", "step"],
    ]
    assert engine.rates == [1.0] * 6 + [0.0]
    assert engine.losses[-1] == 0.0
    # It counts as no update, and shows in no number.
    assert learns.count.applied == 6
    assert learned.stats[Stat.LEARNING_RATE] == 1.0


def test_a_rank_with_less_work_runs_idle_micro_batches_that_count_nowhere() -> None:
    header, micro_batches = step_of(1)
    alone, lagging = FakeEngine(), FakeEngine(most=lambda own: max(own, 3.0))
    expected = learner_of(alone).learn(header, micro_batches)
    found = learner_of(lagging).learn(header, micro_batches)
    assert lagging.events == ["forward 0", "backward"] * 3 + ["step"]
    assert lagging.losses[1:] == [0.0, 0.0]
    for stat in (Stat.TOKENS_COMPUTED, Stat.MISMATCH_TOKENS, Stat.LOSS, Stat.BEHAVIOR_KL):
        assert found.stats[stat] == expected.stats[stat]


@pytest.mark.covers("algorithms 11")
def test_an_update_without_any_micro_batch_still_steps() -> None:
    engine = FakeEngine()
    header = make_header(step=1, minibatches=[types.Minibatch(num_tokens=12, num_rows=3)])
    learned = learner_of(engine).learn(header, [])
    assert engine.events == ["forward 0", "backward", "step"]
    assert learned.stats[Stat.TOKENS_TRAINED] == 12.0
    assert learned.stats[Stat.TOKENS_COMPUTED] == 0.0
    assert Stat.RATIO_MEAN not in learned.stats


@pytest.mark.covers("algorithms 8", "algorithms 11")
def test_a_skipped_update_leaves_the_schedule_where_it_was() -> None:
    engine = FakeEngine(norms=[1.0, math.inf, 1.0])
    steps = learner_of(engine, warmup_steps=10)
    reports = [steps.learn(*step_of(1, step=step)) for step in (1, 2, 3)]
    assert engine.rates == pytest.approx([0.1, 0.2, 0.2])
    assert [report.stats[Stat.SKIPPED] for report in reports] == [0.0, 1.0, 0.0]
    assert Stat.GRAD_NORM not in reports[1].stats
    assert steps.count.applied == 2


@pytest.mark.covers("algorithms 8")
def test_five_skipped_updates_in_a_row_fail_the_job() -> None:
    steps = learner_of(FakeEngine(norms=[math.nan] * 5))
    for step in range(1, 5):
        steps.learn(*step_of(1, step=step))
    with pytest.raises(errors.RLJobError, match="5 updates in a row") as raised:
        steps.learn(*step_of(1, step=5))
    assert type(raised.value) is errors.RLJobError


def test_an_applied_update_forgets_skipped_ones() -> None:
    steps = learner_of(FakeEngine(norms=[math.nan] * 4 + [1.0] + [math.nan] * 4))
    for step in range(1, 10):
        steps.learn(*step_of(1, step=step))
    assert steps.count.skipped_in_a_row == 4


def test_later_epochs_count_neither_tokens_nor_mismatch_again() -> None:
    header, micro_batches = step_of(1)
    once = learner_of(FakeEngine()).learn(header, micro_batches)
    again = [micro_batches[0], dataclasses.replace(micro_batches[0], update=1)]
    twice_header = make_header(step=1, minibatches=list(header.minibatches) * 2)
    twice = learner_of(FakeEngine(), epochs=2).learn(twice_header, again)
    for stat in (Stat.MISMATCH_TOKENS, Stat.TOKENS_TRAINED, Stat.ROWS, Stat.BEHAVIOR_KL):
        assert twice.stats[stat] == pytest.approx(once.stats[stat])


@pytest.mark.covers("algorithms 6.3")
def test_batch_normalised_weights_have_mean_one_over_the_step() -> None:
    normalised = section(
        LossSpec, constant_denominator=8.0, rollout_correction=section(CorrectionSpec, high=1.5, batch_normalize=True)
    )
    engine = FakeEngine()
    learned = learner_of(engine, minibatches=2, loss=normalised).learn(*step_of(2))
    assert learned.stats[Stat.WEIGHT_MEAN] == pytest.approx(1.0)
    assert engine.events[:2] == ["score", "score"]


def test_a_batch_with_another_number_of_updates_is_refused() -> None:
    with pytest.raises(errors.WireError, match="2 updates where the config has 1"):
        learner_of(FakeEngine()).learn(*step_of(2))


def test_a_micro_batch_of_an_unknown_update_is_refused() -> None:
    header, micro_batches = step_of(1)
    with pytest.raises(errors.WireError, match="update 3 of 1"):
        learner_of(FakeEngine()).learn(header, [dataclasses.replace(micro_batches[0], update=3)])


def test_reinforce_has_no_proximal_policy_and_costs_no_forward_for_it() -> None:
    engine = FakeEngine()
    learner_of(engine, minibatches=2, loss=section(LossSpec, type="reinforce", constant_denominator=8.0)).learn(
        *step_of(2)
    )
    assert "score" not in engine.events


class FakeValues:
    """Every value is one number with a gradient; writes into the policy's list of events."""

    def __init__(self, events: list[str], norms: Sequence[float] = ()) -> None:
        self.events, self.rates = events, [0.0]
        self.losses: list[float] = []
        self.value = torch.tensor(0.5, requires_grad=True)
        self._norms = list(norms)

    def values(self, tensors: batch_tensors.BatchTensors) -> tuple[torch.Tensor, torch.Tensor]:
        self.events.append(f"values {tensors.update}")
        return self.value.expand(len(tensors.targets)) * 1.0, self.value.expand(len(tensors.row_tokens)) * 1.0

    def backward(self, loss: torch.Tensor) -> None:
        self.events.append("value backward")
        self.losses.append(float(loss.detach()))
        loss.backward()

    def step(self, learning_rate: float) -> Outcome:
        self.events.append("value step")
        self.rates.append(learning_rate)
        norm = self._norms.pop(0) if self._norms else 1.0
        return Outcome(norm, math.isfinite(norm))


def with_critic(
    engine: FakeEngine,
    values: FakeValues,
    *,
    warmup_steps: int = 0,
    minibatches: int = 1,
    max_steps: int = 4,
    optimizer: OptimizerSpec | None = None,
) -> tuple[learner.Learner, schedule.UpdateCount]:
    spec = make_spec(
        make_returns(),
        minibatches=minibatches,
        max_steps=max_steps,
        optimizer=optimizer or section(OptimizerSpec, learning_rate=1.0),
        critic=section(CriticSpec, learning_rate=0.5, warmup_steps=warmup_steps),
    )
    count = schedule.UpdateCount()
    made = learner.Learner(engine=engine, critic=critics.Critic(values, spec, count), spec=spec, clock=FakeClock())
    return made, count


def step_with_rewards(num_updates: int, *, step: int = 1) -> tuple[types.BatchHeader, list[types.MicroBatch]]:
    """Every row earns 1 on its last token."""
    header, parts = step_of(num_updates, step=step)
    made = []
    for part in parts:
        ends = [sum(row.num_tokens for row in part.rows[: index + 1]) - 1 for index in range(len(part.rows))]
        rewards = [1.0 if place in ends else 0.0 for place in range(len(part.target_index))]
        made.append(dataclasses.replace(part, rewards=types.floats(rewards), turn_ids=types.ints([0] * len(rewards))))
    return header, made


@pytest.mark.covers("algorithms 11")
def test_what_the_entropy_adds_to_the_loss_is_told_where_it_is_a_term_of_it() -> None:
    engine = FakeEngine()
    chosen = section(LossSpec, constant_denominator=8.0, entropy_coef=0.1, rollout_correction=None)
    learned = learner_of(engine, loss=chosen).learn(*step_of(1))
    # The engine's entropies are 0.5 at every token.
    assert learned.stats[Stat.ENTROPY_LOSS] == pytest.approx(-0.1 * 0.5)
    assert Stat.KL_LOSS not in learned.stats
    assert Stat.ENTROPY_LOSS not in learner_of(FakeEngine()).learn(*step_of(1)).stats


ADAPTIVE = {"algorithm.entropy.target": "0.7", "algorithm.entropy.delta": "0.25", "algorithm.entropy.maxCoef": "0.6"}


def adaptive(state: entropy.AdaptiveCoefficient | None = None) -> learner.Learner:
    return learner.Learner(engine=FakeEngine(), spec=make_spec(ADAPTIVE), clock=FakeClock(), entropy_coef=state)


@pytest.mark.covers("algorithms 6.6")
def test_the_entropy_of_a_step_moves_the_coefficient_of_the_next_one() -> None:
    steps = adaptive()
    stats = [steps.learn(*step_of(1, step=step)).stats for step in (1, 2, 3, 4)]
    # The engine's entropies are 0.5 at every token, below the target.
    assert [each[Stat.ENTROPY_COEF] for each in stats] == pytest.approx([0.0, 0.25, 0.5, 0.6])
    assert [each[Stat.ENTROPY_LOSS] for each in stats] == pytest.approx([0.0, -0.125, -0.25, -0.3])


def test_a_resumed_run_applies_the_coefficients_of_one_that_was_not_interrupted() -> None:
    whole, before = adaptive(), adaptive()
    expected = [whole.learn(*step_of(1, step=step)).stats[Stat.ENTROPY_COEF] for step in (1, 2, 3, 4)]
    for step in (1, 2):
        before.learn(*step_of(1, step=step))
    state = before.entropy_coef
    after = adaptive(entropy.AdaptiveCoefficient.of(make_spec(ADAPTIVE).algorithm, **dataclasses.asdict(state)))
    found = [after.learn(*step_of(1, step=step)).stats[Stat.ENTROPY_COEF] for step in (3, 4)]
    assert found == expected[2:]


def test_a_manifest_without_a_target_reports_no_coefficient() -> None:
    assert Stat.ENTROPY_COEF not in learner_of(FakeEngine()).learn(*step_of(1)).stats


def test_choosing_tokens_by_entropy_costs_one_forward_and_leaves_the_others_out() -> None:
    engine = FakeEngine()
    spec = make_spec({"algorithm.entropy.topQuantile": "0.5"})
    learned = learner.Learner(engine=engine, spec=spec, clock=FakeClock()).learn(*step_of(1))
    assert engine.events == ["forward 0", "forward 0", "backward", "step"]
    # All entropies are equal, and equal ones stay together.
    assert learned.masked["entropy"] == 0.0


def test_time_in_which_other_ranks_are_waited_for_is_a_wait_for_peers() -> None:
    waits: list[str] = []

    @contextlib.contextmanager
    def waiting(reason: str) -> Iterator[None]:
        waits.append(reason)
        yield

    made = learner.Learner(engine=FakeEngine(), spec=make_spec(), clock=FakeClock(), waiting=waiting)
    made.learn(*step_of(1))
    assert waits == ["peers", "peers"], "before the first forward, and for the sums at the end"


@pytest.mark.covers("algorithms 7")
def test_the_critic_is_valued_before_the_step_and_updated_with_each_minibatch() -> None:
    engine = FakeEngine()
    values = FakeValues(engine.events)
    steps, count = with_critic(engine, values, minibatches=2)
    learned = steps.learn(*step_with_rewards(2))
    update = ["forward {0}", "backward", "values {0}", "value backward", "step", "value step"]
    expected = [event.format(number) for number in (0, 1) for event in update]
    assert engine.events == ["score", "score", "values 0", "values 1", *expected]
    assert count.applied == steps.count.applied == 2
    assert values.rates[1:] == [0.5, 0.5]
    # V .5 everywhere, every return 1: (.5 - 1)^2 / 2 over the minibatch, and nothing was clipped.
    assert learned.stats[Stat.VALUE_LOSS] == pytest.approx(0.125)
    assert learned.stats[Stat.VALUE_CLIP] == 0.0
    assert learned.stats[Stat.CRITIC_GRAD_NORM] == 1.0


@pytest.mark.covers("algorithms 11")
def test_rows_without_advantage_are_in_the_facts_of_the_batch_and_in_no_update() -> None:
    """One group is trained, one of two rows is looked at, and eight rows of its kind are not computed at all."""
    trained, idle = make_rows(groups=2, size=2, seed=3)
    idle = [dataclasses.replace(row, advantages=(0.0,) * len(row.advantages)) for row in idle]
    own, seen = minibatch_of([trained]), minibatch_of([idle])
    whole = types.Minibatch(num_tokens=own.num_tokens + 5 * seen.num_tokens, num_rows=own.num_rows + 10)
    header = make_header(step=1, minibatches=[whole])
    engine = FakeEngine()
    learned = learner_of(engine).learn(header, [pack([trained, idle], shared=True)])
    assert learned.stats[Stat.MISMATCH_TOKENS] == pytest.approx(whole.num_tokens)
    alone = FakeEngine()
    learner_of(alone).learn(header, [pack([trained], shared=True)])
    assert engine.losses == pytest.approx(alone.losses)
    # Where a term of the loss takes all rows they are trained, and none stands for another.
    takes_all = section(LossSpec, constant_denominator=8.0, entropy_coef=0.1)
    every = learner_of(FakeEngine(), loss=takes_all).learn(header, [pack([trained, idle], shared=True)])
    assert every.stats[Stat.MISMATCH_TOKENS] == pytest.approx(own.num_tokens + seen.num_tokens)


@pytest.mark.covers("algorithms 7")
def test_while_the_critic_warms_up_the_policy_is_neither_run_nor_updated() -> None:
    engine = FakeEngine()
    values = FakeValues(engine.events)
    steps, count = with_critic(engine, values, warmup_steps=1)
    warm = steps.learn(*step_with_rewards(1))
    assert engine.events == ["values 0", "values 0", "value backward", "value step"]
    assert (steps.count.applied, count.applied) == (0, 1)
    assert not [stat for stat in warm.stats if stat.startswith(("policy/", "behavior/", "mismatch/"))]
    assert not {Stat.GRAD_NORM, Stat.LEARNING_RATE} & warm.stats.keys()
    assert warm.stats[Stat.TOKENS_TRAINED] > 0
    after = steps.learn(*step_with_rewards(1, step=2))
    assert steps.count.applied == 1
    assert Stat.LOSS in after.stats


def test_value_losses_are_multiplied_by_the_ranks_too() -> None:
    losses = []
    for size in (1, 4):
        engine = FakeEngine(world_size=size)
        values = FakeValues(engine.events)
        with_critic(engine, values)[0].learn(*step_with_rewards(1))
        losses.append(values.losses[0])
    assert losses[1] == pytest.approx(4 * losses[0])


def test_a_schedule_reaches_its_end_although_the_critic_warmed_up_first() -> None:
    """Steps 1 and 2 of 6 update the critic alone; the policy's rate falls over the other four, and is 0 after them."""
    engine = FakeEngine()
    linear = section(OptimizerSpec, learning_rate=1.0, schedule="Linear")
    steps, _ = with_critic(engine, FakeValues(engine.events), warmup_steps=2, max_steps=6, optimizer=linear)
    for step in range(1, 8):
        steps.learn(*step_with_rewards(1, step=step))
    assert engine.rates == pytest.approx([1.0, 0.75, 0.5, 0.25, 0.0])


def test_a_critic_that_never_has_a_finite_gradient_fails_the_job_by_its_own_field() -> None:
    engine = FakeEngine()
    steps, _ = with_critic(engine, FakeValues(engine.events, norms=[math.nan] * 5))
    for step in range(1, 5):
        assert steps.learn(*step_with_rewards(1, step=step)).stats[Stat.SKIPPED] == 1.0
    with pytest.raises(errors.RLJobError, match=r"spec\.algorithm\.critic\.learningRate"):
        steps.learn(*step_with_rewards(1, step=5))


def test_a_rank_with_less_work_takes_part_in_the_critics_backward() -> None:
    engine = FakeEngine(most=lambda own: max(own, 2.0))
    values = FakeValues(engine.events)
    with_critic(engine, values)[0].learn(*step_with_rewards(1))
    assert engine.events.count("value backward") == 2
    assert values.losses[1] == 0.0


class TickingEngine(FakeEngine):
    """A forward takes a quarter of a second, an update half of one."""

    def __init__(self, clock: FakeClock, **more: Any) -> None:
        super().__init__(**more)
        self.clock = clock

    def forward(self, tensors: batch_tensors.BatchTensors) -> tuple[torch.Tensor, torch.Tensor]:
        self.clock.tick(0.25)
        return super().forward(tensors)

    def step(self, learning_rate: float) -> Outcome:
        self.clock.tick(0.5)
        return super().step(learning_rate)


def test_utilisation_and_peak_memory_are_told_where_there_is_an_accelerator() -> None:
    """One decoder parameter and no attention: 6 operations a token, by two devices of 100 a second, in 0.75 s."""
    clock = FakeClock()
    engine = TickingEngine(clock, world_size=2)
    size = mfu.ModelSize(decoder_parameters=1, head_parameters=0, num_layers=0, attention_width=0)
    engine.accelerator = mfu.Accelerator(peak_flops=100.0, size=size, peak_memory=lambda: (700, 900))
    header, parts = step_of(1)
    learned = learner.Learner(engine=engine, spec=make_spec(), clock=clock).learn(header, parts)
    num_tokens = len(parts[0].tokens)
    assert learned.stats[Stat.MFU] == pytest.approx(6 * num_tokens / (0.75 * 2 * 100.0))
    assert learned.stats[Stat.PEAK_GPU_ALLOCATED_BYTES] == 700
    assert learned.stats[Stat.PEAK_GPU_RESERVED_BYTES] == 900


@pytest.mark.parametrize("chip", [None, mfu.Accelerator(peak_flops=None, size=None, peak_memory=lambda: (1, 2))])
def test_nothing_is_said_of_utilisation_where_the_peak_is_not_known(chip: mfu.Accelerator | None) -> None:
    engine = FakeEngine()
    engine.accelerator = chip
    learned = learner_of(engine).learn(*step_of(1))
    assert Stat.MFU not in learned.stats
    assert (Stat.PEAK_GPU_RESERVED_BYTES in learned.stats) is (chip is not None)
