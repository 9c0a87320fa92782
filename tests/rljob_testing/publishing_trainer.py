"""A trainer as far as its weights go: a model that changes as it is told, and the publisher of the trainer."""

from collections.abc import Callable, Sequence

import torch

from rljob_api import enums, types
from rljob_api.manifest.trainer import WeightSyncSpec
from rljob_testing import local_weights, sections
from rljob_testing.clock import FakeClock
from rljob_workers.trainer.state import anchoring, export, publish
from rljob_workers.weights import image


class PublishingTrainer:
    """A model, its publisher, and the images of what it published by version."""

    def __init__(
        self,
        layout: types.Layout,
        store: local_weights.LocalWeights | None = None,
        *,
        image_piece_bytes: int = 0,
        **settings: object,
    ) -> None:
        """`settings`: of weightSync. Where there is no store yet, version 0 is what the model begins with."""
        self.layout, self._image_piece_bytes = layout, image_piece_bytes
        self.generator = torch.Generator().manual_seed(0)
        self.model = {
            spec.name: torch.randn(spec.shape, generator=self.generator).bfloat16() for spec in self.layout.tensors
        }
        self.settings = settings
        exporter = self.exporter()
        exporter.export()
        digests = image.digests(exporter.image, self.layout)
        self.store = store or local_weights.LocalWeights(initial_state_hash=image.state_hash(self.layout, digests))
        self.images: dict[int, bytes] = {0: bytes(exporter.image)}
        self.publisher = self._publisher(exporter)
        if store is None:
            self.publisher.compare_with_image()

    def exporter(self) -> export.ImageExporter:
        """Return a new exporter of the model."""

        def visit(names: Sequence[str], receive: Callable[[str, torch.Tensor], None]) -> None:
            for name in names:
                receive(name, self.model[name])

        return export.ImageExporter(layout=self.layout, visit=visit, writes=True)

    def _publisher(self, exporter: export.ImageExporter) -> publish.VersionPublisher:
        return publish.VersionPublisher(
            exporter=exporter,
            transport=self.store,
            job="job",
            attempt=self.store.attempt,
            head=self.store.head,
            description="test",
            anchors=anchoring.Anchors(sections.section(WeightSyncSpec, **self.settings)),
            clock=FakeClock(),
            reconnect_timeout_s=0.0,
            image_piece_bytes=self._image_piece_bytes,
        )

    def restart(self, *, version: int | None = None) -> None:
        """Begin the next attempt, as a new process does, with the model of `version` or as it is."""
        self.publisher.flush()
        if version is not None:
            self.load(self.images[version])
        self.store.attempt += 1
        self.publisher = self._publisher(self.exporter())

    def load(self, data: bytes) -> None:
        """Make the model that of an image."""
        for spec in self.layout.tensors:
            part = torch.frombuffer(bytearray(data[spec.offset : spec.offset + spec.length]), dtype=torch.bfloat16)
            self.model[spec.name].copy_(part.view(spec.shape))

    def change(self, count: int, tensor: str = "model.embed_tokens.weight") -> None:
        """Move `count` weights of a tensor to the next value up."""
        bits = self.model[tensor].view(torch.int16).view(-1)
        bits[torch.randperm(len(bits), generator=self.generator)[:count]] += 1

    def publish(self) -> types.WeightVersion:
        """Publish the model as it is and wait until that is registered."""
        self.publisher.publish(self.store.head + 1)
        self.publisher.flush()
        version = self.store.versions[self.store.head]
        exporter = self.exporter()
        self.images[version.version] = bytes(exporter.export())
        return version

    def encodings(self, version: int) -> list[enums.Encoding]:
        return [artifact.encoding for artifact in self.store.versions[version].artifacts]
