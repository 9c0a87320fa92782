"""`type: wandb`: a run of Weights & Biases, online, or in files that `wandb sync` uploads.

wandb hands what is logged to wandb-core, a process of its own, which writes it to a file of the run, `run-<id>.wandb`,
and uploads it. wandb-core answers before it has written, and dies without writing when this process does (wandb 0.31).
So `flush` looks into the file, and what the file of an earlier process has and no server may have is uploaded first.
"""

import os
import pathlib
import subprocess
import sys
import time
import uuid

from rljob_api import errors
from rljob_api.manifest import trackers
from rljob_workers.coordinator.trackers import base

STEP_METRIC = "trainer_step"
# How often wandb-core writes, and for how long one mark is waited for, seconds.
_WRITE_EACH_S = 0.1
_MARK_S = 5.0
_MARKS = 6
_POLL_S = 0.02
# wandb's command, which ends with this process.
_WANDB = """
from rljob_workers.runtime import boot
boot.die_with_parent()
from wandb.cli import cli
cli.cli()
"""
# What wandb takes to upload at an end before it gives up: less than a call of a tracker may take, since wandb does the
# same again when this process exits.
_FINISH_S = 30.0


class WandbTracker(base.Tracker):
    """Logs with a step metric of its own, since steps come again after a rewind and W&B's own step only rises."""

    options = trackers.WandbOptions

    def __init__(self, run: base.Run, config: trackers.WandbOptions) -> None:
        """Upload what is left of an earlier process, and continue the run whose id is the job's uid.

        Raises ManifestError for an online run without a key, UnavailableError for files that cannot be uploaded, and
        what wandb raises.
        """
        # Nothing of this process, its machine or its errors is reported; only what is logged.
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        import wandb

        is_online = config.mode == "Online"
        if is_online:
            for file in sorted((run.folder / "wandb").glob("*run-*/run-*.wandb")):
                _upload(file)
        settings = wandb.Settings(
            console="off", silent=True, disable_git=True, disable_code=True, disable_job_creation=True,
            x_disable_meta=True, x_disable_stats=True, x_disable_machine_info=True, x_save_requirements=False,
            x_transaction_log_flush_interval=_WRITE_EACH_S, finish_timeout=_FINISH_S, finish_timeout_raises=True,
        )  # fmt: skip
        try:
            self._run = wandb.init(
                project=config.project, entity=config.entity or None, group=config.group or None, tags=config.tags,
                mode="online" if is_online else "offline", id=run.uid, name=run.name, resume="allow",
                config=dict(run.spec), dir=str(run.folder), save_code=False, settings=settings,
            )  # fmt: skip
        except wandb.errors.UsageError as error:
            if not is_online or os.environ.get("WANDB_API_KEY"):
                raise
            raise errors.ManifestError(
                "a tracker of type wandb has no key: set WANDB_API_KEY in spec.coordinator.pod.env, from a Secret, or"
                " in the environment of rljob run; or set its config.mode to Offline"
            ) from error
        self._run.define_metric(STEP_METRIC)
        self._run.define_metric("*", step_metric=STEP_METRIC)
        self._is_online, self._is_behind = is_online, False
        self._file = pathlib.Path(self._run.dir).parent / f"run-{run.uid}.wandb"
        self._seen_bytes = 0

    def log(self, point: base.Point) -> None:
        """Hand the metrics to wandb-core, with the time at which they were measured."""
        self._run.log({**point.metrics, STEP_METRIC: point.step, "_timestamp": point.at})
        self._is_behind = True

    def rewind(self, step: int) -> None:
        """Do nothing: W&B deletes no points; those of repeated steps are drawn at the same `trainer_step`."""

    def flush(self) -> None:
        """Return once the run's file has what was logged. Raises UnavailableError after half a minute."""
        if not self._is_behind:
            return
        # wandb-core writes in order, so a mark in the file has everything in front of it. A mark may lie across two
        # blocks of the file, and is not found then: the next one is elsewhere.
        for _ in range(_MARKS):
            mark = uuid.uuid4().hex
            self._run.summary["delivered"] = mark
            if self._is_written(mark.encode()):
                self._is_behind = False
                return
        raise errors.UnavailableError(f"wandb has not written what was logged within {_MARKS * _MARK_S:.0f} s")

    def close(self) -> None:
        """End the run, online once everything is uploaded. Raises TimeoutError if that takes too long."""
        self._run.finish()
        if self._is_online:
            _synced(self._file).touch()

    def _is_written(self, mark: bytes) -> bool:
        end = time.monotonic() + _MARK_S
        with self._file.open("rb") as file:
            while time.monotonic() < end:
                file.seek(max(0, self._seen_bytes - len(mark)))
                is_there = mark in file.read()
                self._seen_bytes = file.tell()
                if is_there:
                    return True
                time.sleep(_POLL_S)
        return False


def _synced(file: pathlib.Path) -> pathlib.Path:
    """Return where `wandb sync` notes that it has uploaded a file."""
    return file.with_name(f"{file.name}.synced")


def _upload(file: pathlib.Path) -> None:
    if _synced(file).exists():
        return
    command = [sys.executable, "-c", _WANDB, "sync", "--include-online", str(file)]
    # Standard input is the follower's, which ends with it. Logs of wandb's go below the working directory.
    quiet = subprocess.DEVNULL
    subprocess.run(command, cwd=file.parents[2], stdin=quiet, stdout=quiet, stderr=quiet, check=False)
    if not _synced(file).exists():
        raise errors.UnavailableError(f"wandb could not upload {file}, which an earlier process left")


TRACKER = WandbTracker
