"""The real DeepSpeed engine on one rank, every ZeRO stage, against PyTorch's AdamW on a plain model."""

import math
import pathlib
from collections.abc import Callable

import pytest
import torch
import transformers

from rljob_api import errors, roles
from rljob_testing import trainer_makers as makers
from rljob_workers.trainer import batch, engine
from rljob_workers.trainer import reference as references

pytestmark = [
    pytest.mark.usefixtures("one_rank"),
    # DeepSpeed's own use of names that PyTorch is about to change.
    pytest.mark.filterwarnings("ignore"),
]
CPU = torch.device("cpu")
OPTIMIZER = roles.OptimizerConfig(learning_rate=0.01, weight_decay=0.1, max_grad_norm=0.5)
PART = batch.to_tensors(makers.pack(makers.make_rows(groups=2, size=3), shared=True), CPU)
STAGES = [0, 1, 2, 3]
Build = Callable[[int, str], engine.Engine]


@pytest.fixture
def build(tiny_models: dict[str, pathlib.Path], tmp_path: pathlib.Path) -> Build:
    def made(stage: int, dtype: str) -> engine.Engine:
        config = makers.make_trainer_config(
            tmp_path, dtype=dtype, optimizer=OPTIMIZER, deepspeed=roles.DeepSpeedConfig(zero_stage=stage)
        )
        return engine.Engine(config, tiny_models[dtype], CPU)

    return made


def loss_of(logprobs: torch.Tensor) -> torch.Tensor:
    return (logprobs * PART.advantages).sum() / 7


def update(built: engine.Engine, *, factor: float = 1.0, parts: int = 1) -> engine.StepOutcome:
    for _ in range(parts):
        logprobs, _ = built.forward(PART)
        built.backward(loss_of(logprobs) * factor / parts)
    return built.step(OPTIMIZER.learning_rate)


def weights_of(built: engine.Engine, names: list[str]) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = {}
    built.visit(names, lambda name, tensor: found.update({name: tensor.clone().float()}))
    return found


def reference(model_dir: pathlib.Path, steps: int) -> tuple[dict[str, torch.Tensor], list[float]]:
    """Rows one by one through Hugging Face's own attention, and torch's AdamW with clipping."""
    model = transformers.AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
    optimizer = torch.optim.AdamW(
        model.parameters(),
        lr=OPTIMIZER.learning_rate,
        betas=OPTIMIZER.betas,
        eps=OPTIMIZER.eps,
        weight_decay=OPTIMIZER.weight_decay,
    )
    norms = []
    for _ in range(steps):
        optimizer.zero_grad()
        total = torch.zeros(())
        for group in makers.make_rows(groups=2, size=3):
            for row in group:
                log_probs = torch.log_softmax(model(input_ids=torch.tensor([row.tokens])).logits[0], dim=-1)
                for target, advantage in zip(row.targets, row.advantages, strict=True):
                    total = total + log_probs[target - 1, row.tokens[target]] * advantage / 7
        total.backward()
        norms.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), OPTIMIZER.max_grad_norm)))
        optimizer.step()
    return {name: value.detach() for name, value in model.named_parameters()}, norms


@pytest.mark.parametrize("stage", STAGES)
def test_three_updates_equal_adamw_with_clipping(
    build: Build, stage: int, tiny_models: dict[str, pathlib.Path]
) -> None:
    expected, norms = reference(tiny_models["float32"], 3)
    built = build(stage, "float32")
    outcomes = [update(built, parts=2) for _ in range(3)]
    assert [outcome.grad_norm for outcome in outcomes] == pytest.approx(norms, rel=1e-4)
    for name, value in weights_of(built, list(expected)).items():
        torch.testing.assert_close(value, expected[name], rtol=1e-4, atol=2e-5, msg=name)


@pytest.mark.parametrize("stage", STAGES)
def test_bf16_trains_fp32_masters_and_stays_near_fp32(
    build: Build, stage: int, tiny_models: dict[str, pathlib.Path]
) -> None:
    expected, _ = reference(tiny_models["float32"], 3)
    built = build(stage, "bfloat16")
    for _ in range(3):
        assert update(built, parts=3).applied
    # Three updates of 0.01 each move a weight by at most 0.03; noise may turn a sign, not more.
    for name, value in weights_of(built, list(expected)).items():
        assert float((value - expected[name]).abs().mean()) < 0.006, name


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_non_finite_norm_leaves_everything_as_it_was(build: Build, stage: int, dtype: str) -> None:
    disturbed, smooth = build(stage, dtype), build(stage, dtype)
    names = [name for name, _ in transformers_names(disturbed)]
    for built in (disturbed, smooth):
        assert update(built).applied
    outcome = update(disturbed, factor=math.nan)
    assert not outcome.applied
    assert not math.isfinite(outcome.grad_norm)
    before, after = weights_of(smooth, names), weights_of(disturbed, names)
    assert all(torch.equal(before[name], after[name]) for name in names)
    # The moments too: the next update is the same.
    for built in (disturbed, smooth):
        assert update(built).applied
    before, after = weights_of(smooth, names), weights_of(disturbed, names)
    assert all(torch.equal(before[name], after[name]) for name in names)


def transformers_names(built: engine.Engine) -> list[tuple[str, torch.Tensor]]:
    return [(name, value) for name, value in built._policy.named_tensors().items() if name != "lm_head.weight"]


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_loaded_checkpoint_goes_on_like_the_one_that_wrote_it(
    build: Build, stage: int, dtype: str, tmp_path: pathlib.Path
) -> None:
    straight = build(stage, dtype)
    update(straight)
    update(straight)
    (tmp_path / "saved").mkdir()
    straight.save(tmp_path / "saved")
    loaded = build(stage, dtype)
    loaded.load(tmp_path / "saved")
    names = [name for name, _ in transformers_names(straight)]
    for built in (straight, loaded):
        update(built)
    expected, found = weights_of(straight, names), weights_of(loaded, names)
    assert all(torch.equal(expected[name], found[name]) for name in names)


def test_gradients_of_bf16_micro_batches_add_up_in_fp32(build: Build) -> None:
    built = build(0, "bfloat16")
    logprobs, _ = built.forward(PART)
    built.backward(loss_of(logprobs))
    gradients = [value.grad for value in built._policy.parameters()]
    assert all(gradient is not None and gradient.dtype is torch.float32 for gradient in gradients)


def test_scoring_without_gradient_gives_the_training_forward(build: Build) -> None:
    for stage in (0, 3):
        built = build(stage, "float32")
        scored = built.score(PART)
        assert not scored.requires_grad
        logprobs, _ = built.forward(PART)
        torch.testing.assert_close(scored, logprobs.detach(), rtol=1e-6, atol=1e-6)
        built.backward(loss_of(logprobs))
        assert built.step(0.01).applied


# The frozen reference model beside the engine, here because DeepSpeed takes one process group per process.


def with_reference(config: roles.TrainerConfig, folder: pathlib.Path) -> roles.TrainerConfig:
    model = roles.ModelConfig(name=str(folder), path=str(folder), cache_dir=str(folder))
    return config.model_copy(update={"reference": model})


def test_the_reference_scores_as_the_policy_did_before_it_moved_and_never_moves(
    tiny_models: dict[str, pathlib.Path], tmp_path: pathlib.Path
) -> None:
    folder = tiny_models["float32"]
    config = with_reference(makers.make_trainer_config(tmp_path), folder)
    built, frozen = engine.Engine(config, folder, CPU), references.load(config, CPU)
    assert frozen is not None
    before = built.score(PART)
    assert torch.equal(frozen.score(PART), before)
    logprobs, _ = built.forward(PART)
    built.backward(-logprobs.sum())
    assert built.step(0.01).applied
    assert not torch.equal(built.score(PART), before)
    assert torch.equal(frozen.score(PART), before)


def test_a_reference_that_is_missing_is_named_by_its_field(tmp_path: pathlib.Path) -> None:
    config = with_reference(makers.make_trainer_config(tmp_path), tmp_path / "nowhere")
    with pytest.raises(errors.ManifestError, match=r"spec\.model\.reference\.name"):
        references.load(config, CPU)
