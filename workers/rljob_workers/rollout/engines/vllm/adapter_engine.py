"""The weight engine for an adapter (LoRA): puts a mapped image of A and B into vLLM's one slot, the base untouched.

The adapter is replaced in place, between two decode steps, as all weights are: sequences in flight continue with the
new one, and vLLM's own label says of each token which version sampled it. So there is one slot and one integer id for
the whole run, however long answers are. Requests name the version in the adapter's name, which vLLM puts into the keys
of its prefix cache.
"""

from typing import Any

from vllm.lora.lora_model import LoRAModel
from vllm.lora.peft_helper import PEFTHelper

from rljob_workers.rollout.engines.vllm.image_engine import ImageUpdateInfo, ImageWeightEngine

# vLLM counts adapters from 1.
ADAPTER_ID = 1


class AdapterWeightEngine(ImageWeightEngine):
    """Replaces the adapter by that of the mapped image."""

    _pairs: frozenset[str] = frozenset()

    def start_weight_update(self) -> None:
        """Nothing is taken apart: the old adapter is whole until the new one replaces it."""
        self._pairs = frozenset()

    def receive_weights(self, update_info: ImageUpdateInfo) -> None:
        """Replace the adapter. Raises ValueError for tensors that vLLM has no place for; the old one then stays."""
        manager: Any = self._manager
        # Copies, a few MB: vLLM keeps what it is given, and the image is overwritten by the next version.
        tensors = {name: tensor.clone() for name, tensor in self.tensors(update_info)}
        rank = next(tensor.shape[0] for name, tensor in tensors.items() if ".lora_A." in name)
        mapper = getattr(self.model, "hf_to_vllm_mapper", None)
        adapter = LoRAModel.from_lora_tensors(
            lora_model_id=ADAPTER_ID,
            tensors=tensors,
            peft_helper=PEFTHelper.from_dict({"r": rank, "lora_alpha": update_info.alpha, "target_modules": []}),
            device="cpu",
            dtype=manager.lora_config.lora_dtype,
            weights_mapper=None if mapper is None else mapper.get_rename_mapper(),
        )
        # Before vLLM fuses them, and passes over what it has no place for.
        layers = frozenset(adapter.loras)
        if lost := layers - self._places():
            raise ValueError(f"{len(lost)} layers of the adapter have no place in the engine, e.g. {sorted(lost)[:5]}")
        if half := [name for name, lora in adapter.loras.items() if lora.lora_a is None or lora.lora_b is None]:
            raise ValueError(f"{len(half)} layers of the adapter have A or B alone, e.g. {half[:5]}")
        manager.remove_adapter(ADAPTER_ID)
        manager.add_adapter(adapter)
        manager.activate_adapter(ADAPTER_ID)
        self._pairs = layers

    def finish_weight_update(self) -> None:
        """Raises RuntimeError unless the slot holds the adapter that was received."""
        if not self._pairs or self._manager.lora_index_to_id != [ADAPTER_ID]:
            raise RuntimeError(f"{len(self._pairs)} layers were adapted; slots: {self._manager.lora_index_to_id}")

    def reset_reload(self) -> int:
        """Nothing is left behind by a broken update that the next one does not replace."""
        return 0

    @property
    def _manager(self) -> Any:
        model: Any = self.model
        return model.lora_manager

    def _places(self) -> frozenset[str]:
        """Return the layers that an adapter may have, fused ones by the names of their parts."""
        packed = self._manager.packed_modules
        fused = {part for parts in packed.values() for part in parts}
        return frozenset(fused | set(self._manager.modules))
