"""`rljob report`."""

import json
import pathlib

from rljob_workers.cli import locate
from rljob_workers.local import rundir, session


def report(job: str, *, run_dir: pathlib.Path | None, output: pathlib.Path | None, as_json: bool) -> int:
    """Write the report page and print where it is. Raises ManifestError if there is no such run."""
    directory = locate.locate(job, run_dir)
    identity = directory.identity()
    assert identity is not None, "`locate` returns existing runs only"
    path = output or directory.report
    past = session.look_back(directory)
    rundir.write_atomically(path, past.page(identity.name))
    body = {"report": str(path), "summary": past.numbers.model_dump(mode="json")}
    print(json.dumps(body, indent=1) if as_json else path)
    return 0
