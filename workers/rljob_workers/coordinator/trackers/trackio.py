"""`type: trackio`: a run of Trackio, in SQLite on this machine, in a Space of the Hugging Face Hub, or on a server.

Trackio's own run logs on a thread that drops what it cannot store. Its two stores are used without it: both return once
they have stored, and ignore an entry whose id they have (trackio 0.43: `SQLiteStorage.bulk_log`, and `/bulk_log` of its
server, which calls that). So each point is there once.
"""

import contextlib
import datetime
import io
import os
from typing import Any

from rljob_api.manifest import trackers
from rljob_workers.coordinator.trackers import base


class TrackioTracker(base.Tracker):
    """Logs a row per point, under the trainer's step. Steps that come again are rows of their own."""

    options = trackers.TrackioOptions

    def __init__(self, run: base.Run, config: trackers.TrackioOptions) -> None:
        """Reach the store; a Space that is not there is made, private. Raises what trackio, httpx and the hub raise."""
        # Read when trackio is imported.
        os.environ["TRACKIO_DIR"] = str(run.folder)
        os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
        import huggingface_hub
        import trackio
        from trackio import remote_client, sqlite_storage, utils

        # Neither has types.
        self._store: Any = sqlite_storage.SQLiteStorage
        self._serialized: Any = utils.serialize_values
        self._labels = {"project": config.project, "run": run.name, "run_id": run.uid}
        self._config: dict[str, Any] | None = {**run.spec, "namespace": run.namespace}
        self._unsent: list[base.Point] = []
        self._token = huggingface_hub.get_token() if config.space_id else None
        self._server: Any = None
        if config.space_id:
            _make_space(trackio, config, run)
        if place := config.space_id or config.server_url:
            write_token = os.environ.get("TRACKIO_WRITE_TOKEN")
            self._server = remote_client.RemoteClient(place, hf_token=self._token, write_token=write_token)

    def log(self, point: base.Point) -> None:
        """Keep the point for `flush`."""
        self._unsent.append(point)

    def rewind(self, step: int) -> None:
        """Do nothing: Trackio deletes no points."""

    def flush(self) -> None:
        """Store the points. Raises what sqlite3 or httpx raise."""
        if not self._unsent:
            return
        # One that comes again has the time that it had; a step that is trained again has another.
        ids = [f"{self._labels['run_id']}/{each.kind}/{each.step}/{each.at!r}" for each in self._unsent]
        if self._server is None:
            self._store.bulk_log(
                **self._labels,
                metrics_list=[dict(each.metrics) for each in self._unsent],
                steps=[each.step for each in self._unsent],
                timestamps=[_written(each.at) for each in self._unsent],
                log_ids=ids,
                config=self._config,
            )
        else:
            entries = [
                {"metrics": self._serialized(dict(each.metrics)), "step": each.step, "log_id": log_id, "config": None}
                for each, log_id in zip(self._unsent, ids, strict=True)
            ]
            entries[0]["config"] = self._config
            logs = [{**self._labels, **entry} for entry in entries]
            self._server.predict(api_name="/bulk_log", logs=logs, hf_token=self._token)
        self._config = None
        self._unsent.clear()

    def close(self) -> None:
        """Nothing is open."""


def _make_space(trackio: Any, config: trackers.TrackioOptions, run: base.Run) -> None:
    """Let trackio make the Space, which it does for a run that it begins. What it prints for people is dropped."""
    with contextlib.redirect_stdout(io.StringIO()):
        trackio.init(
            config.project, name=run.name, space_id=config.space_id, private=True, resume="allow", embed=False,
            auto_log_gpu=False, auto_log_cpu=False,
        )  # fmt: skip
        trackio.finish()


def _written(at: float) -> str:
    return datetime.datetime.fromtimestamp(at, datetime.UTC).isoformat()


TRACKER = TrackioTracker
