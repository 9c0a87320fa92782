"""`type: tensorboard`: event files that TensorBoard reads, one scalar a metric.

The format is TensorFlow's (tensorflow/core/util/event.proto, in records with checksums), written by tensorboardX. Its
record writer is used without its queue and thread, whose `flush` does not wait for what is queued.
"""

import pathlib
import time

from tensorboardX import event_file_writer
from tensorboardX.proto import event_pb2, summary_pb2

from rljob_api.manifest import trackers
from rljob_workers.coordinator.trackers import base


class TensorBoardTracker(base.Tracker):
    """Writes two runs of TensorBoard, steps in the folder itself and evaluations below it: a rewind undoes steps alone.

    Each process begins new files: those of an earlier one may end in half a record.
    """

    options = trackers.TensorBoardOptions

    def __init__(self, run: base.Run, config: trackers.TensorBoardOptions) -> None:
        """Open the files. Raises OSError where the folder cannot be written."""
        self._folder = pathlib.Path(config.folder) if config.folder else run.folder
        self._files = {"step": _opened(self._folder), "evaluation": _opened(self._folder / "evaluation")}

    def log(self, point: base.Point) -> None:
        """Write an event with all metrics."""
        values = [
            summary_pb2.Summary.Value(tag=name, simple_value=value) for name, value in sorted(point.metrics.items())
        ]
        summary = summary_pb2.Summary(value=values)
        self._files[point.kind].write_event(event_pb2.Event(wall_time=point.at, step=point.step, summary=summary))

    def rewind(self, step: int) -> None:
        """Let TensorBoard forget the points after `step`, as it does for a session that starts again there."""
        self._files["step"].close()
        self._files["step"] = _opened(self._folder)
        start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
        self._files["step"].write_event(event_pb2.Event(wall_time=time.time(), step=step + 1, session_log=start))

    def flush(self) -> None:
        """Hand everything to the operating system."""
        for file in self._files.values():
            file.flush()

    def close(self) -> None:
        """Close the files."""
        for file in self._files.values():
            file.close()


def _opened(folder: pathlib.Path) -> event_file_writer.EventsWriter:
    folder.mkdir(parents=True, exist_ok=True)
    # TensorBoard reads files in the order of their names, and the writer's own name has seconds only.
    return event_file_writer.EventsWriter(str(folder / "events"), f".{time.time_ns()}")


TRACKER = TensorBoardTracker
