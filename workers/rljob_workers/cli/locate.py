"""Which run directory a command is about."""

import pathlib

from rljob_api import errors
from rljob_workers.local import prepare
from rljob_workers.local.rundir import layout


def locate(job: str, run_dir: pathlib.Path | None) -> layout.RunDir:
    """Return the directory named, that of the job named (by name, manifest or directory), or the only one below runs/.

    Raises ManifestError if there is no run, or more than one to choose from.
    """
    if run_dir is not None:
        return _existing(run_dir)
    if job and (pathlib.Path(job) / layout.IDENTITY).is_file():
        return _existing(pathlib.Path(job))
    if job:
        name = prepare.read_manifest(pathlib.Path(job)).job.metadata.name if job.endswith((".yaml", ".yml")) else job
        return _existing(prepare.default_run_dir(name))
    run_dirs = sorted(path.parent for path in prepare.default_run_dir("").glob("*/job.json"))
    if len(run_dirs) == 1:
        return _existing(run_dirs[0])
    if run_dirs:
        raise errors.ManifestError(
            f"there are {len(run_dirs)} runs below runs/ ({', '.join(path.name for path in run_dirs[:8])}): specify "
            "the job, or its directory with --run-dir"
        )
    raise errors.ManifestError("no run was found below runs/: specify its directory with --run-dir")


def _existing(path: pathlib.Path) -> layout.RunDir:
    directory = layout.RunDir(path)
    if directory.identity() is None:
        raise errors.ManifestError(f"{path} is not a run directory: it has no {layout.IDENTITY}")
    return directory
