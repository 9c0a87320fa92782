"""`rljob plan`."""

import json
import pathlib
import tempfile
from collections.abc import Sequence

from rljob_api import errors, names, resolve
from rljob_workers.local import failure_policy, model_memory, not_here, prepare, user_code

_NO_RUN = "plan"


def plan(path: pathlib.Path, *, as_json: bool, changes: Sequence[str] = ()) -> int:
    """Print effective values, warnings and memory. Raises ManifestError with every problem of a manifest."""
    manifest = prepare.read_manifest(path, changes)
    # Values are shown, nothing is started: the run directory is only a placeholder.
    folder = pathlib.Path(tempfile.gettempdir()) / "rljob-plan"
    resolved = prepare.resolve_here(manifest, run_dir=folder, uid=_NO_RUN)
    if problems := user_code.problems(manifest.job.spec, manifest.folder):
        raise errors.ManifestError(*problems)
    rows = resolve.explain(manifest.job, resolved)
    spec = manifest.job.spec
    warnings = [
        *resolve.warnings(manifest.job),
        *not_here.data_files(spec, manifest.folder),
        *not_here.packages(spec),
        *model_memory.check(resolved),
    ]
    memory, updates = model_memory.lines(resolved), model_memory.update_lines(resolved)
    if as_json:
        body = {
            "job": manifest.job.metadata.name,
            "values": [{"path": row.path, "value": row.value, "why": row.why} for row in rows],
            "warnings": warnings,
            "memory": memory,
            "weightUpdates": updates,
            "restartRules": failure_policy.rule_lines(manifest.job.spec),
            "configs": [config.model_dump(mode="json") for config in resolved.configs],
        }
        print(json.dumps(body, indent=1))
        return int(names.ExitCode.OK)
    widths = [max((len(getattr(row, field)) for row in rows), default=0) for field in ("path", "value")]
    for row in rows:
        print(f"{row.path:<{widths[0]}}  {row.value:<{min(widths[1], 40)}}  {row.why}")
    for warning in warnings:
        print(f"warning: {warning}")
    print("\nrestart rules, the first that matches")
    for line in failure_policy.rule_lines(manifest.job.spec):
        print(f"  {line}")
    print("\nmemory (estimate)")
    for line in memory:
        print(f"  {line}")
    print("\nweight updates (deadlines)")
    for line in updates:
        print(f"  {line}")
    return int(names.ExitCode.OK)
