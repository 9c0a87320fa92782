"""Submit jobs to a cluster and follow them, with the types that manifest and operator have (docs/sdk.md)."""

from rljob.client import Client
from rljob.errors import (
    ApiError,
    GoneError,
    JobFailedError,
    ManifestError,
    NotFoundError,
    Problem,
    RefusedError,
    WaitTimeoutError,
)
from rljob.job import Job
from rljob.manifest import load, make
from rljob.single_machine import run_local
from rljob_api import __version__
from rljob_api.manifest.job import JobSpec, RLJob
from rljob_api.manifest.status import JobStatus

__all__ = [
    "Client",
    "Job",
    "RLJob",
    "JobSpec",
    "JobStatus",
    "load",
    "make",
    "run_local",
    "ManifestError",
    "ApiError",
    "NotFoundError",
    "RefusedError",
    "Problem",
    "GoneError",
    "JobFailedError",
    "WaitTimeoutError",
    "__version__",
]
