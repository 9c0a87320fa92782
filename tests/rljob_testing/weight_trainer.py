"""The trainer of `weight_process`: a model that is changed as it is told, and the trainer's own publisher."""

import argparse
import functools
import pathlib
import sys
import uuid
from collections.abc import Callable, Sequence

import torch

from rljob_api import placement
from rljob_api.manifest.trainer import WeightSyncSpec
from rljob_testing import local_weights, sections, weight_process
from rljob_workers.rpc import train
from rljob_workers.runtime import clock as clocks
from rljob_workers.runtime import retry
from rljob_workers.trainer.state import anchoring, export, publish
from rljob_workers.weights.backends import broadcaster, gloo_store, grpc_store

_PATIENCE_S = 20.0
_INTEGERS = {torch.bfloat16: torch.int16, torch.float32: torch.int32}
# Without the highest bit of the exponent a number is less than 2.
_SMALL = {torch.bfloat16: ~(1 << 14), torch.float32: ~(1 << 30)}


class Trainer:
    """A model, changed as it is told, and the trainer's own publisher. A checkpoint is written after each version."""

    def __init__(self, options: argparse.Namespace) -> None:
        """Begin with the checkpoint if there is one, else with the model files."""
        self._checkpoint: pathlib.Path | None = options.checkpoint
        layout, first, self._model = local_weights.initial_version(options.model, weight_process.JOB, options.dtype)
        begins_anew = options.attempt == 1
        if self._checkpoint is not None and self._checkpoint.exists():
            self._model[:] = self._checkpoint.read_bytes()
            begins_anew = False
        self._views = export.views(layout, self._model)
        exporter = export.ImageExporter(layout=layout, visit=self._visit, writes=True)
        self._batches = train.BatchClient(address=options.coordinator, tls=None)
        session = self._batches.register(
            pod="trainer-0", boot_id=uuid.uuid4().hex, attempt=options.attempt, rank=0, resume_step=0,
            initial_state_hash=first.state_hash,
        )  # fmt: skip
        made: Callable[..., grpc_store.WeightPublisher] = grpc_store.WeightPublisher
        if options.transport == "gloo":
            to_rollouts = broadcaster.Broadcaster(host=placement.LOOPBACK)
            made = functools.partial(gloo_store.GlooPublisher, to_rollouts=to_rollouts)
        self._transport = made(
            control_address=options.coordinator, store_address=options.store, tls=None,
            piece_bytes=options.piece_bytes,
        )  # fmt: skip
        self._transport.session = session.token
        self._publisher = publish.VersionPublisher(
            exporter=exporter,
            transport=self._transport,
            job=weight_process.JOB,
            attempt=options.attempt,
            head=session.head_version,
            description="test",
            anchors=anchoring.Anchors(sections.section(WeightSyncSpec, anchor_every=options.anchor_every)),
            clock=clocks.SystemClock(),
            reconnect_timeout_s=_PATIENCE_S,
            image_piece_bytes=options.piece_bytes,
        )
        self._layout, self._head = layout, int(session.head_version)
        if begins_anew:
            exporter.export()
            self._publisher.compare_with_image()

    def _visit(self, names: Sequence[str], receive: Callable[[str, torch.Tensor], None]) -> None:
        for name in names:
            receive(name, self._views[name])

    def run(self) -> None:
        """Answer until the input ends."""
        weight_process.say({"ready": True})
        for line in sys.stdin:
            word, *rest = line.split()
            if word == "publish":
                self._change(rest[0], int(rest[1]), int(rest[2]))
                self._publisher.publish(0)
                self._publisher.flush()
                self._head += 1
                if self._checkpoint is not None:
                    part = self._checkpoint.with_suffix(".part")
                    part.write_bytes(self._model)
                    part.replace(self._checkpoint)
                weight_process.say(
                    {"published": self._head, "sha256": weight_process.sha256(memoryview(self._model), self._layout)}
                )
            else:
                weight_process.say({"supplied": self._supply()})
        self._publisher.close()
        self._transport.close()
        self._batches.close()

    def _supply(self) -> int:
        header, _ = retry.retry_sync(
            lambda: self._batches.fetch(step=1, rank=0, world_size=1, wait_s=0.0, stop=False),
            deadline_s=_PATIENCE_S,
            backoff=retry.Backoff(first_s=0.05, most_s=0.5),
        )
        self._publisher.supply(header.lost_version)
        self._publisher.flush()
        return header.lost_version

    def _change(self, name: str, count: int, seed: int) -> None:
        weights = self._views[name].view(-1)
        bits = weights.view(_INTEGERS[weights.dtype])
        generator = torch.Generator().manual_seed(seed)
        places = torch.randperm(len(bits), generator=generator)[:count] if count < len(bits) else slice(None)
        most = torch.iinfo(bits.dtype)
        fresh = torch.randint(most.min, most.max, (min(count, len(bits)),), dtype=bits.dtype, generator=generator)
        bits[places] = fresh & _SMALL[weights.dtype]
