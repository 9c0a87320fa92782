"""What a run begins with: the layout of its versions, and the image of version 0, which every process makes alike."""

import dataclasses
import pathlib
from collections.abc import Callable

from rljob_api import types
from rljob_api.manifest.job import JobSpec
from rljob_workers.weights import adapter, image


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Initial:
    """layout: of every version of the run. fill: writes version 0 into an image, image_bytes long."""

    layout: types.Layout
    fill: Callable[[memoryview], None]

    def manifest(self, job: str, data: memoryview) -> types.WeightVersion:
        """Return the manifest of version 0, whose image `data` is."""
        return image.initial_manifest(job, self.layout, data)

    def image(self) -> bytearray:
        """Return version 0 in memory of its own."""
        data = bytearray(self.layout.image_bytes)
        self.fill(memoryview(data))
        return data


def of_model_files(folder: pathlib.Path, dtype: str) -> Initial:
    """Return what a run of all weights begins with: the files of a Hugging Face folder. Raises WeightsError."""
    layout = image.layout_from_safetensors(folder, dtype)
    return Initial(layout=layout, fill=lambda into: image.fill_from_safetensors(folder, layout, into))


def of_job(spec: JobSpec, folder: pathlib.Path) -> Initial:
    """Return what a job begins with: its model's files or, with spec.model.lora, an adapter that changes nothing yet.

    Raises WeightsError for a folder without files, ManifestError for targets that the model does not have.
    """
    lora, dtype = spec.model.lora, spec.model.dtype
    if lora is None:
        return of_model_files(folder, dtype)
    layout = adapter.layout_of(folder, lora, dtype=dtype, name=spec.model.name)
    return Initial(layout=layout, fill=lambda into: adapter.fill_initial(layout, spec.seed, into))
