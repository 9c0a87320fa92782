"""Fetch a version into the image buffer and prove that it is that version. Blocking, on a thread, before any pause."""

import dataclasses
from pathlib import Path

from rljob_api import errors, types
from rljob_workers.rollout.sync import image_buffer
from rljob_workers.runtime import clock as clocks
from rljob_workers.weights import image as images
from rljob_workers.weights.backends import base as backends


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Staged:
    """A verified image and what it took. fetch_s and verify_s are 0 if the buffer held the version already."""

    manifest: types.WeightVersion
    fetch_s: float
    verify_s: float
    num_bytes: int


class Stager:
    """Owns the buffer and its layout: the tensors of the model files, in the job's dtype."""

    def __init__(self, *, model: Path, dtype: str, job: str, puller: backends.Puller, clock: clocks.Clock) -> None:
        """Build image 0 from the model files in the buffer and hash it. Raises WeightsError if there are none."""
        self.layout = images.layout_from_safetensors(model, dtype)
        self.buffer = image_buffer.ImageBuffer(self.layout.image_bytes)
        self._model, self._puller, self._clock = model, puller, clock
        images.fill_from_safetensors(model, self.layout, self.buffer.view)
        self.initial = images.initial_manifest(job, self.layout, self.buffer.view)
        self.buffer.mark_clean(self.initial.version)
        self._last = Staged(manifest=self.initial, fetch_s=0.0, verify_s=0.0, num_bytes=0)

    def stage(self, version: types.VersionId) -> Staged:
        """Bring `version` into the buffer. Raises WeightsError or UnavailableError; the buffer is then dirty."""
        if self.buffer.clean == version == self._last.manifest.version:
            return dataclasses.replace(self._last, fetch_s=0.0, verify_s=0.0, num_bytes=0)
        began = self._clock.monotonic()
        manifest, num_bytes = self._initial() if version == self.initial.version else self._pulled(version)
        fetched = self._clock.monotonic()
        images.verify(self.buffer.view, self.layout, manifest)
        self.buffer.mark_clean(version)
        verify_s = self._clock.monotonic() - fetched
        self._last = Staged(manifest=manifest, fetch_s=fetched - began, verify_s=verify_s, num_bytes=num_bytes)
        return self._last

    def _initial(self) -> tuple[types.WeightVersion, int]:
        self.buffer.mark_dirty()
        images.fill_from_safetensors(self._model, self.layout, self.buffer.view)
        return self.initial, 0

    def _pulled(self, version: types.VersionId) -> tuple[types.WeightVersion, int]:
        manifest, sources = self._manifest(version)
        artifact = self._dense_artifact(manifest)
        # From here on the bytes are no one's version, until they are verified.
        self.buffer.mark_dirty()
        self._puller.pull(artifact, sources, self.buffer.view)
        return manifest, artifact.num_bytes

    def _manifest(self, version: types.VersionId) -> tuple[types.WeightVersion, tuple[types.WeightSource, ...]]:
        plan = self._puller.plan(want=version, have=types.NO_VERSION, with_layout=False)
        if not plan.chain or plan.chain[-1].version != version:
            raise errors.WeightsError(f"the plan for version {version} does not end in it")
        return plan.chain[-1], plan.sources

    def _dense_artifact(self, manifest: types.WeightVersion) -> types.Artifact:
        if manifest.layout_id != self.layout.layout_id:
            raise errors.WeightsError(f"version {manifest.version} has another layout than the model files")
        if manifest.kind != "anchor" or len(manifest.artifacts) != 1:
            raise errors.WeightsError(f"version {manifest.version} is not a dense anchor with one artifact")
        if manifest.artifacts[0].num_bytes != self.layout.image_bytes:
            raise errors.WeightsError(
                f"version {manifest.version} has {manifest.artifacts[0].num_bytes} bytes for {self.layout.image_bytes}"
            )
        return manifest.artifacts[0]
