"""`rljob run`."""

import json
import pathlib
import sys
import tempfile
import time
from collections.abc import Sequence

from rljob_api import devices, enums, errors, resolve
from rljob_api.validation import explain, rules
from rljob_workers.cli import locate
from rljob_workers.local import evaluate as evaluation
from rljob_workers.local import prepare, session
from rljob_workers.local.checks import missing, model_memory, user_code
from rljob_workers.local.run import failure_policy, launch
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


_NO_RUN = "plan"


def plan(
    path: pathlib.Path,
    *,
    as_json: bool,
    changes: Sequence[str] = (),
    runtime: pathlib.Path | None = None,
    for_cluster: bool = False,
) -> int:
    """Print effective values, warnings and memory. Raises ManifestError with every problem of a manifest; for_cluster:
    with those too that it has in a cluster alone. runtime: a file with the manifest of the job's runtime.
    """
    manifest = prepare.read_manifest(path, changes, runtime=runtime)
    if for_cluster and (refused := rules.cluster_problems(manifest.job.spec)):
        raise errors.ManifestError(*rules.problems(manifest.job.spec), *refused)
    # Values are shown, nothing is started: the run directory is only a placeholder.
    folder = pathlib.Path(tempfile.gettempdir()) / "rljob-plan"
    resolved = prepare.resolve_here(manifest, run_dir=folder, uid=_NO_RUN)
    if problems := [*missing.entry_points(manifest.job.spec), *user_code.problems(manifest.job.spec, manifest.folder)]:
        raise errors.ManifestError(*problems)
    rows = explain.explain(manifest.job, resolved, origins=manifest.origins)
    spec = manifest.job.spec
    warnings = [
        *resolve.warnings(manifest.job),
        *missing.data_files(spec, manifest.folder),
        *missing.packages(spec),
        *missing.gpus(launch.process_names(resolved.configs)),
        *model_memory.check(resolved),
    ]
    gpus = devices.lines(spec)
    memory, updates = model_memory.lines(resolved), model_memory.update_lines(resolved)
    if as_json:
        body = {
            "job": manifest.job.metadata.name,
            "values": [{"path": row.path, "value": row.value, "why": row.why} for row in rows],
            "warnings": warnings,
            "gpus": gpus,
            "memory": memory,
            "weightUpdates": updates,
            "restartRules": failure_policy.rule_lines(manifest.job.spec),
            "configs": [config.model_dump(mode="json") for config in resolved.configs],
        }
        print(json.dumps(body, indent=1))
        return int(enums.ExitCode.OK)
    widths = [max((len(getattr(row, field)) for row in rows), default=0) for field in ("path", "value")]
    for row in rows:
        print(f"{row.path:<{widths[0]}}  {row.value:<{min(widths[1], 40)}}  {row.why}")
    for warning in warnings:
        print(f"warning: {warning}")
    print("\nrestart rules, the first that matches")
    for line in failure_policy.rule_lines(manifest.job.spec):
        print(f"  {line}")
    if gpus:
        print("\nGPUs in a cluster")
        for line in gpus:
            print(f"  {line}")
    print("\nmemory (estimate)")
    for line in memory:
        print(f"  {line}")
    print("\nweight updates (deadlines)")
    for line in updates:
        print(f"  {line}")
    return int(enums.ExitCode.OK)
