"""Publishing weight versions: export in the step's path, everything else on a thread behind it.

    train thread   | step k | export | step k+1 ............. | wait, if still busy | export | ...
    publish thread          |        hash, compare, upload, register |

At most one publish is in flight; a second one waits and the wait is counted. Artifacts go first, the manifest last, so
a crash in between registers nothing. A version id is proposed as head + 1 and never used for other bits.

The publisher holds a copy of what it published last. A version travels as its changes against that copy, and every so
often whole as well (anchoring.py). The copy is brought forward by those very changes and hashed, so that changes which
would give a receiver other bits are never sent. A new process has no copy and begins with a whole version.
"""

import concurrent.futures
import dataclasses
import logging
from collections.abc import Mapping

from rljob_api import enums, errors, types
from rljob_workers.runtime import clock as clocks
from rljob_workers.runtime import retry
from rljob_workers.trainer.state import anchoring, export
from rljob_workers.weights import delta, image, pieces
from rljob_workers.weights.backends import base

logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Base:
    """The version whose bits the copy holds."""

    version: types.VersionId
    state_hash: str


class VersionPublisher:
    """Makes versions of the exporter's image. `transport` None: this rank only takes part in exporting."""

    def __init__(
        self,
        *,
        exporter: export.ImageExporter,
        transport: base.Publisher | None,
        job: str,
        attempt: int,
        head: types.VersionId,
        description: str,
        anchors: anchoring.Anchors,
        clock: clocks.Clock,
        reconnect_timeout_s: float,
        image_piece_bytes: int = 0,
    ) -> None:
        """`head`: newest version of the registry; `reconnect_timeout_s`: how long a failed store is asked again;
        image_piece_bytes: of the pieces in which rollouts serve an image that is not stored, 0 where they do not.
        """
        self._exporter, self._transport, self._clock = exporter, transport, clock
        self._job, self._attempt, self._head = job, attempt, head
        self._description, self._reconnect_timeout_s = description, reconnect_timeout_s
        self._anchors, self._image_piece_bytes = anchors, image_piece_bytes
        self._pool = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="publish")
        self._flight: concurrent.futures.Future[None] | None = None
        self._copy = bytearray()
        self._base: _Base | None = None
        self._newest: types.WeightVersion | None = None
        self._layout_sent = False

    def compare_with_image(self) -> None:
        """Compare with the exporter's present image from now on, which is version 0 already: the model files."""
        if self._transport is not None:
            self._copy = bytearray(self._exporter.image)
            layout = self._exporter.layout
            state_hash = image.state_hash(layout, image.digests(memoryview(self._copy), layout))
            self._base = _Base(version=self._head, state_hash=state_hash)
            # Now, while the first answers are sampled: the first version would otherwise wait for it.
            copy, present = memoryview(self._copy), self._exporter.image
            self._flight = self._pool.submit(lambda: delta.compile_loops(layout, copy, present))

    def publish(self, step: int) -> None:
        """Export the state after `step` and register it in the background. Raises what the publish before raised."""
        self.flush()
        self._exporter.export()
        if self._transport is not None:
            transport = self._transport
            self._flight = self._pool.submit(lambda: self._register(transport, step))

    def supply(self, version: int) -> None:
        """Send the whole image of `version` once more, if it is the one published last: what leads to it was lost."""
        self.flush()
        newest, transport = self._newest, self._transport
        if transport is None or newest is None or newest.version != version:
            return
        logger.warning("version %d was lost and is sent again, whole", version)
        whole = dataclasses.replace(
            newest,
            kind=enums.VersionKind.ANCHOR,
            base=types.NO_VERSION,
            base_state_hash="",
            fallback_reason="what leads to it was lost",
        )
        self._flight = self._pool.submit(lambda: self._send_again(transport, whole))

    def flush(self) -> None:
        """Wait for the publish in flight. Raises what it raised."""
        flight, self._flight = self._flight, None
        if flight is not None:
            flight.result()

    def close(self) -> None:
        """Wait for the thread's work and end it."""
        self._pool.shutdown()

    def _register(self, transport: base.Publisher, step: int) -> None:
        layout, data = self._exporter.layout, self._exporter.image
        transport.release()
        digests = image.digests(data, layout)
        compared = self._bring_forward(data, digests)
        changes = None if compared is None or not self._anchors.sends_changes else compared.data
        changed = image.num_elements(layout) if compared is None else compared.changed
        why_whole = self._anchors.why_whole(compared, image_bytes=layout.image_bytes)
        state_hash = image.state_hash(layout, digests)
        version = types.WeightVersion(
            job=self._job,
            version=types.VersionId(self._head + 1),
            step=step,
            attempt=self._attempt,
            parent=self._head,
            created_at=self._clock.now(),
            layout_id=layout.layout_id,
            digests=digests,
            state_hash=state_hash,
            kind=enums.VersionKind.ANCHOR if why_whole else enums.VersionKind.DELTA,
            base=types.NO_VERSION if changes is None or self._base is None else self._base.version,
            base_state_hash="" if changes is None or self._base is None else self._base.state_hash,
            changed=changed,
            changed_ratio=changed / max(1, image.num_elements(layout)),
            fallback_reason=why_whole,
            exporter=self._description,
            image=None if why_whole else self._described(data, state_hash),
        )
        self._head, sent = self._send_patiently(transport, version, changes)
        self._layout_sent = True
        self._base, self._newest = _Base(version=version.version, state_hash=version.state_hash), sent
        self._anchors.published(sent)
        logger.info(
            "published version %d of step %d, %.2f %% of the weights changed: %s",
            version.version, step, 100 * version.changed_ratio,
            f"whole, {sent.fallback_reason}" if sent.fallback_reason else f"{sent.artifacts[0].num_bytes} bytes",
            extra={"event": "publish", "version": version.version, "step": step},
        )  # fmt: skip

    def _described(self, data: memoryview, state_hash: str) -> types.Artifact | None:
        if not self._image_piece_bytes:
            return None
        return pieces.describe_image(data, state_hash, piece_bytes=self._image_piece_bytes)

    def _bring_forward(self, data: memoryview, digests: Mapping[int, bytes]) -> delta.Difference | None:
        """Make the copy equal to `data` by the changes between them, and return those; None without a copy."""
        layout = self._exporter.layout
        if self._base is None:
            self._copy = bytearray(data)
            return None
        copy = memoryview(self._copy)
        compared = delta.encode(layout, copy, data)
        if compared.data is not None:
            delta.apply(layout, copy, memoryview(compared.data))
            if image.digests(copy, layout) == digests:
                return compared
            compared = dataclasses.replace(compared, data=None, reason="its changes do not give it back")
        copy[:] = data
        return compared

    def _send_patiently(
        self, transport: base.Publisher, version: types.WeightVersion, changes: bytes | None
    ) -> tuple[types.VersionId, types.WeightVersion]:
        """Upload and register; return the head and the manifest that was taken.

        What was not taken at once is sent whole: the registry may know the version by now, or have lost its base.
        """
        try:
            return self._send(transport, version, changes)
        except errors.RLJobError as error:
            if error.retry is errors.Retry.NEVER:
                raise
            # Patience begins here: the upload of a large image that broke near its end is worth another one.
            logger.warning("version of step %d was not taken: %s", version.step, error, extra={"step": version.step})
        whole = dataclasses.replace(
            version,
            kind=enums.VersionKind.ANCHOR,
            fallback_reason=version.fallback_reason or "it was not taken as changes",
        )
        return retry.retry_sync(
            lambda: self._send(transport, whole, changes),
            deadline_s=self._reconnect_timeout_s,
            backoff=retry.Backoff(first_s=0.2, most_s=5.0),
        )

    def _send(
        self, transport: base.Publisher, version: types.WeightVersion, changes: bytes | None
    ) -> tuple[types.VersionId, types.WeightVersion]:
        # All again each time: the store may have lost the bytes that the registry asks for.
        artifacts = []
        if version.base != types.NO_VERSION and changes is not None:
            artifacts.append(transport.upload(memoryview(changes), enums.Encoding.DELTA))
        if version.kind is enums.VersionKind.ANCHOR:
            artifacts.append(transport.upload(memoryview(self._copy), enums.Encoding.WHOLE))
        complete = dataclasses.replace(version, artifacts=tuple(artifacts))
        return transport.publish(complete, None if self._layout_sent else self._exporter.layout), complete

    def _send_again(self, transport: base.Publisher, version: types.WeightVersion) -> None:
        retry.retry_sync(
            lambda: self._send(transport, version, None),
            deadline_s=self._reconnect_timeout_s,
            backoff=retry.Backoff(first_s=0.2, most_s=5.0),
        )
        self._anchors.supplied()
