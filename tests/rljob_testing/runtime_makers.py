"""Runtimes for tests, made of the parts that a test is about."""

from collections.abc import Mapping
from typing import Any

from pydantic import JsonValue

from rljob_api.manifest.runtime import JobRuntime

Part = Mapping[str, Any]


def document(
    *, defaults: Part | None = None, fixed: Part | None = None, kind: str = "ClusterRLJobRuntime", **template: Any
) -> dict[str, JsonValue]:
    """Return the manifest of a runtime; keywords are the pod templates of roles."""
    spec: dict[str, JsonValue] = {"defaults": dict(defaults or {}), "fixed": dict(fixed or {}), "template": template}
    metadata: dict[str, JsonValue] = {"name": "platform"}
    return {"apiVersion": "rljob.dev/v1alpha1", "kind": kind, "metadata": metadata, "spec": spec}


def runtime(*, defaults: Part | None = None, fixed: Part | None = None, **template: Any) -> JobRuntime:
    """Return a runtime of the cluster."""
    return JobRuntime.model_validate(document(defaults=defaults, fixed=fixed, **template))
