"""DeepSpeed's Muon on one rank against torch.optim.Muon and AdamW on a plain model, and across a checkpoint."""

import pathlib

import pytest
import torch
import transformers
from deepspeed.utils import safe_get_full_fp32_param

from rljob_api.manifest.trainer import MuonSpec, OptimizerSpec
from rljob_testing import trainer_makers as makers
from rljob_testing.sections import section
from rljob_workers.trainer.engine import deepspeed, schedule
from rljob_workers.trainer.model import batch_tensors

pytestmark = [
    pytest.mark.usefixtures("one_rank"),
    # DeepSpeed's own use of names that PyTorch is about to change.
    pytest.mark.filterwarnings("ignore"),
]
CPU = torch.device("cpu")
RATE = 0.01
OPTIMIZER = section(
    OptimizerSpec,
    type="Muon",
    muon=section(MuonSpec, learning_rate=0.02, momentum=0.9),
    learning_rate=RATE,
    weight_decay=0.1,
    max_grad_norm=0.5,
)
PART = batch_tensors.to_tensors(makers.pack(makers.make_rows(groups=2, size=3), shared=True), CPU)
STAGES = [0, 1]


def build(stage: int, tmp_path: pathlib.Path, models: dict[str, pathlib.Path]) -> deepspeed.Engine:
    config = makers.make_trainer_config(tmp_path, dtype="bfloat16", optimizer=OPTIMIZER, zero_stage=stage)
    return deepspeed.Engine(config, models["bfloat16"], CPU)


def update(built: deepspeed.Engine, *, factor: float = 1.0) -> schedule.StepOutcome:
    logprobs, _ = built.forward(PART)
    built.backward((logprobs * PART.advantages).sum() / 7 * factor)
    return built.step(RATE)


def weights_of(built: deepspeed.Engine, names: list[str]) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = {}
    built.visit(names, lambda name, tensor: found.update({name: tensor.clone().float()}))
    return found


def masters_of(built: deepspeed.Engine) -> dict[str, torch.Tensor]:
    """Return copies of the fp32 masters by the names of the files: what is served is rounded, to 1/128 near 1."""
    whole = built._whole_masters() if built._stage == 0 else {}
    masters = (
        (name, whole[id(weight)] if whole else safe_get_full_fp32_param(weight))
        for name, weight in built._policy.lm.named_parameters()
    )
    return {name: master.detach().clone() for name, master in masters}


def is_matrix_of_a_layer(name: str, weight: torch.Tensor) -> bool:
    return weight.ndim == 2 and "embed" not in name and "lm_head" not in name


def cosine(one: torch.Tensor, other: torch.Tensor) -> float:
    return float(torch.nn.functional.cosine_similarity(one, other, dim=0))


def trained_plainly(model_dir: pathlib.Path, steps: int) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Return the weights before and after: fp32, rows one by one, PyTorch's optimizers, the norm of all clipped."""
    model = transformers.AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
    named = dict(model.named_parameters())
    before = {name: weight.detach().clone() for name, weight in named.items()}
    matrices = [weight for name, weight in named.items() if is_matrix_of_a_layer(name, weight)]
    others = [weight for name, weight in named.items() if not is_matrix_of_a_layer(name, weight)]
    muon = torch.optim.Muon(matrices, lr=0.02, weight_decay=0.1, momentum=0.9)
    adam = torch.optim.AdamW(others, lr=RATE, betas=OPTIMIZER.betas, eps=OPTIMIZER.eps, weight_decay=0.1)
    for _ in range(steps):
        model.zero_grad()
        total = torch.zeros(())
        for row in (row for group in makers.make_rows(groups=2, size=3) for row in group):
            log_probs = torch.log_softmax(model(input_ids=torch.tensor([row.tokens])).logits[0], dim=-1)
            for target, advantage in zip(row.targets, row.advantages, strict=True):
                total = total + log_probs[target - 1, row.tokens[target]] * advantage / 7
        total.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), OPTIMIZER.max_grad_norm)
        muon.step()
        adam.step()
    return before, {name: weight.detach() for name, weight in named.items()}


@pytest.mark.covers("algorithms 8")
@pytest.mark.parametrize("stage", STAGES)
def test_layers_move_as_torchs_muon_moves_them_and_the_rest_as_adamw(
    stage: int, tmp_path: pathlib.Path, tiny_models: dict[str, pathlib.Path]
) -> None:
    before, expected = trained_plainly(tiny_models["bfloat16"], 3)
    built = build(stage, tmp_path, tiny_models)
    began = masters_of(built)
    for _ in range(3):
        assert update(built).applied
    moved = {name: (master - began[name]).flatten() for name, master in masters_of(built).items()}
    should = {name: (expected[name] - before[name]).flatten() for name in moved}
    others = [name for name in moved if not is_matrix_of_a_layer(name, expected[name])]
    assert len(moved) > len(others) > 0
    for name in others:
        # Of the few weights of a norm, one whose gradient is near 0 may go the other way in bf16: 1/16 of the cosine.
        assert cosine(moved[name], should[name]) > 0.9, name
    for ways in (moved, should):
        ways["others"] = torch.cat([ways.pop(name) for name in others])
    for name, way in moved.items():
        # Forwards in bf16 turn a direction by a few degrees.
        assert cosine(way, should[name]) > 0.975, name
        assert float(way.norm()) == pytest.approx(float(should[name].norm()), rel=0.05), name


@pytest.mark.covers("algorithms 8", "algorithms 9")
@pytest.mark.parametrize("stage", STAGES)
def test_an_update_that_is_not_finite_changes_nothing_and_a_resumed_run_moves_as_one_that_was_not_interrupted(
    stage: int, tmp_path: pathlib.Path, tiny_models: dict[str, pathlib.Path]
) -> None:
    whole, names = build(stage, tmp_path, tiny_models), list(trained_plainly(tiny_models["bfloat16"], 0)[0])
    update(whole)
    before = weights_of(whole, names)
    assert not update(whole, factor=float("nan")).applied
    assert all(torch.equal(value, before[name]) for name, value in weights_of(whole, names).items())
    whole.save(tmp_path / "state")
    assert update(whole).applied, "the momentum is finite"
    resumed = build(stage, tmp_path, tiny_models)
    resumed.load(tmp_path / "state")
    update(resumed)
    expected = weights_of(whole, names)
    assert all(torch.equal(value, expected[name]) for name, value in weights_of(resumed, names).items())
    assert not any(torch.equal(expected[name], before[name]) for name in names)
