"""A run that begins with another run's checkpoint: its weights and optimizer state, its own steps and schedule."""

import pathlib

from rljob_api import errors, process_config
from rljob_workers.trainer.state import checkpoint

_FOLDER = "checkpoints"
# Weights alone are a Hugging Face folder, which every shape loads.
_OF_WEIGHTS, _OF_STATE = ("model", "base"), ("model", "base", "shape")


def find(origin: str, step: int | None) -> checkpoint.Checkpoint:
    """Return the checkpoint that a fork begins with. Raises ManifestError if there is none, or none of that step.

    The path is a checkpoint, a folder of checkpoints, or a run's folder that holds one.
    """
    path = pathlib.Path(origin)
    if not path.is_dir():
        raise errors.ManifestError(f"spec.resumeFrom is {str(path)!r}, but there is no such folder")
    single = checkpoint.read(path)
    folder = path / _FOLDER if (path / _FOLDER).is_dir() else path
    candidates = [single] if single is not None else checkpoint.CheckpointStore(folder).all()
    if not candidates:
        raise errors.ManifestError(f"spec.resumeFrom is {str(path)!r}, but no complete checkpoint is in it")
    if step is None:
        return max(candidates, key=lambda each: each.progress.step)
    for each in candidates:
        if each.progress.step == step:
            return each
    steps = ", ".join(str(step) for step in sorted(each.progress.step for each in candidates))
    raise errors.ManifestError(f"spec.resumeFrom.step is {step}, but {str(path)!r} has checkpoints of steps {steps}")


def check_same_model(source: checkpoint.Checkpoint, config: process_config.TrainerConfig, *, base: str = "") -> None:
    """Raise ManifestError if the checkpoint is of another model, or its optimizer state of another shape.

    base: what the adapter is added to, empty without one. Data, groups, seed, loss and learning rate are what a fork is
    made to change.
    """
    now = checkpoint.sections(config, base=base)
    names = _OF_STATE if source.progress.optimizer or source.progress.critic else _OF_WEIGHTS
    problems = [
        f"{checkpoint.FROZEN[name]} differs from the checkpoint of step {source.progress.step} in {source.path} that"
        " spec.resumeFrom names; set it to what that run had"
        for name in names
        if name in now and source.progress.sections.get(name, now[name]) != now[name]
    ]
    if problems:
        raise errors.ManifestError(*problems)
