"""`rljob run`, `rljob eval`, `rljob report` and `rljob push`: what takes more than the small install."""

import json
import pathlib
import sys
import time
from collections.abc import Sequence

from rljob_workers.cli import locate
from rljob_workers.local import evaluate as evaluation
from rljob_workers.local import hub, prepare, session
from rljob_workers.runtime import atomic


def run(
    path: pathlib.Path,
    *,
    run_dir: pathlib.Path | None,
    skip_check: bool,
    changes: Sequence[str] = (),
    runtime: pathlib.Path | None = None,
) -> int:
    """Run the job of a manifest; return the exit code. Raises ManifestError, with nothing started, for bad input.

    runtime: a file with the manifest of the job's runtime.
    """
    manifest = prepare.read_manifest(path, changes, runtime=runtime)
    return session.run_job(
        manifest,
        path=run_dir or prepare.default_run_dir(manifest.job.metadata.name),
        skip_check=skip_check,
        stream=sys.stdout,
    )


def evaluate(
    path: pathlib.Path,
    *,
    model: str,
    options: evaluation.Options,
    run_dir: pathlib.Path | None,
    skip_check: bool,
    changes: Sequence[str] = (),
) -> int:
    """Evaluate a model on the suites of a manifest; return the exit code. Raises ManifestError for bad input."""
    named = [f"spec.model.name={json.dumps(_folder_or_id(model))}"] if model else []
    manifest = prepare.read_manifest(path, [*changes, *named])
    return evaluation.evaluate(
        manifest,
        options,
        path=run_dir or _new_run_dir(manifest.job.metadata.name),
        skip_check=skip_check,
        stream=sys.stdout,
    )


def _folder_or_id(model: str) -> str:
    # In a manifest a relative folder is below the manifest's; on the command line below the current one.
    return str(pathlib.Path(model).absolute()) if pathlib.Path(model).is_dir() else model


def _new_run_dir(name: str) -> pathlib.Path:
    return prepare.default_run_dir(f"{name}-eval") / time.strftime("%Y%m%d-%H%M%S")


def report(job: str, *, run_dir: pathlib.Path | None, output: pathlib.Path | None, as_json: bool) -> int:
    """Write the report page and print where it is. Raises ManifestError if there is no such run."""
    directory = locate.locate(job, run_dir)
    identity = directory.identity()
    assert identity is not None, "`locate` returns existing runs only"
    path = output or directory.report
    past = session.read_record(directory)
    atomic.write_text(path, past.page(identity.name))
    body = {"report": str(path), "summary": past.numbers.model_dump(mode="json")}
    print(json.dumps(body, indent=1) if as_json else path)
    return 0


def push(job: str, *, run_dir: pathlib.Path | None, options: hub.Options) -> int:
    """Push the model of a run. Raises ManifestError if there is no such run, and what `hub.push` raises."""
    return hub.push(locate.locate(job, run_dir), options)
