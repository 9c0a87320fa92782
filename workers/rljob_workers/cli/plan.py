"""`rljob plan`. It imports nothing that computes: a manifest is checked where it is written."""

import json
import pathlib
import tempfile
from collections.abc import Sequence

from rljob_api import devices, enums, errors, resolve, suites
from rljob_api.validation import explain, rules
from rljob_workers.local import prepare
from rljob_workers.local.checks import missing, model_memory, supervised, user_code
from rljob_workers.local.run import failure_policy, launch
from rljob_workers.runtime import memory as available_memory

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
        *missing.tracker_packages(spec),
        *missing.gpus(launch.process_names(resolved.configs)),
        *model_memory.check(resolved),
        *model_memory.too_large(resolved, available_memory.available_bytes()),
    ]
    gpus, examples = devices.lines(spec), supervised.lines(spec, manifest.folder)
    judge_calls, places = list(suites.judge_calls(spec)), list(suites.places(spec))
    memory, updates = model_memory.lines(resolved), model_memory.update_lines(resolved)
    if as_json:
        body = {
            "job": manifest.job.metadata.name,
            "values": [{"path": row.path, "value": row.value, "why": row.why} for row in rows],
            "warnings": warnings,
            "gpus": gpus,
            "supervisedSteps": examples,
            "judgeCalls": judge_calls,
            "places": places,
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
    for title, lines in (
        ("GPUs in a cluster", gpus),
        ("supervised steps", examples),
        ("judge", judge_calls),
        ("environment", places),
    ):
        if lines:
            print(f"\n{title}")
        for line in lines:
            print(f"  {line}")
    print("\nmemory (estimate)")
    for line in memory:
        print(f"  {line}")
    print("\nweight updates (deadlines)")
    for line in updates:
        print(f"  {line}")
    return int(enums.ExitCode.OK)
