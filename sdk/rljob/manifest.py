"""Manifests: from a file, from Python values, and as the API server takes them."""

import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import cast

from pydantic import JsonValue

from rljob_api import enums, errors
from rljob_api.manifest import base
from rljob_api.manifest.job import RLJob
from rljob_api.manifest.runtime import JobRuntime
from rljob_api.validation import load as reading
from rljob_api.validation import rules, runtimes
from rljob_workers.local import prepare

Source = RLJob | Mapping[str, object] | pathlib.Path


def load(path: pathlib.Path | str, changes: Sequence[str] = ()) -> RLJob:
    """Return the job of a manifest file with `changes`, such as `spec.maxSteps=5`. Raises ManifestError."""
    return prepare.read_manifest(pathlib.Path(path), changes).job


def make(
    name: str,
    spec: Mapping[str, object],
    *,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
) -> RLJob:
    """Return a job from values under the names of a manifest (docs/manifest.md). Raises ManifestError."""
    metadata: dict[str, object] = {"name": name}
    metadata |= {"labels": dict(labels)} if labels else {}
    metadata |= {"annotations": dict(annotations)} if annotations else {}
    return of({"apiVersion": _VERSION, "kind": enums.KIND, "metadata": metadata, "spec": spec})


_VERSION = f"{enums.API_GROUP}/{enums.API_VERSION}"


def of(source: Source) -> RLJob:
    """Return the job of a model, of an object under the names of a manifest, or of a file. Raises ManifestError."""
    if isinstance(source, RLJob):
        return source
    if isinstance(source, pathlib.Path):
        return load(source)
    return reading.load_manifest(json.dumps(source))


def for_cluster(job: RLJob, *, namespace: str, runtime: JobRuntime | None = None) -> dict[str, object]:
    """Return the object to apply. The job's own namespace counts where it names one. runtime: None where it names none,
    or cannot be read.

    Raises ManifestError with every problem that a cluster sees.
    """
    body = as_values(job, namespace=namespace)
    if runtime is not None:
        problems = runtimes.problems_with(cast(JsonValue, body), runtime)
    else:
        problems = [*rules.problems(job.spec), *rules.cluster_problems(job.spec, may_have_runtime=True)]
    if problems:
        raise errors.ManifestError(*problems)
    return body


def as_values(job: RLJob, *, namespace: str = "") -> dict[str, object]:
    """Return what was written of a job, without defaults, under the names of a manifest."""
    own = job.metadata.namespace if "namespace" in job.metadata.model_fields_set else namespace
    parts = {"namespace": own, "labels": job.metadata.labels, "annotations": job.metadata.annotations}
    metadata = {"name": job.metadata.name, **{key: value for key, value in parts.items() if value}}
    return {"apiVersion": _VERSION, "kind": enums.KIND, "metadata": metadata, "spec": base.written(job.spec)}
