"""What is trained as bytes: the flat image of a weight version, and the Hugging Face folder at the end.

What is exported is what the forward uses (the module's weights), not the fp32 masters. One buffer, made once: first
touch of fresh memory is ten times slower than a copy into warm pages. All ranks call, rank 0 writes.
"""

import pathlib
from collections.abc import Callable, Sequence

import torch

from rljob_api import errors, types
from rljob_api.manifest.job import JobSpec
from rljob_api.manifest.model import LoraSpec
from rljob_workers.runtime import atomic
from rljob_workers.trainer.model import adapters
from rljob_workers.trainer.state import adapter_folder, model_folder
from rljob_workers.weights import image as images

# Calls receive(name, whole tensor) for each name in order, on every rank; collective under ZeRO-3.
Visit = Callable[[Sequence[str], Callable[[str, torch.Tensor], None]], None]

# Below the folder of an exported model: the adapter alone.
ADAPTER = "adapter"
DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}


class ImageExporter:
    """Fills the image of `layout` from the model."""

    def __init__(
        self, *, layout: types.Layout, visit: Visit, writes: bool, most_file_bytes: int = model_folder.MOST_FILE_BYTES
    ) -> None:
        """`writes`: this rank keeps an image. Without it the rank only takes part in gathering."""
        self.layout = layout
        self._most_file_bytes = most_file_bytes
        self._visit = visit
        self._image = bytearray(layout.image_bytes if writes else 0)
        self._views = views(layout, self._image) if writes else {}

    @property
    def image(self) -> memoryview:
        """Return the buffer; empty on ranks that do not write."""
        return memoryview(self._image)

    def export(self) -> memoryview:
        """Fill the image and return it. Raises RLJobError naming the first tensor with NaN or Inf.

        Such a state would poison every rollout, and NaN is the "unchanged" mark of sparse loaders.
        """
        broken: list[str] = []

        def receive(name: str, tensor: torch.Tensor) -> None:
            if self._views:
                view = self._views[name]
                view.copy_(tensor)
                if not torch.isfinite(view.sum(dtype=torch.float32)):
                    broken.append(name)

        self._visit([spec.name for spec in self.layout.tensors], receive)
        if broken:
            raise errors.RLJobError(f"tensor {broken[0]} holds NaN or Inf; this state is not published")
        return self.image

    def write_weights(self, model_dir: pathlib.Path, target: pathlib.Path) -> None:
        """Write what a later start needs besides the model files, as a folder. Atomic. All ranks call it."""
        self.export()
        if self._views:
            with atomic.replaced_folder(target) as work:
                self._write_weights(model_dir, work)

    def write_export(self, model_dir: pathlib.Path, target: pathlib.Path) -> None:
        """Write the model for others, as a Hugging Face folder. Atomic. All ranks call it."""
        self.export()
        if self._views:
            with atomic.replaced_folder(target) as work:
                self._write_export(model_dir, work)

    def _write_weights(self, model_dir: pathlib.Path, folder: pathlib.Path) -> None:
        model_folder.write(
            folder, self.layout, self._views.items(), model_dir=model_dir, most_file_bytes=self._most_file_bytes
        )

    def _write_export(self, model_dir: pathlib.Path, folder: pathlib.Path) -> None:
        self._write_weights(model_dir, folder)


def of_job(spec: JobSpec, layout: types.Layout, *, visit: Visit, writes: bool) -> ImageExporter:
    """Return what exports the weights of a job, or its adapter."""
    model = spec.model
    if model.lora is None:
        return ImageExporter(layout=layout, visit=visit, writes=writes)
    return AdapterExporter(
        layout=layout, visit=visit, writes=writes, lora=model.lora, base=model.name, dtype=model.dtype
    )


class AdapterExporter(ImageExporter):
    """Fills the image of an adapter. Its export is the model with the adapter added, and the adapter alone below it."""

    def __init__(
        self, *, layout: types.Layout, visit: Visit, writes: bool, lora: LoraSpec, base: str, dtype: str
    ) -> None:
        """base: what the model is called where the adapter is loaded. dtype: of the exported model."""
        super().__init__(layout=layout, visit=visit, writes=writes)
        self._lora, self._base, self._dtype = lora, base, dtype

    def _write_weights(self, _model_dir: pathlib.Path, folder: pathlib.Path) -> None:
        adapter_folder.write(folder, self._views, adapters.config(self._lora, self.layout, base=self._base))

    def _write_export(self, model_dir: pathlib.Path, folder: pathlib.Path) -> None:
        model = images.layout_from_safetensors(model_dir, self._dtype)
        names = [spec.name for spec in model.tensors]
        merged = adapter_folder.merged(model_dir, names, self._views, scale=self._lora.alpha / self._lora.rank)
        wire = ((name, tensor.to(DTYPES[self._dtype])) for name, tensor in merged)
        model_folder.write(folder, model, wire, model_dir=model_dir)
        (folder / ADAPTER).mkdir()
        self._write_weights(model_dir, folder / ADAPTER)


def views(layout: types.Layout, image: bytearray) -> dict[str, torch.Tensor]:
    """Return the tensors of an image, which share its bytes, by name."""
    flat = torch.frombuffer(image, dtype=torch.uint8)
    return {
        spec.name: flat[spec.offset : spec.offset + spec.length].view(DTYPES[spec.dtype]).view(spec.shape)
        for spec in layout.tensors
    }
