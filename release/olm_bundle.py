"""The bundle for the Operator Lifecycle Manager: what the chart renders, as a ClusterServiceVersion.

The manager installs accounts, roles, the Deployment and the definition. A bundle cannot carry admission policies: they
stay with the chart (`helm template --show-only`).
"""

import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import yaml
from generators import CHART

import rljob_api
from release import programs
from rljob_api import enums

PACKAGE, CHANNEL = "rljob-operator", "alpha"
_NAMESPACE, _KUBERNETES = "rljob-system", "1.36.0"
# Kinds that lie in a bundle as they are; what else the chart renders is in the ClusterServiceVersion, or not there.
_AS_THEY_ARE = ("ConfigMap", "CustomResourceDefinition")
_MODES = ("OwnNamespace", "SingleNamespace", "MultiNamespace", "AllNamespaces")
Manifest = Mapping[str, Any]
_DESCRIPTIONS = {
    enums.KIND: "One reinforcement-learning run",
    "ClusterRLJobRuntime": "Defaults, fixed values and pod templates for jobs of every namespace",
    "RLJobRuntime": "Defaults, fixed values and pod templates for jobs of its namespace",
}


def rendered(helm: str) -> list[Manifest]:
    """Return what the chart renders without what needs another API. Raises ReleaseError."""
    words = [
        "template", "rljob", str(CHART), f"--namespace={_NAMESPACE}", f"--kube-version={_KUBERNETES}",
        "--set=test.enabled=false",
        "--set=monitoring.dashboards.enabled=false", "--set=monitoring.podMonitor.enabled=false",
        "--set=monitoring.prometheusRule.enabled=false", "--set=operatorPolicy.enabled=false",
        "--set=isolationPolicy.enabled=false", "--set=networkPolicy.enabled=false", "--set=crds.keep=false",
        "--set=apiPriority.enabled=false",
    ]  # fmt: skip
    text = programs.run(helm, *words)
    return [document for document in yaml.load_all(text, Loader=yaml.CSafeLoader) if document]


def bundle(objects: Sequence[Manifest]) -> dict[str, str]:
    """Return the files of the bundle by path."""
    files = {
        f"manifests/{each['metadata']['name']}.{each['kind'].lower()}.yaml": _text(_without_namespace(each))
        for each in objects
        if each["kind"] in _AS_THEY_ARE
    }
    files[f"manifests/{PACKAGE}.clusterserviceversion.yaml"] = _text(service_version(objects))
    files["metadata/annotations.yaml"] = _text({"annotations": _annotations()})
    lines = ["FROM scratch", *(f"LABEL {key}={value}" for key, value in _annotations().items())]
    files["bundle.Dockerfile"] = "\n".join([*lines, "COPY manifests /manifests/", "COPY metadata /metadata/", ""])
    return files


def service_version(objects: Sequence[Manifest]) -> dict[str, Any]:
    """Return the ClusterServiceVersion of what the chart renders."""
    version, chart = rljob_api.__version__, yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    deployment = _only(objects, "Deployment")
    account = deployment["spec"]["template"]["spec"]["serviceAccountName"]
    rules = _only(objects, "ClusterRole", deployment["metadata"]["name"])["rules"]
    image = deployment["spec"]["template"]["spec"]["containers"][0]["image"]
    # Of its own namespace, where its Leases are.
    own_rules = [rule for each in objects if each["kind"] == "Role" for rule in each["rules"]]
    definitions = (each for each in objects if each["kind"] == "CustomResourceDefinition")
    examples = yaml.safe_load(chart["annotations"]["artifacthub.io/crdsExamples"])
    return {
        "apiVersion": "operators.coreos.com/v1alpha1",
        "kind": "ClusterServiceVersion",
        "metadata": {
            "name": f"{PACKAGE}.v{version}",
            "namespace": "placeholder",
            "annotations": {
                "alm-examples": json.dumps(examples),
                "capabilities": chart["annotations"]["artifacthub.io/operatorCapabilities"],
                "categories": "AI/Machine Learning",
                "containerImage": image,
                "description": chart["description"],
            },
        },
        "spec": {
            "displayName": "rljob",
            "description": chart["description"],
            "version": version,
            "maturity": "alpha",
            "minKubeVersion": chart["kubeVersion"].removeprefix(">=").removesuffix("-0"),
            "keywords": chart["keywords"],
            "maintainers": [{"name": each["name"], "email": "maintainers@rljob.dev"} for each in chart["maintainers"]],
            "provider": {"name": "rljob"},
            "installModes": [{"type": mode, "supported": mode == "AllNamespaces"} for mode in _MODES],
            "customresourcedefinitions": {
                "owned": [
                    {
                        "name": definition["metadata"]["name"],
                        "kind": definition["spec"]["names"]["kind"],
                        "version": enums.API_VERSION,
                        "displayName": definition["spec"]["names"]["kind"],
                        "description": _DESCRIPTIONS[definition["spec"]["names"]["kind"]],
                    }
                    for definition in definitions
                ]
            },
            "install": {
                "strategy": "deployment",
                "spec": {
                    "clusterPermissions": [{"serviceAccountName": account, "rules": rules}],
                    "permissions": [{"serviceAccountName": account, "rules": own_rules}],
                    "deployments": [
                        {
                            "name": deployment["metadata"]["name"],
                            "label": deployment["metadata"]["labels"],
                            "spec": deployment["spec"],
                        }
                    ],
                },
            },
            "relatedImages": [{"name": "operator", "image": image}],
        },
    }


def _annotations() -> dict[str, str]:
    prefix = "operators.operatorframework.io.bundle"
    return {
        f"{prefix}.mediatype.v1": "registry+v1",
        f"{prefix}.manifests.v1": "manifests/",
        f"{prefix}.metadata.v1": "metadata/",
        f"{prefix}.package.v1": PACKAGE,
        f"{prefix}.channels.v1": CHANNEL,
        f"{prefix}.channel.default.v1": CHANNEL,
    }


def _without_namespace(manifest: Manifest) -> Manifest:
    """Return an object as a bundle takes it: the manager says the namespace."""
    metadata = {key: value for key, value in manifest["metadata"].items() if key != "namespace"}
    return {**manifest, "metadata": metadata}


def _only(objects: Sequence[Manifest], kind: str, name: str = "") -> Manifest:
    (match,) = (each for each in objects if each["kind"] == kind and name in ("", each["metadata"]["name"]))
    return match


def _text(body: object) -> str:
    return yaml.safe_dump(body, sort_keys=False, width=120)


def write(folder: pathlib.Path, *, helm: str) -> None:
    """Write the bundle's files. Raises ReleaseError where Helm refuses."""
    for path, text in bundle(rendered(helm)).items():
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
