"""What a run begins with: the layout of its versions, and the image of version 0, which every process makes alike."""

import dataclasses
import pathlib
from collections.abc import Callable, Iterable, Iterator, Sequence

import xxhash

from rljob_api import errors, types
from rljob_api.manifest.job import JobSpec
from rljob_workers.weights import adapter, image


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Initial:
    """layout: of every version of the run. tensors: yields those of version 0, as images.tensors_of_files does."""

    layout: types.Layout
    tensors: Callable[[], Iterator[tuple[int, Iterable[memoryview]]]]

    def fill(self, into: memoryview) -> None:
        """Write version 0 to `into`, image_bytes long."""
        for index, pieces in self.tensors():
            place = self.layout.tensors[index].offset
            for piece in pieces:
                into[place : place + len(piece)] = piece
                place += len(piece)

    def manifest(self, job: str) -> types.WeightVersion:
        """Return the manifest of version 0, of which a piece of one tensor is in memory at a time."""
        digests = {}
        for index, pieces in self.tensors():
            digest = xxhash.xxh3_128()
            for piece in pieces:
                digest.update(piece)
            digests[index] = digest.digest()
        return image.initial_manifest(job, self.layout, digests)

    def image(self) -> bytearray:
        """Return version 0 in memory of its own."""
        data = bytearray(self.layout.image_bytes)
        self.fill(memoryview(data))
        return data


def of_model_files(folder: pathlib.Path, dtype: str) -> Initial:
    """Return what a run of all weights begins with: the files of a Hugging Face folder. Raises WeightsError."""
    layout = image.layout_from_safetensors(folder, dtype)
    return Initial(layout=layout, tensors=lambda: image.tensors_of_files(folder, layout))


def of_job(spec: JobSpec, folder: pathlib.Path) -> Initial:
    """Return what a job begins with: its model's files or, with spec.model.lora, an adapter that changes nothing yet.

    Raises WeightsError for a folder without files, ManifestError for targets that the model does not have.
    """
    lora, dtype = spec.model.lora, spec.model.dtype
    if lora is None:
        return of_model_files(folder, dtype)
    layout = adapter.layout_of(folder, lora, dtype=dtype, name=spec.model.name)
    return Initial(layout=layout, tensors=lambda: adapter.initial_tensors(layout, spec.seed))


def check_alike(layout_ids: Sequence[str], *, name: str) -> None:
    """Raise ManifestError unless all ranks of a trainer begin with the same layout, and an adapter on the same base:
    frozen weights are read from each node's own files of the model, `name`.
    """
    differing = [rank for rank, layout_id in enumerate(layout_ids) if layout_id != layout_ids[0]]
    if differing:
        raise errors.ManifestError(
            f"spec.model.name is {name!r}, but its files differ between the trainer's nodes: rank {differing[0]} reads"
            " others than rank 0"
        )
