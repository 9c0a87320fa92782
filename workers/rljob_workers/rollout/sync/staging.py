"""Bring a version into the image buffer and prove that it is that version. Blocking, on a thread, before any pause.

    ask    what leads to the version from what the buffer holds: changes only, a whole image and the changes since, or
           the image as other rollouts hold it
    fetch  all changes, beside the buffer: if that breaks off, the buffer still holds what it held
    patch  the buffer, which is no version from here on until every tensor has its digest

A base that is not the one that the changes were made against is refused before a byte is written. What cannot be
fetched, or does not become the version, is asked for again from nothing.
"""

import dataclasses

from rljob_api import enums, errors, types
from rljob_workers.rollout.sync import image_buffer
from rljob_workers.runtime import clock as clocks
from rljob_workers.weights import delta, initial, pieces
from rljob_workers.weights import image as images
from rljob_workers.weights import shelf as shelves
from rljob_workers.weights.backends import base as backends

# Artifacts that are reported damaged at once.
_MOST_DAMAGED = 16


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Staged:
    """A verified image and what it took. Seconds and bytes are 0 if the buffer held the version already.

    delta_bytes: the part of num_bytes that was changes.
    """

    manifest: types.WeightVersion
    fetch_s: float
    verify_s: float
    num_bytes: int
    delta_bytes: int = 0


class Stager:
    """Owns the buffer and its layout: the tensors of the model files or of an adapter, in the job's dtype."""

    def __init__(
        self,
        *,
        first: initial.Initial,
        job: str,
        puller: backends.Puller,
        clock: clocks.Clock,
        shelf: shelves.Shelf | None = None,
    ) -> None:
        """Build image 0 in the buffer and hash it. Raises WeightsError if there are no model files.

        shelf: what others are served from; None where nobody is.
        """
        self.layout = first.layout
        self.buffer = image_buffer.ImageBuffer(self.layout.image_bytes)
        self._first, self._puller, self._clock = first, puller, clock
        first.fill(self.buffer.view)
        self.initial = images.initial_manifest(job, self.layout, images.digests(self.buffer.view, self.layout))
        self.buffer.mark_clean(self.initial.version)
        self._last = Staged(manifest=self.initial, fetch_s=0.0, verify_s=0.0, num_bytes=0)
        self._damaged: list[str] = []
        # What the version in the buffer may be served as, whole.
        self._image: types.Artifact | None = None
        # Other rollouts go on to newer versions: one whose image could not be had from them takes what is stored.
        self._only_stored = False
        self._shelf = shelf or shelves.Shelf()

    def stage(self, version: types.VersionId) -> Staged:
        """Bring `version` into the buffer. Raises WeightsError or UnavailableError; if a byte of the buffer was
        written, it is then dirty.
        """
        if self.buffer.clean == version == self._last.manifest.version:
            return dataclasses.replace(self._last, fetch_s=0.0, verify_s=0.0, num_bytes=0, delta_bytes=0)
        began, self._image = self._clock.monotonic(), None
        try:
            manifest, num_bytes, delta_bytes = (
                self._initial() if version == self.initial.version else self._pulled(version)
            )
        finally:
            self._shelf.trim()
        fetched = self._clock.monotonic()
        images.verify(self.buffer.view, self.layout, manifest)
        self.buffer.mark_clean(version)
        self._only_stored = False
        self._serve_image()
        self._last = Staged(
            manifest=manifest,
            fetch_s=fetched - began,
            verify_s=self._clock.monotonic() - fetched,
            num_bytes=num_bytes,
            delta_bytes=delta_bytes,
        )
        return self._last

    def _initial(self) -> tuple[types.WeightVersion, int, int]:
        self._overwrite()
        self._first.fill(self.buffer.view)
        return self.initial, 0, 0

    def _pulled(self, version: types.VersionId) -> tuple[types.WeightVersion, int, int]:
        plan = self._plan(version)
        first, last = plan.chain[0], plan.chain[-1]
        deltas = [manifest.artifacts[0] for manifest in plan.chain[1:]]
        starts_whole = first.artifacts[0].encoding is not enums.Encoding.DELTA
        if not starts_whole:
            deltas.insert(0, first.artifacts[0])
        changes = self._pulled_changes(deltas, plan.sources)
        # From here on the bytes are no one's version, until they are verified.
        if starts_whole:
            self._overwrite()
            self._only_stored = first.artifacts[0].encoding is enums.Encoding.IMAGE
            self._pull(first.artifacts[0], plan.sources, self.buffer.view)
        elif first.base != self.buffer.clean:
            self._initial()
        if changes:
            self._overwrite()
        for data in changes:
            delta.apply(self.layout, self.buffer.view, data)
        delta_bytes = sum(artifact.num_bytes for artifact in deltas)
        return last, delta_bytes + (first.artifacts[0].num_bytes if starts_whole else 0), delta_bytes

    def _pulled_changes(
        self, artifacts: list[types.Artifact], sources: tuple[types.WeightSource, ...]
    ) -> list[memoryview]:
        """Return the bytes of artifacts, each in memory of its own, which others may be served from afterwards."""
        changes = []
        for artifact in artifacts:
            place = memoryview(bytearray(artifact.num_bytes))
            self._pull(artifact, sources, place)
            changes.append(place)
        return changes

    def _serve_image(self) -> None:
        """Offer the buffer to others as the whole image that its manifest describes, if changes have led to it.

        Its tensors were verified, the bytes between them were not: each piece is, before it is sent first.
        """
        image = self._image
        if image is None or not image.pieces or image.num_bytes != self.layout.image_bytes:
            return
        if image.artifact_id in self._shelf.whole():
            return
        holding = self._shelf.hold(image, self.buffer.view, is_kept=False)
        self._shelf.add(holding, pieces.full(pieces.count(image)), is_checked=False)

    def _overwrite(self) -> None:
        """Mark the buffer dirty, once no stream to another rollout reads it any more."""
        self._shelf.withdraw(self.buffer.view)
        self.buffer.mark_dirty()

    def _pull(self, artifact: types.Artifact, sources: tuple[types.WeightSource, ...], into: memoryview) -> None:
        try:
            self._puller.pull(artifact, sources, into)
        except errors.DigestError:
            # The next plan goes another way, if these bytes are damaged where they are stored.
            self._damaged = [*self._damaged, artifact.artifact_id][-_MOST_DAMAGED:]
            raise

    def _plan(self, version: types.VersionId) -> types.VersionPlan:
        have = types.NO_VERSION if self.buffer.clean is None else self.buffer.clean
        plan = self._puller.plan(
            want=version,
            have=have,
            with_layout=False,
            damaged=tuple(self._damaged),
            only_stored=self._only_stored,
        )
        self._damaged, self._image = [], plan.image
        if not plan.chain or plan.chain[-1].version != version:
            raise errors.WeightsError(f"the plan for version {version} does not end in it")
        for manifest in plan.chain:
            self._check(manifest)
        self._check_bases(plan.chain)
        return plan

    def _check(self, manifest: types.WeightVersion) -> None:
        """Raise WeightsError for what does not fit the model files, before anything is allocated for it."""
        if manifest.layout_id != self.layout.layout_id:
            has = "an adapter of these model files" if self.layout.base else "the model files"
            raise errors.WeightsError(f"version {manifest.version} has another layout than {has}")
        if len(manifest.artifacts) != 1:
            raise errors.WeightsError(
                f"the plan names {len(manifest.artifacts)} artifacts of version {manifest.version}, not one"
            )
        artifact, whole = manifest.artifacts[0], self.layout.image_bytes
        fits = artifact.num_bytes == whole
        if artifact.encoding is enums.Encoding.IMAGE:
            fits = fits and artifact.artifact_id == manifest.state_hash and bool(artifact.pieces)
        if artifact.encoding is enums.Encoding.DELTA:
            fits = artifact.num_bytes <= delta.MOST_BYTES * whole
        if not fits:
            raise errors.WeightsError(
                f"version {manifest.version} has {artifact.num_bytes} bytes ({artifact.encoding}) for {whole}"
            )

    def _check_bases(self, chain: tuple[types.WeightVersion, ...]) -> None:
        """Raise WeightsError unless each version's changes are against the bits that are there before it."""
        before = self._last.manifest if self.buffer.clean == self._last.manifest.version else None
        if chain[0].artifacts[0].encoding is enums.Encoding.DELTA and chain[0].base == self.initial.version:
            # Whatever the buffer holds: image 0 can be made again.
            before = self.initial
        for manifest in chain:
            if manifest.artifacts[0].encoding is enums.Encoding.DELTA and (
                before is None or (manifest.base, manifest.base_state_hash) != (before.version, before.state_hash)
            ):
                has = "nothing" if before is None else f"version {before.version} with state hash {before.state_hash}"
                raise errors.WeightsError(
                    f"version {manifest.version} changes version {manifest.base} with state hash"
                    f" {manifest.base_state_hash}, but what would be changed is {has}"
                )
            before = manifest
