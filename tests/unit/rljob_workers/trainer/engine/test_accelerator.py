"""The operations of a step by hand, and the share of them that a device could have done."""

import dataclasses
from types import SimpleNamespace

import pytest
import torch

from rljob_api import types
from rljob_workers.trainer.engine import mfu

# Ten parameters in the decoder, five in the head, two layers of width 3.
SIZE = mfu.ModelSize(decoder_parameters=10, head_parameters=5, num_layers=2, attention_width=3)


def micro_batch(segments: list[types.Segment], num_sampled: int) -> types.MicroBatch:
    length = segments[-1].end
    return types.MicroBatch(
        update=0,
        tokens=types.ints([1] * length),
        position_ids=types.ints([0] * length),
        segments=segments,
        target_index=types.ints(range(num_sampled)),
        predictor_index=types.ints([0] * num_sampled),
        logprobs=types.floats([0.0] * num_sampled),
        advantages=types.floats([0.0] * num_sampled),
        version_steps=types.ints([0] * num_sampled),
        row_index=types.ints([0] * num_sampled),
        rows=(),
    )


def test_a_token_attends_to_itself_those_before_it_in_its_segment_and_its_ancestors() -> None:
    alone = [types.Segment(start=0, end=4)]
    assert mfu.attended_pairs(alone) == 1 + 2 + 3 + 4
    shared = [
        types.Segment(start=0, end=4),
        types.Segment(start=4, end=6, parent=0),
        types.Segment(start=6, end=7, parent=0),
    ]
    assert mfu.attended_pairs(shared) == 10 + (1 + 2 + 2 * 4) + (1 + 4)
    deep = [*shared[:2], types.Segment(start=6, end=9, parent=1)]
    assert mfu.attended_pairs(deep) == 10 + (1 + 2 + 2 * 4) + (1 + 2 + 3 + 3 * 6)


def test_a_forward_is_two_operations_a_parameter_and_four_a_layer_width_and_pair() -> None:
    """Four tokens of which one is sampled: 2 * (10 * 4 + 5 * 1) + 4 * 2 * 3 * 10."""
    batch = micro_batch([types.Segment(start=0, end=4)], num_sampled=1)
    assert mfu.forward_flops(SIZE, batch, with_head=True) == 2 * 45 + 240
    assert mfu.forward_flops(SIZE, batch, with_head=False) == 2 * 40 + 240


def test_the_head_runs_once_for_a_token_that_several_rows_sampled() -> None:
    batch = micro_batch([types.Segment(start=0, end=4)], num_sampled=1)
    twice = dataclasses.replace(batch, target_index=types.ints([0, 0]), predictor_index=types.ints([0, 0]))
    assert mfu.forward_flops(SIZE, twice, with_head=True) == mfu.forward_flops(SIZE, batch, with_head=True)


def test_long_rows_without_attention_cost_six_operations_a_parameter_and_token() -> None:
    """The rule of thumb 6 N D (arXiv:2001.08361)."""
    plain = mfu.ModelSize(decoder_parameters=1000, head_parameters=0, num_layers=0, attention_width=0)
    batch = micro_batch([types.Segment(start=0, end=50)], num_sampled=0)
    found = mfu.step_flops(plain, [batch, batch], trains_policy=True, num_scores=0, has_critic=False)
    assert found == 6 * 1000 * 100


def test_an_adapter_over_frozen_weights_costs_a_forward_less() -> None:
    """Forward, and a backward to the activations; no gradient of a weight."""
    frozen = mfu.ModelSize(decoder_parameters=1000, head_parameters=0, num_layers=0, attention_width=0, has_frozen=True)
    batch = micro_batch([types.Segment(start=0, end=50)], num_sampled=0)
    found = mfu.step_flops(frozen, [batch], trains_policy=True, num_scores=0, has_critic=False)
    assert found == 4 * 1000 * 50


@pytest.mark.parametrize(
    ("trains_policy", "num_scores", "has_critic", "expected"),
    [
        (True, 0, False, 3 * 330),
        (True, 2, False, 5 * 330),
        (True, 0, True, 3 * 330 + 4 * 320),
        (False, 0, True, 4 * 320),
    ],
    ids=["one forward and backward", "proximal and reference", "a critic", "a critic that warms up"],
)
def test_every_forward_and_backward_of_a_step_counts(
    trains_policy: bool, num_scores: int, has_critic: bool, expected: float
) -> None:
    batch = micro_batch([types.Segment(start=0, end=4)], num_sampled=1)
    found = mfu.step_flops(SIZE, [batch], trains_policy=trains_policy, num_scores=num_scores, has_critic=has_critic)
    assert found == expected


def test_utilisation_is_the_share_of_what_all_devices_could_do() -> None:
    assert mfu.utilisation(flops=300.0, seconds=2.0, num_devices=3, peak_flops=100.0) == 0.5


def test_a_device_without_a_peak_is_refused() -> None:
    with pytest.raises(ValueError, match="peak_flops=0.0"):
        mfu.utilisation(flops=1.0, seconds=1.0, num_devices=1, peak_flops=0.0)


@pytest.mark.parametrize(
    ("name", "teraflops"),
    [
        ("NVIDIA H200", 989.4),
        ("NVIDIA H100 80GB HBM3", 989.4),
        ("NVIDIA H100 PCIe", 756.0),
        ("NVIDIA A100-SXM4-80GB", 312.0),
    ],
)
def test_peaks_are_dense_and_told_by_the_name_of_the_device(name: str, teraflops: float) -> None:
    assert mfu.dense_bf16_peak(name) == pytest.approx(teraflops * 1e12)


def test_a_device_that_is_not_known_has_no_peak() -> None:
    assert mfu.dense_bf16_peak("NVIDIA GeForce RTX 4090") is None


class Layer(torch.nn.Module):
    """A causal LM by what its sizes are read from: 7 tokens of width 4, one matrix, a head that may be tied."""

    def __init__(self, *, tied: bool, **config: object) -> None:
        super().__init__()
        self.embeddings, self.matrix = torch.nn.Embedding(7, 4), torch.nn.Linear(4, 4, bias=False)
        self.head = torch.nn.Linear(4, 7, bias=False)
        if tied:
            self.head.weight = self.embeddings.weight
        self.base_model = torch.nn.ModuleList([self.embeddings, self.matrix])
        text = SimpleNamespace(num_attention_heads=2, num_hidden_layers=3, hidden_size=4, **config)
        self.config = SimpleNamespace(get_text_config=lambda: text)

    def get_input_embeddings(self) -> torch.nn.Module:
        return self.embeddings

    def get_output_embeddings(self) -> torch.nn.Module:
        return self.head


@pytest.mark.parametrize("tied", [False, True])
def test_the_look_up_is_left_out_and_the_head_is_counted_whether_they_share_weights_or_not(tied: bool) -> None:
    size = mfu.model_size(Layer(tied=tied))
    assert size == mfu.ModelSize(decoder_parameters=16, head_parameters=28, num_layers=3, attention_width=4)


def test_heads_may_be_wider_than_their_share_of_the_model() -> None:
    size = mfu.model_size(Layer(tied=False, head_dim=8))
    assert size is not None
    assert size.attention_width == 16


def test_a_mixture_of_experts_has_no_size_since_a_token_uses_a_part_of_it() -> None:
    assert mfu.model_size(Layer(tied=False, num_experts=8)) is None
