"""A stand-in for all kubelets: each pod of a job is reported as running and ready as soon as it is there.

No node, scheduler or program: what is left of a pod's life are its creation and its deletion by the cluster's own
controllers, and one status. A pod that never had a node is gone as soon as it is deleted.
"""

import contextlib
import datetime
import http.client
import threading
from collections.abc import Iterator, Mapping
from typing import Any

from rljob_operator.kube import kinds
from rljob_testing.cluster.light import LightCluster
from rljob_testing.operator_api import ClusterApi, RefusedError

_TRY_AGAIN_S = 0.5


class StandInKubelets:
    """Follows the pods of all jobs on a thread of its own, from `start` to `stop`."""

    def __init__(self, cluster: LightCluster) -> None:
        """Open nothing yet."""
        self._watch, self._api = ClusterApi(cluster), ClusterApi(cluster)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="stand-in kubelets", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End; nothing of it runs afterwards."""
        self._stopped.set()
        self._watch.interrupt()
        self._thread.join()
        self._watch.close()
        self._api.close()

    def _run(self) -> None:
        since = ""
        while not self._stopped.is_set():
            # A watch ends now and then, or its connection does; the next one continues from there.
            with contextlib.suppress(http.client.HTTPException, OSError, ValueError, RefusedError):
                if not since:
                    pods, since = self._api.list_all(kinds.POD, selector=kinds.MANAGED)
                    for pod in pods:
                        self._see("ADDED", pod)
                for event in self._watch.watch(kinds.POD, selector=kinds.MANAGED, since=since):
                    if event["type"] == "ERROR":
                        # Too old a version: what happened in between is in the list.
                        since = ""
                        break
                    since = event["object"]["metadata"]["resourceVersion"]
                    self._see(event["type"], event["object"])
            self._stopped.wait(_TRY_AGAIN_S)

    def _see(self, what: str, pod: Mapping[str, Any]) -> None:
        if what not in ("ADDED", "MODIFIED") or "deletionTimestamp" in pod["metadata"]:
            return
        if (pod.get("status") or {}).get("phase", "Pending") != "Pending":
            return
        # It may have gone meanwhile.
        with contextlib.suppress(RefusedError):
            namespace, name = pod["metadata"]["namespace"], pod["metadata"]["name"]
            self._api.merge(kinds.POD, namespace, name, {"status": running(pod)}, subresource="status")


def running(pod: Mapping[str, Any]) -> dict[str, Any]:
    """Return the status of a pod whose containers have just become ready."""
    now = datetime.datetime.now(tz=datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    boxes = [
        {
            "name": box["name"],
            "image": box["image"],
            "imageID": "",
            "ready": True,
            "restartCount": 0,
            "state": {"running": {"startedAt": now}},
        }
        for box in pod["spec"]["containers"]
    ]
    ready = {"type": "Ready", "status": "True", "lastTransitionTime": now}
    return {"phase": "Running", "startTime": now, "conditions": [ready], "containerStatuses": boxes}


@contextlib.contextmanager
def played(cluster: LightCluster) -> Iterator[None]:
    """Play kubelets for as long as the context lasts."""
    kubelets = StandInKubelets(cluster)
    kubelets.start()
    try:
        yield
    finally:
        kubelets.stop()
