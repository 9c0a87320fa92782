"""Operators a and b as processes on one cluster, of which one leads, and what both write, by its audit log."""

import itertools
import pathlib
from collections.abc import Mapping

from rljob_operator.kube import kinds
from rljob_operator.kube.election import lease_name
from rljob_operator.settings import LeaderElection
from rljob_testing import operator_installation
from rljob_testing.operator_api import ClusterApi
from rljob_testing.operator_audit import Request
from rljob_testing.operator_installation import Installed
from rljob_testing.operator_load import Load
from rljob_testing.operator_process import OperatorProcess
from rljob_testing.operator_series import total
from rljob_testing.operator_stage import IMAGES

TERMS = {"leaseSeconds": 10, "renewSeconds": 6, "retrySeconds": 2}
WITHIN_S = 120.0


class OperatorPair:
    """Operators a and b of one namespace, its jobs, and what both wrote there."""

    def __init__(
        self,
        installed: Installed,
        folder: pathlib.Path,
        namespace: str,
        coordinator: str,
        *,
        environments: Mapping[str, Mapping[str, str]] | None = None,
    ) -> None:
        """Start nothing yet. environments: variables of each by its name."""
        self._api, self._audit = ClusterApi(installed.cluster), installed.audit
        self.namespace, self._mark = namespace, installed.audit.mark()
        settings = {
            "watchNamespaces": [namespace],
            "jobs": {"images": dict(IMAGES)},
            "leaderElection": {"enabled": True, "namespace": operator_installation.NAMESPACE, **TERMS},
        }
        self.operators = {
            name: OperatorProcess(
                folder / name, kubeconfig=installed.kubeconfig, coordinators={namespace: coordinator},
                settings=settings, identity=f"{namespace}-{name}", environment=(environments or {}).get(name),
            )
            for name in "ab"
        }  # fmt: skip
        self.load = Load(self._api, [namespace], check=lambda: None)

    def start(self) -> tuple[OperatorProcess, OperatorProcess]:
        """Start both; return the one that leads and the one that waits, both ready."""
        for operator in self.operators.values():
            operator.start()
        for operator in self.operators.values():
            operator.ready()
        self.load.until(lambda: len(self.leaders()) == 1, within_s=WITHIN_S)
        (leader,) = self.leaders()
        (other,) = set(self.operators) - {leader}
        return self.operators[leader], self.operators[other]

    def leaders(self) -> list[str]:
        """Return who says that it leads."""
        return [name for name, each in self.operators.items() if total(each.series(), "rljob_operator_leader") == 1]

    def holder(self) -> str:
        """Return who has the Lease; empty once it was given back."""
        lease = self._api.get(kinds.LEASE, operator_installation.NAMESPACE, lease_name(LeaderElection(), 0))
        return str(lease["spec"].get("holderIdentity", ""))

    def follows(self, number: int, replicas: int) -> float:
        """Edit a job and return the seconds until its rollouts follow."""
        return self.load.replicas_follow(number, replicas, within_s=WITHIN_S)

    def running_since(self) -> dict[str, str]:
        """Return since when each job that runs says so, by name."""
        return {
            job["metadata"]["name"]: condition["lastTransitionTime"]
            for job in self._api.list(kinds.RLJOB, self.namespace)
            for condition in job["status"]["conditions"]
            if (condition["type"], condition["status"]) == ("Running", "True")
        }

    def first_write(self, after: float, *, not_of: str) -> float | None:
        """Return when another process than one wrote first after a time; None while none has."""
        return next((each.at for each in self.writes() if each.at > after and not_of not in each.agent), None)

    def writes(self) -> list[Request]:
        """Return what both wrote in the namespace, in order."""
        return [each for each in self._audit.writes(self._mark) if each.namespace == self.namespace]

    def writers(self) -> list[str]:
        """Return who wrote, one entry for each time that the writer changed."""
        return [agent for agent, _ in itertools.groupby(each.agent for each in self.writes())]

    def end(self) -> None:
        """End both and remove the jobs."""
        for operator in self.operators.values():
            operator.end()
        self._api.delete_all(kinds.RLJOB, self.namespace)
        self._api.close()
