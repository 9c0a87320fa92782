"""The real DeepSpeed engine on one rank, every ZeRO stage, against PyTorch's AdamW on a plain model."""

import math
import pathlib
from collections.abc import Callable, Sequence

import peft
import pytest
import torch
import transformers

from rljob_api import errors, process_config
from rljob_api.manifest.model import LoraSpec
from rljob_api.manifest.trainer import OptimizerSpec
from rljob_testing import local_weights, model_families
from rljob_testing import trainer_makers as makers
from rljob_testing.clock import FakeClock
from rljob_testing.sections import section, with_spec
from rljob_workers.models import families
from rljob_workers.trainer import learner
from rljob_workers.trainer.engine import deepspeed, schedule
from rljob_workers.trainer.model import adapters, batch_tensors, selftest
from rljob_workers.trainer.model import reference as references
from rljob_workers.trainer.state import export
from rljob_workers.weights import adapter as adapter_layouts
from rljob_workers.weights import image, initial

pytestmark = [
    pytest.mark.usefixtures("one_rank"),
    # DeepSpeed's own use of names that PyTorch is about to change.
    pytest.mark.filterwarnings("ignore"),
]
CPU = torch.device("cpu")
OPTIMIZER = section(OptimizerSpec, learning_rate=0.01, weight_decay=0.1, max_grad_norm=0.5)
PART = batch_tensors.to_tensors(makers.pack(makers.make_rows(groups=2, size=3), shared=True), CPU)
STAGES = [0, 1, 2, 3]
Build = Callable[[int, str], deepspeed.Engine]


@pytest.fixture
def build(tiny_models: dict[str, pathlib.Path], tmp_path: pathlib.Path) -> Build:
    def made(stage: int, dtype: str) -> deepspeed.Engine:
        config = makers.make_trainer_config(tmp_path, dtype=dtype, optimizer=OPTIMIZER, zero_stage=stage)
        return deepspeed.Engine(config, tiny_models[dtype], CPU)

    return made


def loss_of(logprobs: torch.Tensor) -> torch.Tensor:
    return (logprobs * PART.advantages).sum() / 7


def update(built: deepspeed.Engine, *, factor: float = 1.0, parts: int = 1) -> schedule.StepOutcome:
    for _ in range(parts):
        logprobs, _ = built.forward(PART)
        built.backward(loss_of(logprobs) * factor / parts)
    return built.step(OPTIMIZER.learning_rate)


def weights_of(built: deepspeed.Engine, names: list[str]) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = {}
    built.visit(names, lambda name, tensor: found.update({name: tensor.clone().float()}))
    return found


def reference(model_dir: pathlib.Path, steps: int) -> tuple[dict[str, torch.Tensor], list[float]]:
    model = transformers.AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
    norms = train_plainly(model, steps)
    return {name: value.detach() for name, value in model.named_parameters()}, norms


def train_plainly(model: torch.nn.Module, steps: int) -> list[float]:
    """Train what is not frozen, rows one by one through Hugging Face's own attention, by torch's AdamW with clipping.
    Return the norms.
    """
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(
        trained,
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
        norms.append(float(torch.nn.utils.clip_grad_norm_(trained, OPTIMIZER.max_grad_norm)))
        optimizer.step()
    return norms


@pytest.mark.covers("algorithms 8")
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


@pytest.mark.covers("algorithms 8")
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


@pytest.mark.covers("algorithms 8")
@pytest.mark.parametrize("stage", STAGES)
def test_an_update_far_below_a_step_of_bf16_moves_the_weights_that_are_served(
    build: Build, stage: int, tiny_models: dict[str, pathlib.Path]
) -> None:
    """A rate of 1e-5 where steps are 1e-4 to 1e-3: none would move if masters began as copies. At first they do not."""
    files = transformers.AutoModelForCausalLM.from_pretrained(tiny_models["bfloat16"], dtype=torch.bfloat16)
    begin = {name: value.detach().float() for name, value in files.named_parameters()}
    built = build(stage, "bfloat16")
    found = weights_of(built, list(begin))
    assert all(torch.equal(found[name], begin[name]) for name in begin)
    built.backward(loss_of(built.forward(PART)[0]))
    assert built.step(1e-5).applied
    large, moved = 0, 0
    for name, value in weights_of(built, list(begin)).items():
        coarse = begin[name].abs() > 0.01
        large, moved = large + int(coarse.sum()), moved + int(((value != begin[name]) & coarse).sum())
    assert 0.005 < moved / large < 0.2


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_run_may_end_with_the_mean_of_its_last_weights_also_after_a_restart(
    build: Build, stage: int, dtype: str, tmp_path: pathlib.Path
) -> None:
    built = build(stage, dtype)
    names = [name for name in transformers_names(built) if not name.endswith("inv_freq")]
    update(built)
    seen = []
    for number in range(3):
        update(built)
        built.add_to_average(first=number == 0)
        seen.append(weights_of(built, names))
        if number == 1:
            built.save(tmp_path / "saved")
            built = build(stage, dtype)
            built.load(tmp_path / "saved")
    assert learner.end_with_average(built).applied
    # A weight in bfloat16 is rounded by 2^-8 of it at most: each of the three, and their mean.
    share = 1e-6 if dtype == "float32" else 2.0**-7
    for name, value in weights_of(built, names).items():
        three = torch.stack([weights[name] for weights in seen])
        assert bool(((value - three.mean(0)).abs() <= share * three.abs().amax(0) + 1e-7).all()), name
        assert not torch.equal(value, seen[-1][name]), name
    before = weights_of(built, names)
    assert update(built).applied
    assert any(not torch.equal(value, before[name]) for name, value in weights_of(built, names).items())


@pytest.mark.covers("algorithms 8")
@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_non_finite_norm_leaves_everything_as_it_was(build: Build, stage: int, dtype: str) -> None:
    disturbed, smooth = build(stage, dtype), build(stage, dtype)
    names = transformers_names(disturbed)
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


def transformers_names(built: deepspeed.Engine) -> list[str]:
    return [name for name in built._policy.named_tensors() if name != "lm_head.weight"]


@pytest.mark.covers("algorithms 10")
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
    names = transformers_names(straight)
    for built in (straight, loaded):
        update(built)
    expected, found = weights_of(straight, names), weights_of(loaded, names)
    assert all(torch.equal(expected[name], found[name]) for name in names)


@pytest.mark.parametrize("stage", STAGES)
def test_a_loaded_checkpoint_goes_on_with_the_manifest_s_own_weight_decay(
    build: Build, stage: int, tiny_models: dict[str, pathlib.Path], tmp_path: pathlib.Path
) -> None:
    wrote = build(stage, "float32")
    update(wrote)
    (tmp_path / "saved").mkdir()
    wrote.save(tmp_path / "saved")
    decay = section(OptimizerSpec, learning_rate=0.01, weight_decay=20.0, max_grad_norm=0.5)
    config = makers.make_trainer_config(tmp_path, optimizer=decay, zero_stage=stage)
    loaded = deepspeed.Engine(config, tiny_models["float32"], CPU)
    loaded.load(tmp_path / "saved")
    # AdamW first takes learning rate x decay of each weight: 0.1 % with the decay that was saved, 20 % with this one.
    name = "model.norm.weight"
    before = weights_of(loaded, [name])[name]
    update(loaded)
    after = weights_of(loaded, [name])[name]
    assert float((after / before).mean()) == pytest.approx(0.8, abs=0.05)


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


class Ranks:
    """This process alone, and what it was asked to agree on."""

    def largest(self, values: Sequence[float]) -> list[float]:
        return list(values)


@pytest.mark.parametrize("stage", [0, 2, 3])
@pytest.mark.parametrize("family", ["qwen3_moe", "gemma3_text"])
def test_the_self_test_and_the_export_hold_at_every_stage_and_training_goes_on(
    stage: int, family: str, tmp_path: pathlib.Path
) -> None:
    folder = model_families.save(family, tmp_path / "model")
    built = deepspeed.Engine(makers.make_trainer_config(tmp_path, zero_stage=stage), folder, CPU)
    for _ in range(2):
        selftest.check(built, Ranks(), device=CPU, longest=40, field="spec.model.name", name="tiny", clock=FakeClock())
        assert update(built).applied
    layout, version, _ = local_weights.initial_version(folder, "job", "float32")
    untouched = deepspeed.Engine(makers.make_trainer_config(tmp_path, zero_stage=stage), folder, CPU)
    untouched.check_files(layout)
    exporter = export.ImageExporter(layout=layout, visit=untouched.visit, writes=True)
    assert image.state_hash(layout, image.digests(exporter.export(), layout)) == version.state_hash


@pytest.mark.parametrize("stage", [0, 3])
def test_a_model_whose_layers_carry_state_along_is_refused_at_every_stage(
    stage: int, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = model_families.save("lfm2", tmp_path / "model")
    config = makers.make_trainer_config(tmp_path, zero_stage=stage)
    with pytest.raises(errors.ManifestError, match="layers of kind conv"):
        deepspeed.Engine(config, folder, CPU)
    monkeypatch.setattr(families, "refusals", lambda _config, *, longest: [])
    built = deepspeed.Engine(config, folder, CPU)
    with pytest.raises(errors.ManifestError, match="class Lfm2ForCausalLM gives packed rows other"):
        selftest.check(built, Ranks(), device=CPU, longest=40, field="spec.model.name", name="tiny", clock=FakeClock())


# The frozen reference model alongside the engine, here because DeepSpeed takes one process group per process.


def with_reference(config: process_config.TrainerConfig, folder: pathlib.Path) -> process_config.TrainerConfig:
    model = process_config.ModelFiles(name=str(folder), path=str(folder), cache_dir=str(folder))
    changed = with_spec(config, {"model.reference": {"name": str(folder)}})
    return changed.model_copy(update={"reference": model})


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("stage", [0, 3])
def test_the_reference_scores_as_the_policy_did_before_it_moved_and_never_moves(
    tiny_models: dict[str, pathlib.Path], tmp_path: pathlib.Path, stage: int, dtype: str
) -> None:
    folder = tiny_models[dtype]
    config = with_reference(makers.make_trainer_config(tmp_path, dtype=dtype, zero_stage=stage), folder)
    built = deepspeed.Engine(config, folder, CPU)
    frozen = references.load(config, CPU, place=deepspeed.place_frozen(config, CPU))
    assert frozen is not None
    before = built.score(PART)
    assert torch.equal(frozen.score(PART), before)
    logprobs, _ = built.forward(PART)
    built.backward(-logprobs.sum())
    assert built.step(0.01).applied
    assert not torch.equal(built.score(PART), before)
    assert torch.equal(frozen.score(PART), before)


# An adapter, here for the same reason.


@pytest.fixture
def build_adapted(tiny_models: dict[str, pathlib.Path], tmp_path: pathlib.Path) -> Build:
    def made(stage: int, dtype: str) -> deepspeed.Engine:
        changes = {"model.lora": {"rank": 4}}
        config = makers.make_trainer_config(tmp_path, changes, dtype=dtype, optimizer=OPTIMIZER, zero_stage=stage)
        first = initial.of_job(config.spec, tiny_models[dtype])
        assert config.spec.model.lora is not None
        adapter = adapters.Adapter(
            lora=config.spec.model.lora, layout=first.layout, values=export.views(first.layout, first.image())
        )
        built = deepspeed.Engine(config, tiny_models[dtype], CPU, adapter=adapter)
        built.check_files(first.layout)
        return built

    return made


def adapter_of(built: deepspeed.Engine, tiny_model: pathlib.Path) -> dict[str, torch.Tensor]:
    lora = section(LoraSpec, rank=4)
    layout = adapter_layouts.layout_of(tiny_model, lora, dtype="float32", name="tiny")
    return weights_of(built, [tensor.name for tensor in layout.tensors])


@pytest.mark.parametrize("stage", STAGES)
def test_an_adapter_is_trained_as_adamw_trains_it_and_the_model_without_it_never_moves(
    build_adapted: Build, stage: int, tiny_models: dict[str, pathlib.Path]
) -> None:
    built, whole = build_adapted(stage, "float32"), build_adapted(0, "float32")
    first = built.score(PART)
    # B is zero: the adapter changes nothing yet.
    torch.testing.assert_close(built.score_without_adapter(PART), first, rtol=0, atol=0)
    for one in (built, whole):
        assert all(update(one).applied for _ in range(3))
    assert float((built.score(PART) - first).abs().max()) > 1e-3
    torch.testing.assert_close(built.score_without_adapter(PART), first, rtol=0, atol=0)
    expected = expected_adapter(tiny_models["float32"], 3)
    for name, value in adapter_of(built, tiny_models["float32"]).items():
        torch.testing.assert_close(value, expected[name], rtol=1e-3, atol=1e-4, msg=name)


def expected_adapter(model_dir: pathlib.Path, steps: int) -> dict[str, torch.Tensor]:
    """PEFT's own model."""
    base = transformers.AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
    spec = makers.make_trainer_config(model_dir, {"model.lora": {"rank": 4}}).spec
    first = initial.of_job(spec, model_dir)
    model = peft.get_peft_model(base, peft.LoraConfig(r=4, lora_alpha=8, target_modules="all-linear"))
    peft.set_peft_model_state_dict(model, dict(export.views(first.layout, first.image())))
    train_plainly(model, steps)
    return peft.get_peft_model_state_dict(model)


@pytest.mark.parametrize(("stage", "dtype"), [(0, "bfloat16"), (2, "bfloat16"), (3, "float32")])
def test_a_checkpoint_of_an_adapter_holds_no_weight_of_the_model_and_continues_exactly(
    build_adapted: Build, stage: int, dtype: str, tmp_path: pathlib.Path, tiny_models: dict[str, pathlib.Path]
) -> None:
    straight = build_adapted(stage, dtype)
    assert update(straight).applied
    straight.save(tmp_path / "state")
    assert update(straight).applied
    resumed = build_adapted(stage, dtype)
    resumed.load(tmp_path / "state")
    assert update(resumed).applied
    wanted, found = (adapter_of(one, tiny_models[dtype]) for one in (straight, resumed))
    assert all(torch.equal(found[name], value) for name, value in wanted.items())
    saved = sum(path.stat().st_size for path in (tmp_path / "state").rglob("*.pt"))
    num_trained = sum(value.numel() for value in wanted.values())
    # At most weights, masters, two moments and what torch writes around each tensor.
    assert saved < 16 * num_trained + 120_000


def test_a_reference_that_is_missing_is_named_by_its_field(tmp_path: pathlib.Path) -> None:
    config = with_reference(makers.make_trainer_config(tmp_path), tmp_path / "nowhere")
    with pytest.raises(errors.ManifestError, match=r"spec\.model\.reference\.name"):
        references.load(config, CPU, place=deepspeed.place_frozen(config, CPU))


def with_teacher(config: process_config.TrainerConfig, folder: pathlib.Path) -> process_config.TrainerConfig:
    model = process_config.ModelFiles(name="better", path=str(folder), cache_dir=str(folder))
    return config.model_copy(update={"teacher": model})


def test_a_teacher_scores_every_token_with_its_own_weights_which_never_move(
    tiny_models: dict[str, pathlib.Path], tmp_path: pathlib.Path
) -> None:
    policy_dir, teacher_dir = tiny_models["float32"], makers.make_tiny_model(tmp_path, seed=1)
    config = with_teacher(makers.make_trainer_config(tmp_path, model_dir=policy_dir), teacher_dir)
    built = deepspeed.Engine(config, policy_dir, CPU)
    frozen = references.load_teacher(config, policy_dir, CPU, place=deepspeed.place_frozen(config, CPU))
    assert frozen is not None
    expected = deepspeed.Engine(config, teacher_dir, CPU).score(PART)
    assert torch.equal(frozen.score(PART), expected)
    logprobs, _ = built.forward(PART)
    built.backward(-logprobs.sum())
    assert built.step(0.01).applied
    assert torch.equal(frozen.score(PART), expected)


def test_a_teacher_that_is_missing_or_reads_other_tokens_is_named_by_its_field(
    tiny_models: dict[str, pathlib.Path], tmp_path: pathlib.Path
) -> None:
    policy_dir, place = tiny_models["float32"], deepspeed.place_frozen(makers.make_trainer_config(tmp_path), CPU)
    config = makers.make_trainer_config(tmp_path, model_dir=policy_dir)
    with pytest.raises(errors.ManifestError, match=r"spec\.teacher\.model is 'better', but there is no folder"):
        references.load_teacher(with_teacher(config, tmp_path / "nowhere"), policy_dir, CPU, place=place)
    other = makers.make_tiny_model(tmp_path / "other", seed=1)
    (other / "tokenizer.json").write_text('{"model": {"vocab": {"a": 0}}}', encoding="utf-8")
    with pytest.raises(errors.ManifestError, match=r"spec\.teacher\.model is 'better', but .* has no tokenizer\.json"):
        references.load_teacher(with_teacher(config, other), policy_dir, CPU, place=place)


# The critic, here for the same reason.

VALUED = batch_tensors.to_tensors(makers.pack(makers.make_rows(groups=2, size=3, turns=True), shared=False), CPU)


@pytest.fixture
def build_critic(tiny_models: dict[str, pathlib.Path], tmp_path: pathlib.Path) -> Callable[..., deepspeed.CriticEngine]:
    def made(stage: int, dtype: str = "float32") -> deepspeed.CriticEngine:
        config = makers.make_trainer_config(tmp_path, dtype=dtype, optimizer=OPTIMIZER, zero_stage=stage)
        return deepspeed.CriticEngine(config, tiny_models[dtype], CPU)

    return made


def learn_values(built: deepspeed.CriticEngine, wanted: torch.Tensor, *, rate: float = 0.003) -> float:
    values, ends = built.values(VALUED)
    loss = (values - wanted).square().mean()
    built.backward(loss + ends.sum() * 0.0)
    assert built.step(rate).applied
    return float(loss.detach())


@pytest.mark.covers("algorithms 7")
@pytest.mark.parametrize(("stage", "dtype"), [(0, "float32"), (2, "bfloat16"), (3, "float32")])
def test_the_critic_learns_the_returns(
    build_critic: Callable[..., deepspeed.CriticEngine], stage: int, dtype: str
) -> None:
    built, wanted = build_critic(stage, dtype), torch.linspace(-1.0, 1.0, len(VALUED.targets))
    first = learn_values(built, wanted)
    assert first == pytest.approx(float(wanted.square().mean())), "before anything was learned every value is 0"
    losses = [learn_values(built, wanted) for _ in range(20)]
    assert losses[-1] < first / 2


def test_values_are_of_the_state_before_a_token_and_after_the_row(
    build_critic: Callable[..., deepspeed.CriticEngine], tiny_models: dict[str, pathlib.Path]
) -> None:
    """Against Hugging Face's own attention, row by row, with the head's weights of a trained critic."""
    built = build_critic(0)
    for _ in range(3):
        learn_values(built, torch.ones(len(VALUED.targets)))
    module = built._engine.module
    plain = transformers.AutoModelForCausalLM.from_pretrained(tiny_models["float32"], dtype=torch.float32).base_model
    plain.load_state_dict(module.decoder.state_dict())
    before, after = [], []
    with torch.no_grad():
        for group in makers.make_rows(groups=2, size=3, turns=True):
            for row in group:
                states = plain(input_ids=torch.tensor([row.tokens])).last_hidden_state[0]
                values = states @ module.head.weight + module.head.bias
                before += [float(values[target - 1]) for target in row.targets]
                after.append(float(values[-1]))
        tokens, ends = built.values(VALUED)
    assert tokens.tolist() == pytest.approx(before, rel=1e-4, abs=1e-5)
    assert ends.tolist() == pytest.approx(after, rel=1e-4, abs=1e-5)


@pytest.mark.covers("algorithms 10")
@pytest.mark.parametrize("stage", [0, 2])
def test_a_loaded_critic_goes_on_like_the_one_that_wrote_it(
    build_critic: Callable[..., deepspeed.CriticEngine], stage: int, tmp_path: pathlib.Path
) -> None:
    wanted = torch.linspace(-1.0, 1.0, len(VALUED.targets))
    straight = build_critic(stage)
    for _ in range(2):
        learn_values(straight, wanted)
    (tmp_path / "saved").mkdir()
    straight.save(tmp_path / "saved")
    loaded = build_critic(stage)
    loaded.load(tmp_path / "saved")
    for built in (straight, loaded):
        learn_values(built, wanted)
    assert torch.equal(straight.values(VALUED)[0], loaded.values(VALUED)[0])


def test_a_policy_and_its_critic_train_side_by_side(
    build: Build, build_critic: Callable[..., deepspeed.CriticEngine]
) -> None:
    """Each moves as it does alone: two DeepSpeed engines in one process share nothing."""
    alone, beside = build(2, "float32"), build(2, "float32")
    valued, wanted = build_critic(2), torch.ones(len(VALUED.targets))
    for _ in range(2):
        update(alone)
    for _ in range(2):
        logprobs, _ = beside.forward(PART)
        beside.backward(loss_of(logprobs))
        learn_values(valued, wanted)
        beside.step(OPTIMIZER.learning_rate)
    names = transformers_names(alone)
    expected, found = weights_of(alone, names), weights_of(beside, names)
    assert all(torch.equal(expected[name], found[name]) for name in names)
