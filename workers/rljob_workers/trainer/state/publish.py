"""Publishing weight versions: export in the step's path, everything else on a thread behind it.

    train thread   | step k | export | step k+1 ............. | wait, if still busy | export | ...
    publish thread          |        hash, compare, upload, register |

At most one publish is in flight; a second one waits and the wait is counted. Artifacts go first, the manifest last, so
a crash in between registers nothing. A version id is proposed as head + 1 and never used for other bits.
"""

import concurrent.futures
import dataclasses
import logging

import numpy

from rljob_api import errors, types
from rljob_workers.runtime import clock as clocks
from rljob_workers.runtime import retry
from rljob_workers.trainer.state import export
from rljob_workers.weights import image
from rljob_workers.weights.backends import base

logger = logging.getLogger(__name__)

_INTEGERS = {"bfloat16": numpy.uint16, "float16": numpy.uint16, "float32": numpy.uint32}


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
        clock: clocks.Clock,
        reconnect_timeout_s: float,
    ) -> None:
        """`head`: newest version of the registry; `reconnect_timeout_s`: how long a failed store is asked again."""
        self._exporter, self._transport, self._clock = exporter, transport, clock
        self._job, self._attempt, self._head = job, attempt, head
        self._description, self._reconnect_timeout_s = description, reconnect_timeout_s
        self._pool = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="publish")
        self._flight: concurrent.futures.Future[None] | None = None
        self._previous: bytearray | None = None
        self._layout_sent = False

    def compare_with_image(self) -> None:
        """Count what changes from the exporter's present image on, which is a version already (0, the model files)."""
        if self._transport is not None:
            self._previous = bytearray(self._exporter.image)

    def publish(self, step: int) -> None:
        """Export the state after `step` and register it in the background. Raises what the publish before raised."""
        self.flush()
        self._exporter.export()
        if self._transport is not None:
            transport = self._transport
            self._flight = self._pool.submit(lambda: self._register(transport, step))

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
        digests = image.digests(data, layout)
        changed = self._count_changed(data)
        version = types.WeightVersion(
            job=self._job,
            version=types.VersionId(self._head + 1),
            step=step,
            attempt=self._attempt,
            parent=self._head,
            created_at=self._clock.now(),
            layout_id=layout.layout_id,
            digests=digests,
            state_hash=image.state_hash(layout, digests),
            changed=changed,
            changed_ratio=changed / _num_elements(layout),
            exporter=self._description,
        )

        def send() -> types.VersionId:
            # Both again: the store may have lost the bytes that the registry asks for.
            complete = dataclasses.replace(version, artifacts=(transport.upload(data),))
            return transport.publish(complete, None if self._layout_sent else layout)

        backoff = retry.Backoff(first_s=0.2, most_s=5.0)
        try:
            self._head = send()
        except errors.RLJobError as error:
            if error.retry is errors.Retry.NEVER:
                raise
            # Patience begins here: the upload of a large image that broke near its end is worth another one.
            logger.warning("version of step %d was not taken: %s", step, error, extra={"step": step})
            self._head = retry.retry_sync(send, deadline_s=self._reconnect_timeout_s, backoff=backoff)
        self._layout_sent = True
        logger.info(
            "published version %d of step %d, %.2f %% of the weights changed",
            version.version, step, 100 * version.changed_ratio,
            extra={"event": "publish", "version": version.version, "step": step},
        )  # fmt: skip

    def _count_changed(self, data: memoryview) -> int:
        """Return how many elements differ in bits from the last published image; all of them the first time."""
        layout = self._exporter.layout
        if self._previous is None:
            self._previous = bytearray(data)
            return _num_elements(layout)
        changed = 0
        for spec in layout.tensors:
            width = _INTEGERS[spec.dtype]
            new = numpy.frombuffer(data[spec.offset : spec.offset + spec.length], dtype=width)
            old = numpy.frombuffer(memoryview(self._previous)[spec.offset : spec.offset + spec.length], dtype=width)
            changed += int(numpy.count_nonzero(new != old))
            old[:] = new
        return changed


def _num_elements(layout: types.Layout) -> int:
    return max(1, sum(spec.length // image.WIDTHS[spec.dtype] for spec in layout.tensors))
