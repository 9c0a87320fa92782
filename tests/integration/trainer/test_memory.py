"""What a rank holds of a model: measured in processes of their own, against the arithmetic of `rljob plan`."""

import os
import pathlib

import pytest

from rljob_api.manifest.model import LoraSpec
from rljob_testing import large_models, rank_memory
from rljob_testing.sections import section
from rljob_workers.local.checks import memory
from rljob_workers.weights import adapter, image

WIDTH = large_models.Width(hidden=1024, layers=6)
FILE_BYTES = 50 << 20
LORA = {"rank": 4}
# A rank that trains takes minutes on a slow machine.
at_length = pytest.mark.skipif(
    not os.environ.get("RLJOB_EVERY_EXAMPLE"), reason="memory of training was not asked for (RLJOB_EVERY_EXAMPLE=1)"
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """184 MB in four files."""
    folder = tmp_path_factory.mktemp("wide") / "model"
    large_models.make(folder, WIDTH, most_file_bytes=FILE_BYTES)
    return folder


def size_of(model: pathlib.Path) -> int:
    return image.num_elements(image.layout_from_safetensors(model, "bfloat16"))


def adapter_bytes(model: pathlib.Path) -> int:
    """Return weights, gradients, masters and moments of the adapter."""
    layout = adapter.layout_of(model, section(LoraSpec, **LORA), dtype="bfloat16", name="wide")
    return 18 * image.num_elements(layout)


def test_the_frozen_model_of_an_adapter_is_never_copied_from_its_files_by_any_rank(model: pathlib.Path) -> None:
    for taken in rank_memory.of_ranks(model, {"model.lora": LORA}, ranks=2):
        assert taken.loading < adapter_bytes(model) + 0.25 * 2 * size_of(model)
        assert taken.loaded < adapter_bytes(model) + 0.25 * 2 * size_of(model)


def test_zero_3_leaves_each_rank_its_half_and_holds_no_more_than_a_file_beyond_that(model: pathlib.Path) -> None:
    half = size_of(model)
    for taken in rank_memory.of_ranks(model, {"model.lora": LORA}, ranks=2, stage=3):
        assert 0.9 * half < taken.loaded < 1.3 * half + adapter_bytes(model)
        # What rank 0 sends is written into the pages of the file, which go with the last tensor of it.
        assert taken.loading < 1.3 * half + adapter_bytes(model) + FILE_BYTES


@at_length
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(("stage", "ranks"), [(0, 1), (2, 1), (3, 2)])
def test_what_training_all_weights_takes_is_what_plan_says(model: pathlib.Path, stage: int, ranks: int) -> None:
    size = size_of(model)
    expected = memory.bytes_per_param(zero_stage=stage, num_ranks=ranks, fp32_gradients=True) * size
    expected += memory.buffer_bytes(size, zero_stage=stage)
    for taken in rank_memory.of_ranks(model, {}, ranks=ranks, stage=stage):
        assert taken.training == pytest.approx(expected, rel=0.15)
