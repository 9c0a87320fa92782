"""The jobs of one namespace of a cluster."""

import json
import pathlib
from collections.abc import Sequence

import pydantic

from rljob import errors, manifest
from rljob.api import Api
from rljob.job import Job
from rljob_api.manifest.job import RLJob
from rljob_api.manifest.runtime import JobRuntime


class Client:
    """Submits and finds jobs, with the rights of the kubeconfig's user, or of the pod's account inside a cluster."""

    def __init__(
        self,
        *,
        kubeconfig: str | pathlib.Path | None = None,
        context: str | None = None,
        namespace: str | None = None,
        api: Api | None = None,
    ) -> None:
        """kubeconfig None: the pod's account, else $KUBECONFIG or ~/.kube/config. namespace None: the context's.

        api: in place of a cluster, for tests. Raises ApiError.
        """
        if api is None:
            # The Kubernetes client takes a second to import, and is an extra.
            from rljob import kubernetes_api

            api = kubernetes_api.KubernetesApi(kubeconfig=kubeconfig, context=context, namespace=namespace)
        self._api = api

    @property
    def namespace(self) -> str:
        return self._api.namespace

    def submit(self, job: manifest.Source, *, dry_run: bool = False) -> Job:
        """Create the job, or change the one of its name, and return it. dry_run: only ask whether it would be taken.

        It is checked with the runtime that it names, where this user may read that.

        Raises ManifestError with every problem before anything is sent; RefusedError with the fields that the API
        server refuses, such as those that a running job may not change; ApiError.
        """
        checked = manifest.of(job)
        body = manifest.for_cluster(checked, namespace=self.namespace, runtime=self._runtime(checked))
        return Job(self._api, self._api.apply(body, dry_run=dry_run))

    def _runtime(self, job: RLJob) -> JobRuntime | None:
        """Return the runtime that a job names; None where it names none, or where that cannot be read."""
        reference = job.spec.runtime_ref
        if reference is None:
            return None
        try:
            return JobRuntime.model_validate_json(json.dumps(self._api.runtime(reference.kind, reference.name)))
        except (errors.ApiError, pydantic.ValidationError):
            return None

    def get(self, name: str) -> Job:
        """Raises NotFoundError, ApiError."""
        return Job(self._api, self._api.get(name))

    def list(self, selector: str = "") -> Sequence[Job]:
        """Return the jobs by name, of a label selector such as `team=search`. Raises ApiError."""
        jobs = (Job(self._api, body) for body in self._api.jobs(selector))
        return sorted(jobs, key=lambda job: job.name)
