"""An exported adapter: what PEFT makes of it, and what it is once it is added to the model."""

import pathlib

import numpy
import peft
import pytest
import torch
import transformers
from safetensors.torch import load_file

from rljob_api.manifest.model import LoraSpec
from rljob_testing import trainer_makers as makers
from rljob_testing.sections import make_spec, section
from rljob_workers.trainer.model import adapters, loading
from rljob_workers.trainer.state import adapter_folder, export
from rljob_workers.weights import initial

pytestmark = pytest.mark.filterwarnings("ignore")
LORA = section(LoraSpec, rank=4, alpha=12, targets=("q_proj", "down_proj"))


@pytest.fixture
def model(tmp_path: pathlib.Path) -> pathlib.Path:
    return makers.make_tiny_model(tmp_path / "model", dtype="bfloat16")


@pytest.fixture
def first(model: pathlib.Path) -> initial.Initial:
    return initial.of_job(make_spec({"model.dtype": "bfloat16", "model.lora": LORA}), model)


def trained(first: initial.Initial) -> dict[str, torch.Tensor]:
    """Return an adapter that was moved away from its first values."""
    torch.manual_seed(3)
    values = export.views(first.layout, first.image())
    return {name: tensor + 0.1 * torch.randn(tensor.shape).to(tensor.dtype) for name, tensor in values.items()}


def exported(model: pathlib.Path, first: initial.Initial, values: dict[str, torch.Tensor], to: pathlib.Path) -> None:
    exporter = export.AdapterExporter(
        layout=first.layout,
        visit=lambda names, receive: [receive(name, values[name]) for name in names] and None,
        writes=True,
        lora=LORA,
        base=str(model),
        dtype="bfloat16",
    )
    exporter.write_export(model, to)


def test_merged_weights_are_base_and_adapter_to_the_bit(
    model: pathlib.Path, first: initial.Initial, tmp_path: pathlib.Path
) -> None:
    values = trained(first)
    exported(model, first, values, tmp_path / "export")
    merged, base = (load_file(folder / "model.safetensors") for folder in (tmp_path / "export", model))
    assert set(merged) == set(base)
    for name, weight in base.items():
        layer = f"base_model.model.{name.removesuffix('.weight')}"
        expected = weight
        if name.split(".")[-2] in LORA.targets:
            a, b = (values[f"{layer}.lora_{matrix}.weight"].float().numpy() for matrix in "AB")
            sum_ = weight.float().numpy() + numpy.float32(12 / 4) * (b @ a)
            expected = torch.from_numpy(sum_).to(torch.bfloat16)
            assert not torch.equal(expected, weight), name
        assert torch.equal(merged[name], expected), name


def test_peft_loads_the_adapter_and_computes_what_the_trainer_does(
    model: pathlib.Path, first: initial.Initial, tmp_path: pathlib.Path
) -> None:
    values = trained(first)
    exported(model, first, values, tmp_path / "export")
    base = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    loaded = peft.PeftModel.from_pretrained(base, str(tmp_path / "export" / export.ADAPTER))
    spec = make_spec({"trainer.dtype": "float32", "trainer.gradientCheckpointing": False})
    ours = loading.load_model(
        model,
        spec,
        torch.device("cpu"),
        adapter=adapters.Adapter(lora=LORA, layout=first.layout, values=values),
    )
    ours.set_attn_implementation("eager")
    tokens = torch.arange(5, 25)[None]
    with torch.no_grad():
        theirs = loaded(input_ids=tokens).logits
        torch.testing.assert_close(ours(input_ids=tokens).logits, theirs, rtol=1e-5, atol=1e-5)
        with adapters.without(ours):
            plain = ours(input_ids=tokens).logits
        with loaded.disable_adapter():
            torch.testing.assert_close(plain, loaded(input_ids=tokens).logits, rtol=1e-5, atol=1e-5)
        # And it is switched on again.
        torch.testing.assert_close(ours(input_ids=tokens).logits, theirs, rtol=1e-5, atol=1e-5)


def test_an_adapter_that_was_written_is_read_back_bit_by_bit(first: initial.Initial, tmp_path: pathlib.Path) -> None:
    values = trained(first)
    adapter_folder.write(tmp_path, values, adapters.config(LORA, first.layout, base="tiny"))
    found = adapter_folder.read(tmp_path)
    assert set(found) == set(values)
    assert all(torch.equal(found[name], tensor) for name, tensor in values.items())
