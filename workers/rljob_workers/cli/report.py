"""`rljob report`."""

import pathlib

from rljob_workers.cli import locate
from rljob_workers.local import rundir, session


def report(job: str, *, run_dir: pathlib.Path | None, output: pathlib.Path | None) -> int:
    """Write the report page and print where it is. Raises ManifestError if there is no such run."""
    directory = locate.locate(job, run_dir)
    identity = directory.identity()
    assert identity is not None, "`locate` returns existing runs only"
    path = output or directory.report
    rundir.write_atomically(path, session.look_back(directory).page(identity.name))
    print(path)
    return 0
