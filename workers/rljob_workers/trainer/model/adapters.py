"""Low-rank adapters (LoRA) inside a loaded model. Besides state/adapter_folder.py the only user of peft.

PEFT wraps the layers in place: the model stays what transformers made of it, with its own head, and its weights are
frozen. The adapter's tensors have the model's number format and get their values from us, not from PEFT: those of
version 0, which every process of a run makes alike, or a checkpoint's.

Where a layer's weights are whole, one function of ours multiplies in place of PEFT's three modules, which write and
read tensors of the layer's outputs once more for the factor and once more for the sum, forwards and backwards.
"""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch

from rljob_api import errors, types
from rljob_api.manifest.model import LoraSpec
from rljob_workers.weights.adapter import PEFT_PREFIX

# Where it is used: its import takes 1.3 s, and most runs train no adapter.
if TYPE_CHECKING:
    import peft

_NAME = "default"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Adapter:
    """An adapter that is trained. values: of each tensor of the layout, by its name there, what it begins with."""

    lora: LoraSpec
    layout: types.Layout
    values: Mapping[str, torch.Tensor]


def config(lora: LoraSpec, layout: types.Layout, *, base: str) -> "peft.LoraConfig":
    """Return PEFT's description of an adapter of this layout. base: what the model is called where it is loaded."""
    import peft

    return peft.LoraConfig(
        task_type="CAUSAL_LM",
        base_model_name_or_path=base,
        r=lora.rank,
        lora_alpha=lora.alpha,
        lora_dropout=0.0,
        bias="none",
        target_modules=sorted({spec.name.split(".")[-3] for spec in layout.tensors}),
        inference_mode=True,
    )


def add(lm: Any, adapter: Adapter) -> None:
    """Freeze the model and give it the adapter, in place.

    Raises ManifestError if PEFT adapts other layers than the layout, which follows from the model files, says.
    """
    import peft

    dtype, lora = lm.dtype, adapter.lora
    lm.requires_grad_(False)
    peft.inject_adapter_in_model(config(lora, adapter.layout, base=""), lm, adapter_name=_NAME)
    problem = SavedNames(lm.named_parameters()).problem(adapter.layout, [])
    if problem:
        raise errors.ManifestError(f"spec.model.lora.targets is {list(lora.targets)}, but {problem}")
    for layer in _layers(lm):
        # Our own products may be wider than the parameters (cpu_float32_matmul.py); PEFT would round them.
        layer.cast_input_dtype_enabled = False
        if type(layer.get_base_layer()) is torch.nn.Linear:
            layer.forward = functools.partial(_product, layer, layer.forward)
    for name, parameter in lm.named_parameters():
        is_adapter = ".lora_" in name
        parameter.requires_grad_(is_adapter)
        if is_adapter:
            parameter.data = adapter.values[_saved_name(name)].to(dtype, copy=True)


@contextlib.contextmanager
def without(lm: Any) -> Iterator[None]:
    """Let the model compute without its adapter while the block runs: as its files have it."""
    # PEFT's own switch also freezes and unfreezes parameters, of which DeepSpeed has made its own by then.
    for layer in _layers(lm):
        layer._disable_adapters = True
    try:
        yield
    finally:
        for layer in _layers(lm):
            layer._disable_adapters = False


class SavedNames:
    """The tensors of an adapter under the model's names and those of an image; as loading.SavedNames for a model."""

    def __init__(self, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
        """`tensors`: by the model's names, while they are whole; others than the adapter's are left out."""
        adapter = [(name, tensor) for name, tensor in tensors if ".lora_" in name]
        self._source = {_saved_name(name): name for name, _ in adapter}
        self._shapes = {_saved_name(name): tuple(tensor.shape) for name, tensor in adapter}

    def source(self, saved_name: str) -> str:
        """Return the model's name of a tensor of the image. Raises WeightsError."""
        if saved_name not in self._source:
            raise errors.WeightsError(f"the model has no tensor {saved_name}, which its adapter should have")
        return self._source[saved_name]

    def parts(self, name: str, tensor: torch.Tensor) -> Mapping[str, torch.Tensor]:
        """Return a tensor of the model under its name in an image."""
        return {_saved_name(name): tensor}

    def problem(self, layout: types.Layout, trained: Iterable[str]) -> str:
        """Return why the layout and this adapter do not hold the same tensors, empty if they do. trained: the model's
        names of the tensors that are trained.
        """
        expected = {spec.name: tuple(spec.shape) for spec in layout.tensors}
        differing = sorted(set(expected.items()) ^ set(self._shapes.items()))
        if differing:
            return f"the model's adapter and its files differ in {differing[0][0]}"
        lacking = [name for name in trained if name not in self._source.values()]
        return f"{lacking[0]} is trained and would not be published" if lacking else ""


def _product(layer: Any, of_modules: Callable[..., torch.Tensor], states: torch.Tensor, **more: Any) -> torch.Tensor:
    """What PEFT's layer returns. of_modules: its own way, for weights that only a module's call has."""
    base, down, up = layer.get_base_layer(), layer.lora_A[_NAME], layer.lora_B[_NAME]
    # Divided among ranks (ZeRO 3) there is nothing of it here; a replaced forward is cpu_float32_matmul.py's.
    if layer.disable_adapters or base.weight.ndim != 2 or down.weight.ndim != 2 or "forward" in vars(base):
        return of_modules(states, **more)
    # torch leaves Function.apply untyped.
    result: torch.Tensor = AdaptedLinear.apply(  # type: ignore[no-untyped-call]
        states, base.weight, base.bias, down.weight, up.weight, layer.scaling[_NAME]
    )
    return result


class AdaptedLinear(torch.autograd.Function):
    """(x [..., in], W [out, in], b [out] or None, A [rank, in], B [out, rank], s) -> x W^T + b + s x A^T B^T.

    Gradients for x, A and B. The factor is multiplied with rank numbers of a token, and sums are made by the products
    that have them: nothing as large as the outputs is written but the result.
    """

    @staticmethod
    def forward(
        ctx: Any,
        states: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        down: torch.Tensor,
        up: torch.Tensor,
        scale: float,
    ) -> torch.Tensor:
        rows = states.reshape(-1, states.shape[-1])
        reduced = torch.mm(rows, down.T).mul_(scale)
        ctx.save_for_backward(rows, weight, down, up, reduced)
        ctx.scale, ctx.shape = scale, states.shape
        result = torch.nn.functional.linear(rows, weight, bias).addmm_(reduced, up.T)
        return result.view(*states.shape[:-1], -1)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        rows, weight, down, up, reduced = ctx.saved_tensors
        upstream = gradients[0].reshape(len(rows), -1)
        of_reduced = torch.mm(upstream, up).mul_(ctx.scale)
        of_states = None
        if ctx.needs_input_grad[0]:
            of_states = torch.mm(upstream, weight).addmm_(of_reduced, down).view(ctx.shape)
        return of_states, None, None, torch.mm(of_reduced.T, rows), torch.mm(upstream.T, reduced), None


def _saved_name(name: str) -> str:
    return PEFT_PREFIX + name.replace(f".{_NAME}.", ".", 1)


def _layers(lm: Any) -> list[Any]:
    from peft.tuners import tuners_utils

    return [module for module in lm.modules() if isinstance(module, tuners_utils.BaseTunerLayer)]
