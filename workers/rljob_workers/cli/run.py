"""`rljob run`."""

import pathlib
import sys
from collections.abc import Sequence

from rljob_workers.local import prepare, session


def run(path: pathlib.Path, *, run_dir: pathlib.Path | None, skip_check: bool, changes: Sequence[str] = ()) -> int:
    """Run the job of a manifest; return the exit code. Raises ManifestError, with nothing started, for bad input."""
    manifest = prepare.read_manifest(path, changes)
    return session.run_job(
        manifest,
        path=run_dir or prepare.default_run_dir(manifest.job.metadata.name),
        skip_check=skip_check,
        stream=sys.stdout,
    )
