"""The frozen reference model beside the real engine."""

import pathlib

import pytest
import torch

from rljob_api import errors, roles
from rljob_testing import trainer_makers as makers
from rljob_workers.trainer import batch, engine, reference

pytestmark = [
    pytest.mark.usefixtures("one_rank"),
    # DeepSpeed's own use of names that PyTorch is about to change.
    pytest.mark.filterwarnings("ignore"),
]
CPU = torch.device("cpu")
PART = batch.to_tensors(makers.pack(makers.make_rows(groups=2, size=3), shared=True), CPU)


def with_reference(config: roles.TrainerConfig, folder: pathlib.Path) -> roles.TrainerConfig:
    model = roles.ModelConfig(name=str(folder), path=str(folder), cache_dir=str(folder))
    return config.model_copy(update={"reference": model})


def test_the_reference_scores_as_the_policy_did_before_it_moved_and_never_moves(
    tiny_models: dict[str, pathlib.Path], tmp_path: pathlib.Path
) -> None:
    folder = tiny_models["float32"]
    config = with_reference(makers.make_trainer_config(tmp_path), folder)
    built, frozen = engine.Engine(config, folder, CPU), reference.load(config, CPU)
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
        reference.load(config, CPU)
