"""`rljob eval`."""

import json
import pathlib
import sys
import time
from collections.abc import Sequence

from rljob_workers.local import evaluate as evaluation
from rljob_workers.local import prepare


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
