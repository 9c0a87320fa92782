"""Checkpoints as all ranks make them together: one rank prepares and commits, every rank writes its part.

Where they go to an object store, each node has a folder of its own, which its first rank prepares and commits.
"""

import pathlib
from collections.abc import Callable, Sequence
from typing import Protocol

from rljob_api import errors, process_config
from rljob_workers.runtime import atomic
from rljob_workers.trainer.algorithms import entropy
from rljob_workers.trainer.engine import schedule
from rljob_workers.trainer.state import checkpoint, export, keeping, marker

_STATE = "state"
_WEIGHTS = "weights"
_CRITIC = "critic"


class SavingEngine(Protocol):
    """What saving needs of the engine."""

    rank: int
    world_size: int

    def save(self, directory: pathlib.Path) -> None:
        """Write this rank's part."""

    def barrier(self) -> None:
        """Wait for all ranks."""

    def largest(self, values: Sequence[float]) -> list[float]:
        """Take the largest of each value over ranks."""


def weights_folder(resumed: checkpoint.Checkpoint | None) -> pathlib.Path | None:
    """Return the folder with a checkpoint's weights, or its adapter, if it holds those alone."""
    return None if resumed is None or resumed.progress.optimizer else resumed.path / _WEIGHTS


def state_folder(resumed: checkpoint.Checkpoint | None) -> pathlib.Path | None:
    """Return the folder with masters and moments to load, if there is one."""
    return resumed.path / _STATE if resumed is not None and resumed.progress.optimizer else None


def critic_folder(resumed: checkpoint.Checkpoint | None) -> pathlib.Path | None:
    """Return the folder with the value model's masters and moments, if there is one."""
    return resumed.path / _CRITIC if resumed is not None and resumed.progress.critic else None


class RankCheckpoints:
    """Saves, exports and prunes."""

    def __init__(
        self,
        *,
        engine: SavingEngine,
        exporter: export.ImageExporter,
        config: process_config.TrainerConfig,
        model_dir: pathlib.Path,
        progress: schedule.UpdateCount,
        critic: SavingEngine | None = None,
        critic_progress: schedule.UpdateCount | None = None,
        entropy_coef: entropy.AdaptiveCoefficient | None = None,
        frozen: checkpoint.FrozenHashes = checkpoint.NO_FROZEN,
        before_export: Callable[[], None],
        keeper: keeping.Keeper | None = None,
        prepares: bool | None = None,
        send_export: Callable[[pathlib.Path], None] | None = None,
    ) -> None:
        """`before_export` waits until no one reads the exporter's image.

        keeper: of checkpoints that do not last where they are written; prepares: whether this rank is the first of
        those that write into one folder; send_export: what brings the exported folder to where it lasts, on rank 0.
        """
        self._engine, self._exporter, self._config = engine, exporter, config
        self._critic, self._critic_progress = critic, critic_progress or schedule.UpdateCount()
        self._entropy_coef, self._frozen = entropy_coef, frozen
        self._model_dir, self._progress, self._before_export = model_dir, progress, before_export
        self._store = checkpoint.store_of(config)
        self._prepares = engine.rank == 0 if prepares is None else prepares
        self._send_export = send_export
        self._keeper = keeper or keeping.OnVolume(uri=self.uri, prune=self._prune_volume)

    def save(self, step: int) -> None:
        """Write and commit the checkpoint of `step`. Raises CheckpointError, on all ranks alike, if it cannot be.

        What a rank of several raises while all write their parts rises as it is: the others wait for it inside.
        """
        self._first_alone(lambda: self._store.begin(step), step)
        self._write_parts(step)
        self._first_alone(lambda: self._store.commit(self._reached(step)), step)

    def offer(self, step: int, *, seconds: float) -> None:
        """Hand the checkpoint that was just saved, in so many seconds, to what makes it last."""
        self._keeper.offer(step=step, seconds=seconds)

    def advance(self) -> keeping.DurableCheckpoint | None:
        """Return a checkpoint that lasts since the last call, if there is one. All ranks call it, and none waits."""
        return self._keeper.advance()

    def settle(self, *, timeout_s: float) -> keeping.DurableCheckpoint | None:
        """Return the newest checkpoint once it lasts. Raises StorageError, also if it does not in time."""
        return self._keeper.settle(timeout_s=timeout_s)

    def problem(self) -> str:
        """Return why checkpoints do not last at present; empty if they do."""
        return self._keeper.problem()

    def prune(self) -> None:
        """Remove what the manifest does not ask to keep."""
        self._keeper.prune()

    def _write_parts(self, step: int) -> None:
        alone = self._engine.world_size == 1
        work = self._store.working(step)
        try:
            self._write(work)
            self._engine.barrier()
            # Each rank by itself: on a network volume a node's fsync says nothing of what another node wrote. After all
            # have written, so that no file comes or goes meanwhile.
            atomic.sync_tree(work)
        # torch reports a full disk with a RuntimeError.
        except (OSError, RuntimeError) as error:
            if alone:
                raise _not_written(step, error) from error
            raise
        self._engine.barrier()

    def _write(self, work: pathlib.Path) -> None:
        if self._config.spec.checkpoint.save_optimizer:
            self._engine.save(work / _STATE)
        else:
            self._before_export()
            self._exporter.write_weights(self._model_dir, work / _WEIGHTS)
        if self._critic is not None:
            # Whole even without the policy's moments: there is no other copy of its weights.
            self._critic.save(work / _CRITIC)

    def _first_alone(self, act: Callable[[], object], step: int) -> None:
        """Let the first rank of a folder act while the others wait for how it ends."""
        failure: OSError | None = None
        if self._prepares:
            try:
                act()
            except OSError as error:
                failure = error
        if self._engine.largest([float(failure is not None)])[0]:
            raise _not_written(step, failure) from failure

    def _reached(self, step: int) -> marker.Progress:
        adapted = None if self._config.spec.algorithm.entropy.target is None else self._entropy_coef
        return marker.Progress(
            step=step,
            updates_applied=self._progress.applied,
            skipped_in_a_row=self._progress.skipped_in_a_row,
            critic=self._critic is not None,
            critic_updates_applied=self._critic_progress.applied,
            critic_skipped_in_a_row=self._critic_progress.skipped_in_a_row,
            optimizer=self._config.spec.checkpoint.save_optimizer,
            entropy_coef=None if adapted is None else adapted.coef,
            entropy=None if adapted is None else adapted.entropy,
            attempt=self._config.attempt,
            run=self._config.job.uid,
            sections=checkpoint.sections(self._config, frozen=self._frozen, base=self._exporter.layout.base),
        )

    def uri(self, step: int) -> str:
        return self._store.path(step).absolute().as_uri()

    def export(self) -> None:
        """Write the final weights as a Hugging Face folder."""
        self._before_export()
        folder = pathlib.Path(self._config.export_dir)
        self._exporter.write_export(self._model_dir, folder)
        if self._engine.rank == 0 and self._send_export is not None:
            self._send_export(folder)
        self._engine.barrier()

    def _prune_volume(self) -> None:
        if self._engine.rank == 0:
            self._store.prune(
                keep_last=self._config.spec.checkpoint.keep_last,
                keep_every=self._config.spec.checkpoint.keep_every or 0,
            )


def _not_written(step: int, why: Exception | None) -> errors.CheckpointError:
    return errors.CheckpointError(f"the checkpoint of step {step} was not written: {why or 'another rank could not'}")
