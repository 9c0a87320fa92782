"""A policy loss of an installed package: a distribution on the path, its entry point, a step trained with it."""

import json
import pathlib
import sys
from collections.abc import Iterator, Sequence

import pytest
import torch
import transformers
import yaml

from rljob_api import errors, plugins
from rljob_api.manifest.loss import CorrectionSpec, LossSpec
from rljob_api.manifest.trainer import OptimizerSpec
from rljob_testing import examples, packages
from rljob_testing import trainer_makers as makers
from rljob_testing.clock import FakeClock
from rljob_testing.sections import section
from rljob_workers.cli import plan
from rljob_workers.local import prepare
from rljob_workers.trainer import __main__ as program
from rljob_workers.trainer import learner
from rljob_workers.trainer.algorithms import policy_losses
from rljob_workers.trainer.engine import schedule
from rljob_workers.trainer.model import attention, batch_tensors, logprobs, policy

CPU = torch.device("cpu")
# Large, so that the rounding of parameters is small alongside an update.
FULL_STEP = section(OptimizerSpec, learning_rate=1.0)
MODULE = """
    from rljob_workers.trainer.algorithms.policy_losses import TokenLosses, policy_loss

    @policy_loss(uses_proximal=False)
    def scaled(tokens, config):
        return TokenLosses(-config.config["scale"] * tokens.advantages * tokens.logprobs)

    @policy_loss()
    def summed(tokens, config):
        return TokenLosses((-tokens.advantages * tokens.logprobs).sum())

    def undecorated(tokens, config):
        return None
"""
ENTRY_POINTS = """
    [rljob.losses]
    scaled = scaled_losses:scaled
    summed = scaled_losses:summed
    undecorated = scaled_losses:undecorated
    broken = a_module_that_is_not_there:loss
"""


@pytest.fixture
def site(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[pathlib.Path]:
    folder = tmp_path / "site"
    folder.mkdir()
    packages.install(folder, "scaled_losses", entry_points=ENTRY_POINTS, module=MODULE)
    monkeypatch.syspath_prepend(folder)
    yield folder
    sys.modules.pop("scaled_losses", None)
    plugins.load.cache_clear()


def custom(name: str, **options: object) -> LossSpec:
    return section(
        LossSpec, type="custom", name=name, config=options, constant_denominator=8.0, rollout_correction=None
    )


class TinyEngine:
    """The real model and attention; plain gradient descent, so that an update is the gradient itself."""

    def __init__(self, folder: pathlib.Path) -> None:
        transformers.AttentionInterface.register(attention.NAME, attention.packed_attention)
        lm = transformers.AutoModelForCausalLM.from_pretrained(folder, attn_implementation=attention.NAME)
        self.policy = policy.Policy(lm.train(), temperature=1.0, chunk_tokens=1024)
        self.world_size, self.device, self.accelerator = 1, CPU, None
        self.num_scores = 0

    def forward(self, tensors: batch_tensors.BatchTensors) -> tuple[torch.Tensor, torch.Tensor]:
        scored, entropies, _ = self.policy(*tensors.inputs)
        return scored, entropies

    def forward_taught(
        self, tensors: batch_tensors.BatchTensors, lesson: logprobs.Likeliest
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        raise AssertionError(f"nothing teaches update {tensors.update} {lesson.ids.shape}")

    def score(self, tensors: batch_tensors.BatchTensors) -> torch.Tensor:
        self.num_scores += 1
        with torch.no_grad():
            return self.forward(tensors)[0]

    def backward(self, loss: torch.Tensor) -> None:
        loss.backward()

    def step(self, learning_rate: float) -> schedule.StepOutcome:
        with torch.no_grad():
            for parameter in self.policy.parameters():
                if parameter.grad is not None:
                    parameter -= learning_rate * parameter.grad
                    parameter.grad = None
        return schedule.StepOutcome(grad_norm=1.0, applied=True)

    def total(self, values: Sequence[float]) -> list[float]:
        return list(values)

    def largest(self, values: Sequence[float]) -> list[float]:
        return list(values)


def trained(folder: pathlib.Path, loss: LossSpec, *, minibatches: int = 1) -> tuple[TinyEngine, torch.Tensor]:
    """Return the engine after one step, and how far its parameters moved."""
    engine = TinyEngine(folder)
    before = torch.nn.utils.parameters_to_vector(engine.policy.parameters()).detach().clone()
    config = makers.make_trainer_config(folder, loss=loss, minibatches=minibatches, optimizer=FULL_STEP)
    groups = [makers.make_rows(groups=1, size=3, seed=update) for update in range(minibatches)]
    header = makers.make_header(step=1, minibatches=[makers.minibatch_of(group) for group in groups])
    parts = [makers.pack(group, shared=True, update=update) for update, group in enumerate(groups)]
    learner.Learner(engine=engine, spec=config.spec, clock=FakeClock()).learn(header, parts)
    return engine, torch.nn.utils.parameters_to_vector(engine.policy.parameters()).detach() - before


@pytest.mark.usefixtures("site")
def test_a_loss_of_an_installed_package_trains_a_step_with_its_options(tiny_model: pathlib.Path) -> None:
    plain = section(LossSpec, type="reinforce", constant_denominator=8.0, rollout_correction=None)
    _, expected = trained(tiny_model, plain)
    _, moved = trained(tiny_model, custom("scaled", scale=3.0))
    assert float(expected.abs().max()) > 0
    assert torch.allclose(moved, 3.0 * expected, rtol=1e-3, atol=1e-6)


@pytest.mark.usefixtures("site")
def test_a_loss_without_a_proximal_policy_costs_no_forward_for_one(tiny_model: pathlib.Path) -> None:
    engine, _ = trained(tiny_model, custom("scaled", scale=1.0), minibatches=2)
    assert engine.num_scores == 0
    engine, _ = trained(tiny_model, section(LossSpec, constant_denominator=8.0), minibatches=2)
    assert engine.num_scores == 2


@pytest.mark.usefixtures("site")
def test_a_loss_must_give_one_number_per_token(tiny_model: pathlib.Path) -> None:
    with pytest.raises(errors.RLJobError, match=r"policy loss summed returned losses of shape \[\] for \d+ tokens"):
        trained(tiny_model, custom("summed"))


@pytest.mark.usefixtures("site")
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("absent", r"'absent', but no package .* installed: broken, scaled, summed, undecorated\. Install the package"),
        ("undecorated", r"'undecorated', but its entry point is function and not a function with the decorator"),
        ("broken", r"'broken', but a_module_that_is_not_there:loss cannot be imported: ModuleNotFoundError"),
    ],
)
def test_a_loss_that_cannot_be_used_is_refused_by_name(name: str, message: str) -> None:
    with pytest.raises(errors.ManifestError, match=rf"spec\.algorithm\.loss\.name is {message}"):
        policy_losses.find(custom(name))


def test_a_loss_that_two_packages_declare_is_refused(site: pathlib.Path) -> None:
    packages.install(site, "other_losses", entry_points="[rljob.losses]\nscaled = other_losses:scaled\n")
    with pytest.raises(errors.ManifestError, match="several packages declare it .*: other_losses, scaled_losses"):
        policy_losses.find(custom("scaled"))


@pytest.mark.usefixtures("site")
def test_weights_normalised_over_the_step_need_a_proximal_policy() -> None:
    normalised = section(CorrectionSpec, batch_normalize=True)
    config = custom("scaled", scale=1.0).model_copy(update={"rollout_correction": normalised})
    with pytest.raises(errors.ManifestError, match="batchNormalize is true, but loss 'scaled' has no proximal policy"):
        policy_losses.find(config)


def test_the_trainers_check_refuses_a_loss_that_is_not_installed(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = makers.make_trainer_config(tmp_path, loss=custom("absent"))
    path = tmp_path / "trainer.json"
    path.write_text(json.dumps(config.model_dump(mode="json")))
    assert program.main(["--config", str(path), "--check"]) == 2
    assert "spec.algorithm.loss.name is 'absent', but no package" in capsys.readouterr().err


def _manifest(folder: pathlib.Path, loss: str) -> pathlib.Path:
    path = folder / "job.yaml"
    example = examples.EXAMPLES / "addition-cpu.yaml"
    manifest = yaml.safe_load(example.read_text())
    manifest["spec"]["algorithm"]["loss"] = yaml.safe_load(loss)
    path.write_text(json.dumps(manifest))
    return path


@pytest.mark.usefixtures("site")
def test_the_manifests_name_and_options_reach_the_trainer(tmp_path: pathlib.Path) -> None:
    manifest = prepare.read_manifest(_manifest(tmp_path, "{type: custom, name: scaled, config: {scale: 3}}"))
    resolved = prepare.resolve_here(manifest, run_dir=tmp_path / "run", uid="uid").trainer.spec.algorithm.loss
    assert (resolved.type, resolved.name, resolved.config) == ("custom", "scaled", {"scale": 3})
    assert policy_losses.find(resolved).uses_proximal is False


def test_a_loss_that_is_not_installed_is_refused_when_the_manifest_is_planned(tmp_path: pathlib.Path) -> None:
    path = _manifest(tmp_path, "{type: custom, name: absent}")
    with pytest.raises(errors.ManifestError, match=r"spec\.algorithm\.loss\.name is 'absent', but no package"):
        plan.plan(path, as_json=True)


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        ("{type: custom}", "loss.name"),
        ("{type: ppo, name: scaled}", "loss.name is 'scaled'"),
        ("{type: ppo, config: {scale: 1}}", "loss.config"),
    ],
)
def test_a_name_and_options_are_for_custom_losses(loss: str, message: str, tmp_path: pathlib.Path) -> None:
    with pytest.raises(errors.ManifestError, match=message):
        plan.plan(_manifest(tmp_path, loss), as_json=True)
