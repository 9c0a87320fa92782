"""`rljob submit`: check a manifest as a cluster would, and give it to the cluster."""

import json
import pathlib
import sys
from collections.abc import Sequence

import pydantic

from rljob_api import enums, errors
from rljob_api.manifest.job import RLJob
from rljob_api.manifest.runtime import JobRuntime
from rljob_api.validation import load, rules, runtimes
from rljob_workers.cli import kubectl
from rljob_workers.local import prepare


def submit(client: kubectl.Kubectl, path: pathlib.Path, *, changes: Sequence[str], dry_run: bool) -> int:
    """Create or change the RLJob of a manifest; dry_run: only ask the API server whether it would be taken.

    Raises ManifestError with every problem of the manifest, with the values of the runtime that it names where that can
    be read; ClusterError with what the API server refuses.
    """
    manifest = prepare.read_manifest(path, changes)
    if refused := _problems(client, manifest):
        raise errors.ManifestError(*refused)
    print(client.apply(manifest.text, dry_run=dry_run))
    return int(enums.ExitCode.OK)


def _problems(client: kubectl.Kubectl, manifest: prepare.Manifest) -> list[str]:
    runtime = _runtime(client, manifest.job)
    if runtime is not None:
        return runtimes.problems_with(load.load_document(manifest.text), runtime)
    spec = manifest.job.spec
    refused = rules.cluster_problems(spec, may_have_runtime=True)
    return [*rules.problems(spec), *refused] if refused else []


def _runtime(client: kubectl.Kubectl, job: RLJob) -> JobRuntime | None:
    """Return the runtime that a job names; None where it names none, or where that cannot be read."""
    reference = job.spec.runtime_ref
    if reference is None:
        return None
    try:
        body = client.get(f"{reference.kind.lower()}s.{enums.API_GROUP}", kubectl.checked_name(reference.name, "name"))
        return JobRuntime.model_validate_json(json.dumps(body))
    except (errors.ClusterError, pydantic.ValidationError) as error:
        reason = f"{error.error_count()} fields do not match" if isinstance(error, pydantic.ValidationError) else error
        label = f"{reference.kind} {reference.name}"
        print(f"note: {label} cannot be read ({reason}): the job is checked without it", file=sys.stderr)
        return None
