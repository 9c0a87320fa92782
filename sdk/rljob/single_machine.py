"""The same manifest on this machine."""

import json
import pathlib
import sys
from typing import TextIO

from rljob import manifest
from rljob_api import enums
from rljob_workers.cli import extras
from rljob_workers.local import prepare


def run_local(
    job: manifest.Source,
    run_dir: pathlib.Path | str | None = None,
    *,
    folder: pathlib.Path | str = ".",
    skip_check: bool = False,
    stream: TextIO | None = None,
) -> pathlib.Path:
    """Run a job here, as `rljob run` does, and return its run directory; the same call again resumes.

    run_dir None: runs/<name>. folder: what relative paths of a job without a file are below. stream: where progress
    goes, None for standard output. Raises ManifestError for a job that cannot run here, with nothing started, and
    RuntimeError if it failed or was stopped.
    """
    extras.require("run", extras.RUN)
    from rljob_workers.local import session

    model = manifest.of(job)
    path = job if isinstance(job, pathlib.Path) else pathlib.Path(folder) / f"{model.metadata.name}.yaml"
    text = path.read_text(encoding="utf-8") if isinstance(job, pathlib.Path) else json.dumps(manifest.as_values(model))
    directory = prepare.default_run_dir(model.metadata.name) if run_dir is None else pathlib.Path(run_dir)
    code = session.run_job(
        prepare.Manifest(job=model, text=text, path=path),
        path=directory,
        skip_check=skip_check,
        stream=sys.stdout if stream is None else stream,
    )
    if code != enums.ExitCode.OK:
        raise RuntimeError(f"{model.metadata.name} ended with exit code {code}: see {directory}")
    return directory
