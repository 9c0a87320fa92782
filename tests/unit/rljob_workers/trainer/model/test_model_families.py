"""Each family of docs/models.md: packed rows are what single rows are, and its files come back under their names."""

import json
import pathlib
import re
from collections.abc import Callable, Sequence

import pytest
import torch
import transformers

from rljob_api import errors, types
from rljob_testing import local_weights, model_families
from rljob_testing.clock import FakeClock
from rljob_testing.sections import make_spec
from rljob_workers.models import families
from rljob_workers.trainer.model import attention, batch_tensors, loading, policy, selftest
from rljob_workers.trainer.state import export
from rljob_workers.weights import image

CPU = torch.device("cpu")
TRAINED, STATEFUL = sorted(model_families.TRAINED), sorted(model_families.STATEFUL)
LONGEST = 64


class Scored:
    """A model on this process alone, as the engine and the reference score it."""

    def __init__(self, lm: torch.nn.Module, temperature: float = 1.0) -> None:
        self.policy = policy.Policy(lm, temperature=temperature, chunk_tokens=1024)

    @property
    def model(self) -> policy.Facts:
        return self.policy.facts

    def score(self, tensors: batch_tensors.BatchTensors) -> torch.Tensor:
        with torch.no_grad():
            return self.policy(tensors.tokens, tensors.position_ids, tensors.plan, tensors.predictors, tensors.targets)[
                0
            ]

    def score_plainly(self, row: selftest.Row) -> torch.Tensor:
        with self.policy.plain(), torch.no_grad():
            return self.policy(row.tokens, row.position_ids, None, row.predictors, row.targets)[0]

    def largest(self, values: Sequence[float]) -> list[float]:
        return list(values)


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], pathlib.Path]:
    made: dict[str, pathlib.Path] = {}

    def folder(family: str) -> pathlib.Path:
        if family not in made:
            made[family] = model_families.save(family, tmp_path_factory.mktemp(family))
        return made[family]

    return folder


def loaded(folder: pathlib.Path, dtype: str = "float32") -> torch.nn.Module:
    return loading.load_model(folder, make_spec({"trainer.dtype": dtype}), CPU)


def check(model: Scored, longest: int = LONGEST) -> None:
    selftest.check(model, model, device=CPU, longest=longest, field="spec.model.name", name="tiny", clock=FakeClock())


def gap_of(model: Scored, longest: int = LONGEST) -> float:
    groups = selftest._groups(model.model, longest)
    packed = model.score(batch_tensors.to_tensors(selftest._packed(groups), CPU))
    alone = torch.cat([model.score_plainly(row) for row in selftest._rows(groups, CPU)])
    return float((packed - alone).abs().max())


def test_every_family_of_the_table_is_tested_here() -> None:
    assert sorted(families.SUPPORTED) == TRAINED


@pytest.mark.parametrize("family", TRAINED)
def test_packed_rows_get_the_logprobs_of_single_ones(family: str, folder_of: Callable[[str], pathlib.Path]) -> None:
    folder = folder_of(family)
    assert families.refusals(families.read(folder), longest=LONGEST) == []
    model = Scored(loaded(folder))
    assert gap_of(model) < 1e-5
    check(model)


@pytest.mark.parametrize("family", ["gemma3_text", "mistral"])
def test_the_self_test_has_rows_that_are_longer_than_the_window(
    family: str, folder_of: Callable[[str], pathlib.Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Scored(loaded(folder_of(family)))
    monkeypatch.setattr(attention.AttentionPlan, "within", lambda plan, _window: plan)
    with pytest.raises(errors.ManifestError, match="other log-probabilities"):
        check(model)


@pytest.mark.parametrize("family", STATEFUL)
def test_a_family_with_state_is_refused_from_its_config_and_by_the_self_test(
    family: str, folder_of: Callable[[str], pathlib.Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = folder_of(family)
    with pytest.raises(errors.ManifestError, match=r"spec\.model\.name is 'tiny', but its? .*would see each other"):
        loaded(folder)
    # And if config.json had reported nothing: the layers are found by what they do.
    monkeypatch.setattr(families, "refusals", lambda _config, *, longest: [])
    model = Scored(loaded(folder))
    name = model.model.name
    with pytest.raises(errors.ManifestError, match=rf"class {name} gives packed rows other log-probabilities"):
        check(model)


@pytest.mark.parametrize("family", STATEFUL)
def test_a_model_with_state_is_refused_however_it_was_made(
    family: str, folder_of: Callable[[str], pathlib.Path]
) -> None:
    lm = transformers.AutoModelForCausalLM.from_pretrained(folder_of(family))
    with pytest.raises(errors.EngineError, match=rf"{type(lm).__name__} cannot be trained: .*would see each"):
        policy.Policy(lm, temperature=1.0, chunk_tokens=1024)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("family", TRAINED)
def test_what_is_exported_is_what_the_files_held(
    family: str, dtype: str, folder_of: Callable[[str], pathlib.Path], tmp_path: pathlib.Path
) -> None:
    folder = model_families.save(family, tmp_path / "model", dtype=dtype)
    layout, version, data = local_weights.initial_version(folder, "job", dtype)
    lm = loaded(folder, dtype)
    tensors = Scored(lm).policy.named_tensors()
    names = loading.SavedNames(lm, tensors)
    assert names.problem(layout, [name for name, _ in lm.named_parameters()]) == ""

    def visit(wanted: Sequence[str], receive: Callable[[str, torch.Tensor], None]) -> None:
        for source in dict.fromkeys(names.source(name) for name in wanted):
            for name, part in names.parts(source, tensors[source].detach()).items():
                if name in wanted:
                    receive(name, part)

    exporter = export.ImageExporter(layout=layout, visit=visit, writes=True)
    assert exporter.export() == data
    assert image.state_hash(layout, image.digests(exporter.image, layout)) == version.state_hash
    exporter.write_export(folder, tmp_path / "export")
    assert local_weights.initial_version(tmp_path / "export", "job", dtype)[1].state_hash == version.state_hash


def test_experts_stand_in_the_files_one_by_one(folder_of: Callable[[str], pathlib.Path]) -> None:
    folder = folder_of("qwen3_moe")
    names = {spec.name for spec in image.layout_from_safetensors(folder, "float32").tensors}
    assert "model.layers.0.mlp.experts.3.gate_proj.weight" in names
    assert "model.layers.0.mlp.experts.gate_up_proj" in dict(loaded(folder).named_parameters())


def layout_of(
    folder: pathlib.Path, change: Callable[[dict[str, tuple[str, str, tuple[int, ...]]]], None]
) -> types.Layout:
    found = {
        spec.name: (spec.name, spec.dtype, tuple(spec.shape))
        for spec in image.layout_from_safetensors(folder, "float32").tensors
    }
    change(found)
    return image.make_layout(found.values())


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda found: found.update(x=("mtp.norm.weight", "float32", (4,))), "hold mtp.norm.weight, for which"),
        (lambda found: found.pop("model.norm.weight"), "lack model.norm.weight, which would start at random"),
        (
            lambda found: found.update({"model.norm.weight": ("model.norm.weight", "float32", (8,))}),
            r"model.norm.weight with shape \[8\] where the model has \[32\]",
        ),
        (lambda found: found.pop("model.layers.1.mlp.experts.0.up_proj.weight"), ""),
    ],
)
def test_files_and_model_must_hold_the_same_tensors(
    change: Callable[..., None], problem: str, folder_of: Callable[[str], pathlib.Path]
) -> None:
    folder = folder_of("qwen3_moe")
    lm = loaded(folder)
    names = loading.SavedNames(lm, Scored(lm).policy.named_tensors())
    found = names.problem(layout_of(folder, change), [name for name, _ in lm.named_parameters()])
    assert re.search(problem, found), found


def test_files_that_lack_a_tensor_are_refused_when_they_are_loaded(
    folder_of: Callable[[str], pathlib.Path], tmp_path: pathlib.Path
) -> None:
    from safetensors.torch import load_file, save_file

    folder = folder_of("llama")
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    with pytest.raises(errors.ManifestError, match=r"files lack model\.layers\.1\.mlp\.up_proj\.weight"):
        loaded(tmp_path)


LLAMA: dict[str, object] = {"model_type": "llama", "max_position_embeddings": 2048}
REFUSED: list[tuple[dict[str, object], str]] = [
    ({"model_type": "qwen3_next", "linear_num_key_heads": 16}, "linear_num_key_heads"),
    ({"model_type": "rwkv"}, "its type is rwkv"),
    ({"model_type": "new", "layer_types": ["full_attention", "linear_attention"]}, "layers of kind linear_attention"),
    ({"model_type": "llama4_text", "layer_types": ["chunked_attention", "full_attention"]}, "chunked_attention"),
    ({"model_type": "new", "mamba_d_state": 16}, "config.json has mamba_d_state"),
    ({"model_type": "gemma3", "vision_config": {}, "text_config": {}} | {"vision_config": {"a": 1}}, "images or sound"),
    ({"model_type": "mimo", "num_nextn_predict_layers": 1}, "num_nextn_predict_layers is 1"),
    ({"model_type": "qwen3_5_text", "mtp_num_hidden_layers": 1, "layer_types": ["full_attention"]}, "further tokens"),
    ({"model_type": "gemma2", "attn_logit_softcapping": 50.0}, "soft cap"),
    ({"model_type": "gemma2", "final_logit_softcapping": 30.0}, "final_logit_softcapping to 30.0"),
    ({"model_type": "granite", "logits_scaling": 8.0}, "logits_scaling"),
    ({"model_type": "gpt_oss"}, "sinks"),
    ({"model_type": "bloom"}, "ALiBi"),
    ({"model_type": "t5", "is_encoder_decoder": True}, "an encoder"),
    ({"model_type": "qwen3", "quantization_config": {"quant_method": "fp8"}}, "quantised"),
    ({**LLAMA, "rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, "rope_type dynamic"),
    (
        {**LLAMA, "rope_scaling": {"type": "longrope"}, "original_max_position_embeddings": 1024},
        "maxModelLen to at most 1024",
    ),
    (
        {"model_type": "phi3", "rope_scaling": {"type": "su", "original_max_position_embeddings": 512}},
        "maxModelLen to at most 512",
    ),
]


@pytest.mark.parametrize(("config", "word"), REFUSED)
def test_what_cannot_be_trained_is_told_from_config_json(config: dict[str, object], word: str) -> None:
    problems = families.refusals(config, longest=2048)
    assert any(word in problem for problem in problems), problems


@pytest.mark.parametrize(
    "config",
    [
        LLAMA,
        {"model_type": "granitemoehybrid", "layer_types": ["attention"] * 2, "mamba_d_state": 128},
        {**LLAMA, "final_logit_softcapping": None, "logits_scaling": 1.0, "num_nextn_predict_layers": 0},
        {**LLAMA, "rope_scaling": {"rope_type": "yarn", "original_max_position_embeddings": 8}},
        {"model_type": "phi3", "rope_scaling": {"type": "longrope"}, "original_max_position_embeddings": 4096},
    ],
)
def test_what_can_be_trained_is_not_refused(config: dict[str, object]) -> None:
    assert families.refusals(config, longest=2048) == []


def test_positions_that_depend_on_the_longest_row_are_found_by_the_self_test(
    folder_of: Callable[[str], pathlib.Path], tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dynamic rotary positions: the row at the last positions changes those of its neighbours."""
    folder = folder_of("llama")
    config = json.loads((folder / "config.json").read_text())
    config["max_position_embeddings"] = 32
    config["rope_parameters"] = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 100.0}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors").symlink_to(folder / "model.safetensors")
    with pytest.raises(errors.ManifestError, match="rope_type dynamic"):
        loaded(tmp_path)
    monkeypatch.setattr(families, "refusals", lambda _config, *, longest: [])
    with pytest.raises(errors.ManifestError, match="other log-probabilities"):
        check(Scored(loaded(tmp_path)))


@pytest.mark.parametrize("longest", [2, 5, 24, 1000])
def test_rows_of_the_self_test_are_no_longer_than_the_job_s(longest: int) -> None:
    facts = policy.Facts(name="X", vocab_size=50, window=None, dtype=torch.float32, temperature=1.0)
    for group in selftest._groups(facts, longest):
        for completion in group.completions:
            assert len(group.prompt) + len(completion) >= 2
            assert group.first_position + len(group.prompt) + len(completion) <= longest


def test_rounding_is_allowed_for_at_a_low_temperature_which_makes_it_larger(
    folder_of: Callable[[str], pathlib.Path],
) -> None:
    model = Scored(loaded(folder_of("llama"), "bfloat16"), temperature=1e-3)
    # More than passes at 1.
    assert gap_of(model) > 1.0
    check(model)


def test_not_a_number_does_not_pass(folder_of: Callable[[str], pathlib.Path]) -> None:
    model = Scored(loaded(folder_of("llama")))
    with torch.no_grad():
        next(iter(model.policy.lm.parameters())).fill_(float("nan"))
    with pytest.raises(errors.ManifestError, match="inf nats"):
        check(model)


def test_every_rank_hears_of_the_largest_gap(folder_of: Callable[[str], pathlib.Path]) -> None:
    class OtherRank(Scored):
        def largest(self, values: Sequence[float]) -> list[float]:
            return [7.0 for _ in values]

    with pytest.raises(errors.ManifestError, match="7 nats"):
        check(OtherRank(loaded(folder_of("llama"))))
