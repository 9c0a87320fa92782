"""Adapters as images: their layers and names, what they are tied to, what they begin as."""

import math
import pathlib

import numpy
import pytest

from rljob_api import errors
from rljob_api.manifest.model import LoraSpec
from rljob_testing import trainer_makers as makers
from rljob_testing.sections import make_spec, section
from rljob_workers.weights import adapter, image, initial

LORA = section(LoraSpec, rank=4)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return makers.make_tiny_model(tmp_path_factory.mktemp("model"), dtype="bfloat16")


def layout_of(model: pathlib.Path, lora: LoraSpec = LORA):
    return adapter.layout_of(model, lora, dtype="float32", name="tiny")


def test_every_linear_layer_has_a_pair_by_the_names_of_peft_and_nothing_else_has(model: pathlib.Path) -> None:
    layout = layout_of(model)
    kinds = [
        f"{part}.{name}"
        for part, names in (("self_attn", "q k v o"), ("mlp", "gate up down"))
        for name in (f"{each}_proj" for each in names.split())
    ]
    expected = {
        f"base_model.model.model.layers.{layer}.{kind}.lora_{matrix}.weight"
        for layer in (0, 1)
        for kind in kinds
        for matrix in "AB"
    }
    assert {tensor.name for tensor in layout.tensors} == expected
    shapes = {tensor.name.removeprefix("base_model.model.model.layers.1."): tensor.shape for tensor in layout.tensors}
    # 32 hidden, 48 inside the MLP, 2 key-value heads of 8.
    assert shapes["mlp.down_proj.lora_A.weight"] == (4, 48)
    assert shapes["mlp.down_proj.lora_B.weight"] == (32, 4)
    assert shapes["self_attn.k_proj.lora_B.weight"] == (16, 4)


def test_targets_name_the_layers_that_have_an_adapter(model: pathlib.Path) -> None:
    layout = layout_of(model, section(LoraSpec, rank=4, targets=("q_proj", "down_proj")))
    assert {tensor.name.split(".")[-3] for tensor in layout.tensors} == {"q_proj", "down_proj"}
    assert len(layout.tensors) == 2 * 2 * 2


def test_a_target_that_the_model_does_not_have_is_refused_with_those_that_it_has(model: pathlib.Path) -> None:
    with pytest.raises(errors.ManifestError, match=r"tiny has no linear layers qkv_proj; it has down_proj, gate_proj"):
        layout_of(model, section(LoraSpec, targets=("q_proj", "qkv_proj")))


def test_version_0_is_the_same_bytes_for_one_seed_and_others_for_another(model: pathlib.Path) -> None:
    def first(seed: int) -> bytes:
        return bytes(initial.of_job(make_spec({"model.lora": {"rank": 4}, "seed": seed}), model).image())

    assert first(7) == first(7)
    assert first(7) != first(8)


def test_the_first_a_is_uniform_within_one_by_the_root_of_its_inputs_and_b_is_zero(model: pathlib.Path) -> None:
    first = initial.of_job(make_spec({"model.lora": {"rank": 64}}), model)
    data = first.image()
    for tensor in first.layout.tensors:
        values = numpy.frombuffer(data, numpy.float32, count=tensor.length // 4, offset=tensor.offset)
        if ".lora_B." in tensor.name:
            assert not values.any()
            continue
        bound = 1 / math.sqrt(tensor.shape[1])
        assert numpy.abs(values).max() <= bound
        # The variance of that distribution is bound^2 / 3, and each tensor has 2,048 numbers or more.
        assert values.std() == pytest.approx(bound / math.sqrt(3), rel=0.05)
        assert abs(values.mean()) < 0.05 * bound


def test_an_adapter_of_other_model_files_has_another_layout(model: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """So that receivers refuse it."""
    other = makers.make_tiny_model(tmp_path, dtype="bfloat16", seed=1)
    ours, others = layout_of(model), layout_of(other)
    assert ours.tensors == others.tensors
    assert ours.layout_id != others.layout_id
    assert ours.base == image.files_hash(model)
    assert image.layout_id(ours.tensors, ours.base) == ours.layout_id


def test_the_hash_of_model_files_is_of_tensors_not_of_how_they_are_divided(
    model: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    from safetensors.torch import load_file, save_file

    tensors = load_file(model / "model.safetensors")
    names = sorted(tensors)
    for index, part in enumerate((names[:5], names[5:])):
        save_file({name: tensors[name] for name in part}, tmp_path / f"{index}.safetensors")
    assert image.files_hash(tmp_path) == image.files_hash(model)
    changed = {name: tensors[name] for name in names[5:]} | {names[5]: tensors[names[5]] + 1}
    save_file(changed, tmp_path / "1.safetensors")
    assert image.files_hash(tmp_path) != image.files_hash(model)


def test_without_an_adapter_a_run_begins_with_the_model_files(model: pathlib.Path) -> None:
    first = initial.of_job(make_spec({"model.dtype": "bfloat16"}), model)
    assert first.layout == image.layout_from_safetensors(model, "bfloat16")
    data, manifest = first.image(), first.manifest("job")
    image.verify(memoryview(data), first.layout, manifest)


def test_ranks_that_read_other_model_files_than_the_first_are_refused_before_anything_is_loaded() -> None:
    initial.check_alike(["a", "a", "a"], name="tiny")
    with pytest.raises(errors.ManifestError, match=r"spec\.model\.name is 'tiny'.* rank 2 reads others than rank 0"):
        initial.check_alike(["a", "a", "b"], name="tiny")
