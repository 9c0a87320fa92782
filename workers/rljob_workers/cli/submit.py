"""`rljob submit`: check a manifest as a cluster would, and give it to the cluster."""

import pathlib
from collections.abc import Sequence

from rljob_api import enums, errors
from rljob_api.validation import rules
from rljob_workers.cli import kubectl
from rljob_workers.local import prepare


def submit(client: kubectl.Kubectl, path: pathlib.Path, *, changes: Sequence[str], dry_run: bool) -> int:
    """Create or change the RLJob of a manifest; dry_run: only ask the API server whether it would be taken.

    Raises ManifestError with every problem of the manifest, ClusterError with what the API server refuses.
    """
    manifest = prepare.read_manifest(path, changes)
    if refused := rules.cluster_problems(manifest.job.spec, may_have_runtime=True):
        raise errors.ManifestError(*rules.problems(manifest.job.spec), *refused)
    print(client.apply(manifest.text, dry_run=dry_run))
    return int(enums.ExitCode.OK)
