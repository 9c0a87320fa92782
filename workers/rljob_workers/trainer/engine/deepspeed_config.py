"""spec.trainer to DeepSpeed's dict. Plain dicts and nothing else, so that it is testable without DeepSpeed.

The step loop owns accumulation and scaling: `managed_gradient_accumulation` is off, so backward only accumulates and
step reduces, averages over ranks, clips and updates. PyTorch's AdamW: DeepSpeed's own CPU kernel needs a compiler.
"""

from rljob_api import errors
from rljob_api.manifest.trainer import DeepspeedSpec, OptimizerSpec, TrainerSpec

Config = dict[str, object]
_OFFLOAD_PARAMETERS: Config = {"offload_param": {"device": "cpu", "pin_memory": True}}


def make(trainer: TrainerSpec, *, fused: bool = True) -> Config:
    """Return the dict for deepspeed.initialize. Raises ManifestError for an extra key that is set here already."""
    half = trainer.dtype == "bfloat16"
    settings: Config = {
        # Not used by the loop, but DeepSpeed refuses to start without a batch size.
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "managed_gradient_accumulation": False,
        "gradient_clipping": 0.0 if clips_itself(trainer) else trainer.optimizer.max_grad_norm,
        "optimizer": _optimizer(trainer.optimizer, fused=fused),
        "zero_optimization": _zero(trainer.deepspeed),
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "communication_data_type": "fp32",
        "steps_per_print": 1 << 30,
        "wall_clock_breakdown": False,
    }
    if half:
        settings["bf16"] = {"enabled": True, "check_grad_overflow": True}
    if half and trainer.deepspeed.zero_stage > 0:
        settings["data_types"] = {"grad_accum_dtype": "fp32"}
    return merge(settings, dict(trainer.deepspeed.extra), path="spec.trainer.deepspeed.extra")


def frozen(trainer: TrainerSpec) -> Config:
    """Return the dict for a model that is divided by ZeRO-3 and never trained."""
    settings: Config = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 3}}
    if trainer.deepspeed.offload_parameters:
        settings["zero_optimization"] = {"stage": 3, **_OFFLOAD_PARAMETERS}
    return settings | ({"bf16": {"enabled": True}} if trainer.dtype == "bfloat16" else {})


def clips_itself(trainer: TrainerSpec) -> bool:
    """True for stage 0 in fp32: there DeepSpeed clips without reporting the norm and steps on NaN; `deepspeed.py`
    does it.
    """
    return trainer.dtype == "float32" and trainer.deepspeed.zero_stage == 0


def merge(settings: Config, extra: Config, *, path: str) -> Config:
    """Return `settings` with the keys of `extra` added, at any depth. Raises ManifestError where both set a key."""
    merged = dict(settings)
    for key, value in extra.items():
        ours = settings.get(key)
        if key not in settings:
            merged[key] = value
        elif isinstance(ours, dict) and isinstance(value, dict):
            merged[key] = merge(ours, value, path=f"{path}.{key}")
        else:
            raise errors.ManifestError(f"{path}.{key} is {value!r}, but rljob sets it itself to {ours!r}; remove it")
    return merged


def _optimizer(optimizer: OptimizerSpec, *, fused: bool) -> Config:
    adam = _adam(optimizer, fused=fused)
    if optimizer.muon is None:
        return {"type": "AdamW", "params": adam}
    del adam["fused"]
    # Newton-Schulz in bf16, as its authors have it and as torch.optim.Muon does.
    return {"type": "Muon", "params": adam | {"momentum": optimizer.muon.momentum, "ns_method": "standard"}}


def _adam(optimizer: OptimizerSpec, *, fused: bool) -> Config:
    return {
        # Set before every update; 0 here because DeepSpeed takes a step of its own at the start, with weight decay.
        "lr": 0.0,
        "betas": list(optimizer.betas),
        "eps": optimizer.eps,
        "weight_decay": optimizer.weight_decay,
        "torch_adam": True,
        "fused": fused,
    }


def _zero(deepspeed: DeepspeedSpec) -> Config:
    zero: Config = {"stage": deepspeed.zero_stage}
    if deepspeed.offload_optimizer:
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
    if deepspeed.offload_parameters:
        zero |= _OFFLOAD_PARAMETERS
    return zero
