"""Checkpoints on disk: one folder per step, written alongside, synced, renamed; a marker written last makes it valid.

The marker names the step, the update counter, the shape of the run and a digest of each config section, and the size
of every file. Who loads it decides what a changed section means; here it is only compared.

An attempt that was replaced may still be writing: it was cut off, and does not know. So each attempt leaves a fence
with the step that it continues from. What an older attempt finishes beyond that step is of a history that was taken
back, and is not a checkpoint; and it begins, replaces and removes nothing any more. Attempts are counted in a run: one
that is recreated on the same volume counts from 1, and fences of the other one say nothing about it.
"""

import dataclasses
import logging
import pathlib
import shutil
from collections.abc import Collection

from rljob_api import errors, process_config, resolve
from rljob_api.manifest.model import LoraSpec
from rljob_workers.runtime import atomic
from rljob_workers.trainer.state import marker

logger = logging.getLogger(__name__)

_PREFIX = "step-"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A valid checkpoint."""

    progress: marker.Progress
    path: pathlib.Path


class CheckpointStore:
    """The folder of a job's checkpoints. Only rank 0 calls what writes."""

    def __init__(self, directory: pathlib.Path, *, run: str = "", attempt: int = 0) -> None:
        """Nothing is touched before the first call. `run`, `attempt`: whose this is, for what writes."""
        self.directory, self._run, self._attempt = directory, run, attempt

    def newest(self) -> Checkpoint | None:
        """Return the valid checkpoint of the highest step, or None. Incomplete ones are passed over and logged."""
        return max(self.all(), key=lambda checkpoint: checkpoint.progress.step, default=None)

    def all(self) -> list[Checkpoint]:
        """Return the valid checkpoints, without those of a history that a later attempt took back."""
        fences = self._fences()
        return [checkpoint for checkpoint in self._complete() if not marker.is_behind(checkpoint.progress, fences)]

    def at(self, step: int) -> Checkpoint | None:
        """Return the valid checkpoint of `step`, or None."""
        return next((checkpoint for checkpoint in self.all() if checkpoint.progress.step == step), None)

    def _complete(self) -> list[Checkpoint]:
        checkpoints = (_read(path) for path in sorted(self.directory.glob(f"{_PREFIX}*")))
        return [checkpoint for checkpoint in checkpoints if checkpoint is not None]

    def fence(self, step: int) -> None:
        """Say durably that this attempt continues from `step`; earlier ones write no checkpoint from now on."""
        self.directory.mkdir(parents=True, exist_ok=True)
        fence = marker.Fence(run=self._run, attempt=self._attempt, goes_on_from=step)
        atomic.write_text(self.directory / fence.name, fence.encode())

    def _fences(self) -> list[marker.Fence]:
        paths = self.directory.glob(f"{marker.FENCE}*.json")
        return [marker.decode_fence(path.read_text(encoding="utf-8")) for path in paths]

    def _check_not_replaced(self) -> None:
        marker.check_not_replaced(self._fences(), run=self._run, attempt=self._attempt)

    def begin(self, step: int) -> pathlib.Path:
        """Make and return the folder to write into. What earlier ones left that never became checkpoints goes first.

        Raises OSError, also if a later attempt has taken over.
        """
        self._check_not_replaced()
        work = self.working(step)
        # A full volume must not stay full of what filled it.
        for leftover in self.directory.glob(f".{_PREFIX}*.new"):
            shutil.rmtree(leftover, ignore_errors=True)
        work.mkdir(parents=True)
        return work

    def working(self, step: int) -> pathlib.Path:
        """Return the folder that `begin` makes for a step; the same on every rank."""
        return self.directory / f".{_PREFIX}{step:09d}.new"

    def restoring(self, step: int) -> pathlib.Path:
        """Return the folder that a checkpoint is fetched into; what it holds is kept where that begins again."""
        return self.directory / f".{_PREFIX}{step:09d}.fetched"

    def path(self, step: int) -> pathlib.Path:
        """Return where the checkpoint of a step is once it is committed."""
        return self.directory / f"{_PREFIX}{step:09d}"

    def commit(self, progress: marker.Progress) -> Checkpoint:
        """Sync what was written, add the marker and let the checkpoint appear. Raises OSError, as `begin` does."""
        self._check_not_replaced()
        return self.adopt(self.working(progress.step), progress)

    def adopt(self, work: pathlib.Path, progress: marker.Progress) -> Checkpoint:
        """Let a folder on the same disk appear as a checkpoint, with what is in it. Raises OSError."""
        target = self.path(progress.step)
        paths = [path for path in work.rglob("*") if path.is_file() and path != work / marker.MARKER]
        files = {str(path.relative_to(work)): path.stat().st_size for path in paths}
        (work / marker.MARKER).write_text(marker.Marker(progress=progress, files=files).encode(), encoding="utf-8")
        atomic.publish_folder(work, target, target.with_name(f".{target.name}.old"))
        return Checkpoint(progress=progress, path=target)

    def prune(self, *, keep_last: int, keep_every: int) -> list[int]:
        """Remove all but the newest `keep_last` and multiples of `keep_every` (0: none). Return the removed steps.

        What a history left that was taken back goes too. An attempt that was replaced removes nothing.
        """
        fences = self._fences()
        try:
            self._check_not_replaced()
        except PermissionError:
            return []
        for checkpoint in self._complete():
            if marker.is_behind(checkpoint.progress, fences):
                _remove(checkpoint)
        checkpoints = {checkpoint.progress.step: checkpoint for checkpoint in self.all()}
        removed = marker.superfluous(checkpoints, keep_last=keep_last, keep_every=keep_every)
        for step in removed:
            _remove(checkpoints[step])
        return list(removed)

    def keep_only(self, steps: Collection[int]) -> None:
        """Remove the checkpoints of all other steps."""
        for checkpoint in self._complete():
            if checkpoint.progress.step not in steps:
                _remove(checkpoint)


def _remove(checkpoint: Checkpoint) -> None:
    # The marker first: half a folder must not be taken for a checkpoint.
    (checkpoint.path / marker.MARKER).unlink()
    shutil.rmtree(checkpoint.path)


def store_of(config: process_config.TrainerConfig) -> CheckpointStore:
    """Return the job's checkpoints, as its present attempt writes them."""
    return CheckpointStore(pathlib.Path(config.checkpoint_dir), run=config.job.uid, attempt=config.attempt)


def read(path: pathlib.Path) -> Checkpoint | None:
    """Return the checkpoint that a folder is; None if it is none, or an incomplete one, which is logged."""
    return _read(path) if (path / marker.MARKER).is_file() else None


def _read(path: pathlib.Path) -> Checkpoint | None:
    try:
        whole = marker.decode((path / marker.MARKER).read_text(encoding="utf-8"))
    except (OSError, ValueError, KeyError, TypeError) as error:
        logger.warning("passed over %s: %s", path, error)
        return None
    for name, size in whole.files.items():
        if not (path / name).is_file() or (path / name).stat().st_size != size:
            logger.warning("passed over %s: file %s is missing or has another size", path, name)
            return None
    return Checkpoint(progress=whole.progress, path=path)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FrozenHashes:
    """Hashes of the tensors of the reference model and of the teacher, empty without one; rank 0 alone reads them."""

    reference: str = ""
    teacher: str = ""


NO_FROZEN = FrozenHashes()


def sections(
    config: process_config.TrainerConfig, *, frozen: FrozenHashes = NO_FROZEN, base: str = ""
) -> dict[str, str]:
    """Return a digest per section of the config. Those of `FROZEN` must not change on resume.

    base: what an adapter is added to.
    """
    algorithm, trainer = config.spec.algorithm, config.spec.trainer
    values: dict[str, object] = {
        "seed": config.spec.seed,
        "model": [config.model.name, config.model.revision, *_adapter(config.spec.model.lora)],
        "shape": [trainer.world_size, trainer.deepspeed.zero_stage, trainer.dtype],
        "loss": algorithm.loss.model_dump(mode="json"),
        "updates": [algorithm.minibatches, algorithm.epochs],
        "entropy": algorithm.entropy.model_dump(mode="json"),
        "optimizer": trainer.optimizer.model_dump(mode="json"),
    }
    if (teacher := config.spec.teacher) is not None:
        values["distillation"] = teacher.model_dump(mode="json", exclude={"model", "revision"})
    digests = {name: resolve.digest(value) for name, value in values.items()} | config.spec_digests
    # That there was no teacher is written down too: none may come in the middle of a run.
    taught = frozen.teacher if config.teacher is not None else _NO_TEACHER
    read = {"reference": frozen.reference, "teacher": taught, "base": base}
    return digests | {name: value for name, value in read.items() if value}


def _adapter(lora: LoraSpec | None) -> list[object]:
    # Nothing without one: the digests of such runs stay what they were.
    return [] if lora is None else [lora.model_dump(mode="json")]


_NO_TEACHER = "none"

# Sections that must stay as they were on resume, and what the manifest calls them.
FROZEN = {
    "groups": "spec.algorithm.promptsPerStep or groupSize",
    "data": "spec.data",
    "seed": "spec.seed",
    "model": "spec.model",
    "teacher": "spec.teacher (its model, or what the files of it hold)",
    "base": "what the files of spec.model hold (the base of its adapter)",
    "shape": "the number of trainer processes, spec.trainer.deepspeed.zeroStage or spec.trainer.dtype",
}


def check_same_run(
    checkpoint: Checkpoint, config: process_config.TrainerConfig, *, frozen: FrozenHashes = NO_FROZEN, base: str = ""
) -> None:
    """Raise ManifestError if the checkpoint is of other data, groups, model, seed or shape; log what else changed.

    The shape is that of masters and moments: weights alone, without a critic, continue with any number of processes.
    """
    now = sections(config, frozen=frozen, base=base)
    changed = [name for name, digest in checkpoint.progress.sections.items() if now.get(name, digest) != digest]
    refused = [
        f"{FROZEN[name]} differs from the checkpoint of step {checkpoint.progress.step} in {checkpoint.path};"
        " set it back, or start a new job with resumeFrom"
        for name in changed
        if name in FROZEN and (name != "shape" or checkpoint.progress.optimizer or checkpoint.progress.critic)
    ]
    if refused:
        raise errors.ManifestError(*refused)
    for name in changed:
        logger.warning("section %s differs from the checkpoint of step %d", name, checkpoint.progress.step)
