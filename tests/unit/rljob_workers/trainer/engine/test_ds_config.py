import pytest

from rljob_api import errors
from rljob_api.manifest.trainer import DeepspeedSpec
from rljob_testing.sections import make_spec, section
from rljob_workers.trainer.engine import deepspeed_config


def made(*, stage: int = 2, dtype: str = "bfloat16", extra: dict[str, object] | None = None) -> deepspeed_config.Config:
    deepspeed = section(DeepspeedSpec, zero_stage=stage, extra=extra or {})
    return deepspeed_config.make(make_spec({"trainer.dtype": dtype}, deepspeed=deepspeed).trainer)


def test_bf16_gradients_add_up_in_fp32_where_deepspeed_offers_it() -> None:
    assert made(stage=2)["data_types"] == {"grad_accum_dtype": "fp32"}
    assert "data_types" not in made(stage=0)
    assert "bf16" not in made(dtype="float32")


def test_the_loop_owns_accumulation_and_nothing_is_divided_by_it() -> None:
    assert made()["gradient_accumulation_steps"] == 1
    assert made()["managed_gradient_accumulation"] is False


def test_pytorch_adam_is_used_because_deepspeeds_needs_a_compiler() -> None:
    optimizer = made()["optimizer"]
    assert isinstance(optimizer, dict)
    assert optimizer["params"]["torch_adam"] is True


def test_muon_has_its_own_momentum_and_the_rest_is_adamws() -> None:
    muon = {"type": "Muon", "muon.learningRate": "1e-4"}
    changes = {"trainer.deepspeed.zeroStage": 1} | {f"trainer.optimizer.{name}": value for name, value in muon.items()}
    optimizer = deepspeed_config.make(make_spec(changes).trainer)["optimizer"]
    assert isinstance(optimizer, dict)
    assert optimizer["type"] == "Muon"
    numbers = optimizer["params"]
    assert (numbers["momentum"], numbers["betas"], numbers["torch_adam"]) == (0.95, [0.9, 0.95], True)


def test_stage_zero_in_fp32_is_clipped_by_us() -> None:
    assert made(stage=0, dtype="float32")["gradient_clipping"] == 0.0
    assert made(stage=2, dtype="float32")["gradient_clipping"] == 1.0


def test_an_extra_key_is_added_at_any_depth() -> None:
    settings = made(extra={"prescale_gradients": True, "zero_optimization": {"reduce_bucket_size": 1000}})
    assert settings["prescale_gradients"] is True
    assert settings["zero_optimization"] == {"stage": 2, "reduce_bucket_size": 1000}


@pytest.mark.parametrize(
    ("extra", "path"),
    [
        ({"gradient_clipping": 5.0}, "spec.trainer.deepspeed.extra.gradient_clipping"),
        ({"zero_optimization": {"stage": 3}}, "spec.trainer.deepspeed.extra.zero_optimization.stage"),
        ({"bf16": False}, "spec.trainer.deepspeed.extra.bf16"),
    ],
)
def test_an_extra_key_that_we_set_ourselves_is_refused_by_path(extra: dict[str, object], path: str) -> None:
    with pytest.raises(errors.ManifestError, match=path):
        made(extra=extra)
