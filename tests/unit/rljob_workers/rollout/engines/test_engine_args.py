"""The parts of the vLLM adapter that need no engine."""

import dataclasses
import json
import pathlib
from types import SimpleNamespace

import pytest
import torch

from rljob_api import errors
from rljob_api.manifest.rollout import EngineSpec
from rljob_testing.sections import section
from rljob_workers.rollout.engines.vllm import engine, patches
from rljob_workers.runtime import device


@dataclasses.dataclass
class Args:
    seed: int = 0


def test_kv_cache_holds_all_sequences_at_full_length_and_a_quarter_more(tmp_path: pathlib.Path) -> None:
    shape = {"num_attention_heads": 9, "num_key_value_heads": 3, "hidden_size": 576, "num_hidden_layers": 30}
    (tmp_path / "config.json").write_text(json.dumps(shape))
    config = section(EngineSpec, max_model_len=250, max_num_seqs=64)
    # 30 layers x (k, v) x 3 heads x 64 x 2 bytes = 23,040 bytes a token; 250 rounds up to 256.
    assert engine.cpu_kv_bytes(tmp_path, config, "bfloat16") == 64 * 256 * 23_040 * 5 // 4
    assert engine.cpu_kv_bytes(tmp_path, config, "float32") == 64 * 256 * 46_080 * 5 // 4
    large = section(EngineSpec, max_model_len=8192, max_num_seqs=64)
    assert engine.cpu_kv_bytes(tmp_path, large, "bfloat16") == 4 << 30


def test_kv_cache_of_a_llava_whose_config_leaves_out_what_is_usual_is_that_of_a_llama(tmp_path: pathlib.Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llava", "text_config": {"model_type": "llama"}}))
    config = section(EngineSpec, max_model_len=32, max_num_seqs=1)
    # Llama's defaults: 32 layers x (k, v) x 32 heads x 128 x 2 bytes.
    assert engine.cpu_kv_bytes(tmp_path, config, "bfloat16") == 32 * 32 * 2 * 32 * 128 * 2 * 5 // 4


@pytest.mark.parametrize(
    ("isa", "changes", "block"),
    [
        ("vec", {}, 16),
        # AMX, and processors that are not x86.
        ("amx", {}, 32),
        ("neon", {}, 32),
        ("vec", {"kv_cache_dtype": "fp8"}, 32),
        ("vec", {"tensor_parallel_size": 2}, 32),
    ],
)
def test_blocks_are_as_small_as_the_processors_kernel_takes_them(
    monkeypatch: pytest.MonkeyPatch, isa: str, changes: dict[str, object], block: int
) -> None:
    from vllm.v1.attention.backends import cpu_attn

    monkeypatch.setattr(cpu_attn, "_get_attn_isa", lambda *_: isa)
    assert engine.cpu_block_tokens(section(EngineSpec, **changes), "bfloat16") == block


def test_only_the_engine_for_cpus_does_without_the_compiler() -> None:
    cpu, cuda = (device.engine_environment(num_threads=2, kind=kind) for kind in ("cpu", "cuda"))
    assert cpu["TORCHDYNAMO_DISABLE"] == "1"
    # Switched off, graphs would be captured of what nothing has compiled.
    assert "TORCHDYNAMO_DISABLE" not in cuda
    assert cuda["VLLM_WORKER_MULTIPROC_METHOD"] == cpu["VLLM_WORKER_MULTIPROC_METHOD"] == "spawn"


def test_an_extra_argument_is_set() -> None:
    assert engine._with_extra(Args(), {"seed": 3}).seed == 3  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("sede", "vLLM has no such engine argument"),
        ("logprobs_mode", "it is set from other fields"),
        ("scheduling_policy", "it is set from other fields"),
    ],
)
def test_extra_arguments_that_are_unknown_or_ours_are_refused(key: str, message: str) -> None:
    with pytest.raises(errors.ManifestError, match=f"spec.rollout.engine.extraArgs.{key} is 1, but {message}"):
        engine._with_extra(Args(), {key: 1})  # type: ignore[arg-type]


def output(**changes: object) -> SimpleNamespace:
    def span(start: int, end: int, version: str) -> SimpleNamespace:
        return SimpleNamespace(start=start, end=end, version=version)

    fields: dict[str, object] = {
        "token_ids": [7, 8, 9],
        "logprobs": [{token: SimpleNamespace(logprob=-0.5)} for token in (7, 8, 9)],
        "weight_versions": [span(0, 1, "4"), span(1, 3, "5")],
        "finish_reason": "stop",
        "stop_reason": "\n",
    }
    return SimpleNamespace(**(fields | changes))


def test_spans_become_one_version_per_token() -> None:
    result = engine._result(output(), None, latency_s=1.0)  # type: ignore[arg-type]
    assert (result.output_ids, result.versions, result.matched_stop) == ((7, 8, 9), (4, 5, 5), "\n")


@pytest.mark.parametrize(
    ("spans", "message"),
    [
        (None, "cover 0 of 3 tokens"),
        ([(0, 2, "4")], "cover 2 of 3 tokens"),
        ([(1, 3, "4")], "does not follow token 0"),
        ([(0, 3, "default")], "has no id"),
    ],
)
def test_spans_that_do_not_cover_the_tokens_with_ids_are_refused(
    spans: list[tuple[int, int, str]] | None, message: str
) -> None:
    given = [SimpleNamespace(start=start, end=end, version=version) for start, end, version in spans or ()]
    with pytest.raises(errors.EngineError, match=message):
        engine._result(output(weight_versions=given), None, latency_s=1.0)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("logprobs", "message"), [(None, "3 tokens came with 0 logprobs"), ([{1: None}] * 3, "token 7 is missing")]
)
def test_missing_logprobs_are_refused(logprobs: list[dict[int, None]], message: str) -> None:
    with pytest.raises(errors.EngineError, match=message):
        engine._result(output(logprobs=logprobs), None, latency_s=1.0)  # type: ignore[arg-type]


@pytest.mark.covers("workflows 1.2")
def test_times_of_a_request_are_the_engines_own() -> None:
    times = SimpleNamespace(first_token_latency=0.5, token_ts=[10.0, 10.25, 11.0])
    result = engine._result(output(), times, latency_s=2.0)  # type: ignore[arg-type]
    assert (result.latency_s, result.ttft_s, result.itl_s) == (2.0, 0.5, (0.25, 0.75))


def test_an_engine_without_statistics_tells_no_times_of_tokens() -> None:
    assert engine._result(output(), None, latency_s=2.0).itl_s == ()  # type: ignore[arg-type]


@dataclasses.dataclass
class Statistics:
    """Fields of vLLM's statistics of a request."""

    num_generation_tokens: int = 0
    arrival_time: float = 0.0
    last_token_ts: float = 0.0


@pytest.mark.covers("workflows 1.2")
def test_every_token_gets_the_time_of_the_step_that_sampled_it() -> None:
    stats = patches.timed(Statistics)(arrival_time=9.0)
    for new, at_s in ((1, 10.0), (0, 10.5), (2, 11.0)):
        stats.num_generation_tokens += new
        stats.last_token_ts = at_s
    assert patches.token_times_s(stats, count=3) == [10.0, 11.0, 11.0]
    assert patches.token_times_s(stats, count=2) == [10.0, 11.0], "the answer ended before the step's last token"


SLOTS = torch.tensor([1, -1, 0, 1])


def adapters(out: int, inside: int) -> torch.Tensor:
    """Two slots of matrices [out, inside], as vLLM stacks them."""
    return torch.arange(2.0 * out * inside).reshape(2, 1, out, inside) / 10


def test_each_token_is_multiplied_with_the_a_of_its_slot() -> None:
    a, x, y = adapters(2, 3), torch.eye(4, 3), torch.full((4, 2), 9.0)
    patches.shrink(x, a, y, SLOTS, 0.5)
    for token, slot in enumerate(SLOTS.tolist()):
        expected = torch.full((2,), 9.0) if slot < 0 else 0.5 * (a[slot, 0] @ x[token])
        assert torch.equal(y[token], expected), token


@pytest.mark.parametrize("add", [True, False])
def test_each_token_gets_the_part_of_its_slot_in_its_place_and_one_without_an_adapter_nothing(add: bool) -> None:
    b, x, y = adapters(3, 2), torch.eye(4, 2), torch.full((4, 5), 9.0)
    patches.expand_slice(x, b, y, SLOTS, 1, 3, add)
    assert torch.equal(y[:, [0, 4]], torch.full((4, 2), 9.0))
    for token, slot in enumerate(SLOTS.tolist()):
        part = torch.zeros(3) if slot < 0 else b[slot, 0] @ x[token]
        assert torch.equal(y[token, 1:4], part + 9.0 if add or slot < 0 else part), token


def test_tokens_of_one_slot_are_multiplied_as_those_of_several_are() -> None:
    b, x = adapters(3, 2), torch.arange(8.0).reshape(4, 2)
    mixed, alone = torch.zeros(4, 3), torch.zeros(4, 3)
    patches.expand(x, b, mixed, torch.tensor([1, 1, 1, 0]))
    patches.expand(x, b, alone, torch.tensor([1, 1, 1, 1]))
    assert torch.equal(mixed[:3], alone[:3])
    assert not torch.equal(mixed[3], alone[3])
