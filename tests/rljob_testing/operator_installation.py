"""The operator's account on a test cluster, with the rights that the chart gives it and no others."""

import json
import pathlib
from collections.abc import Sequence
from typing import NamedTuple

from rljob_testing.charts import Helm
from rljob_testing.cluster import manifests
from rljob_testing.cluster.light import LOOPBACK, LightCluster
from rljob_testing.operator_audit import AuditLog
from rljob_testing.operator_metrics_api import MetricsApi

NAMESPACE, NAME = "rljob-system", "rljob-operator"
USER = f"system:serviceaccount:{NAMESPACE}:{NAME}"
_RIGHTS = frozenset(
    {
        "ServiceAccount",
        "ClusterRole",
        "ClusterRoleBinding",
        "Role",
        "RoleBinding",
        "ValidatingAdmissionPolicy",
        "ValidatingAdmissionPolicyBinding",
    }
)
_TOKEN_LASTS = "12h"


class Installed(NamedTuple):
    """A cluster on which the chart's rights are installed. kubeconfig: of the operator's account."""

    cluster: LightCluster
    kubeconfig: pathlib.Path
    audit: AuditLog
    metrics: MetricsApi


def install(
    cluster: LightCluster, helm: Helm, *, system: str = NAMESPACE, watched: Sequence[str] = (), selector: str = ""
) -> pathlib.Path:
    """Install definition, account and rights; return a kubeconfig with a token of the account.

    system: the account's namespace, which is made. watched: namespaces that are there, where alone it has rights.
    selector: labels of the namespaces that it follows.
    """
    _done(cluster, "create", "namespace", system)
    grant(cluster, helm, system=system, watched=watched, selector=selector)
    manifests.establish(cluster)
    token = _done(cluster, "create", "token", NAME, "-n", system, f"--duration={_TOKEN_LASTS}").strip()
    authority = str(cluster.run_dir / "pki" / "ca.crt")
    server = {"server": f"https://{LOOPBACK}:{cluster.port}", "certificate-authority": authority}
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "test", "cluster": server}],
        "users": [{"name": "operator", "user": {"token": token}}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "operator"}}],
        "current-context": "test",
    }
    path = cluster.run_dir / f"{system}.kubeconfig"
    path.touch(mode=0o600)
    path.write_text(json.dumps(content))
    return path


def grant(cluster: LightCluster, helm: Helm, *, system: str, watched: Sequence[str] = (), selector: str = "") -> None:
    """Apply definition, account and rights, also those that went with a namespace."""
    # What is of the whole cluster has a name of its own for each installation.
    names = {} if system == NAMESPACE else {"fullnameOverride": system, "serviceAccount": {"name": NAME}}
    watch = {"namespaces": list(watched), "namespaceSelector": selector}
    made = helm.template({"watch": watch, **names}, namespace=system)
    wanted = [each for each in made if each["kind"] in {*_RIGHTS, "CustomResourceDefinition"}]
    own = [each for each in wanted if "helm.sh/hook" not in (each["metadata"].get("annotations") or {})]
    # As JSON: what PyYAML takes for a string that needs no quotes, 1e-6, is a number to others.
    objects = json.dumps({"apiVersion": "v1", "kind": "List", "items": own})
    _done(cluster, "apply", "--server-side", "-f", "-", stdin=objects)


def _done(cluster: LightCluster, *arguments: str, stdin: str | None = None) -> str:
    done = cluster.kubectl(*arguments, stdin=stdin)
    assert done.returncode == 0, done.stderr
    return done.stdout
