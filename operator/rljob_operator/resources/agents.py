"""The Deployment of the job's agents: the user's image as confined as a role's, with nothing of ours in it but the
gateway's URL and key, and the CAs of the job where the gateway is encrypted.

Own file: it has no config, certificate of its own, port or probe, since no program of ours runs there.
"""

import copy

from rljob_api import cluster_placement, enums, process_config
from rljob_api.manifest.rollout import CA_FILE_VARIABLE, GATEWAY_VARIABLE, KEY_FILE_VARIABLE
from rljob_operator.resources import container, pod, workloads
from rljob_operator.resources.inputs import Inputs, Manifest, certificate_secret, pod_of

_ROLE = enums.Role.AGENTS
# An attempt that a pod leaves behind is made again after `idleSeconds`: nothing is worth a longer wait.
GRACE_S = 10
SCRATCH_SIZE = "4Gi"
# Where programs of any language put temporary files; the rest of the image is read-only.
_SCRATCH_DIR = "/tmp"
_KEY_DIR, _KEY_FILE = "/etc/rljob-gateway", "key"
# Beside the key's folder: a mount inside a read-only mount cannot be made.
_CA_DIR = "/etc/rljob-ca"
_CA_PATH = f"{_CA_DIR}/{cluster_placement.CA_FILE}"
# Where programs look for whom to trust: OpenSSL, Go and httpx; requests; curl; Node, which trusts its own too.
_TRUST_VARIABLES = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "NODE_EXTRA_CA_CERTS")


def agents_deployment(inputs: Inputs) -> Manifest:
    """Return the Deployment of a job that has agents; its controller starts those again that end."""
    spec = inputs.job.spec
    assert spec.agents is not None, "suites.roles says who has them"
    template = pod.with_surroundings(inputs, _ROLE, _pod(inputs))
    deadline_s = spec.startup_deadline_seconds + workloads.PROGRESS_EXTRA_S
    return workloads.deployment(inputs, _ROLE, template, replicas=spec.agents.replicas, deadline_s=deadline_s)


def _pod(inputs: Inputs) -> Manifest:
    """Return the pod. It has no account of its own, for it has no token: Kubernetes lets it do nothing."""
    user = pod_of(inputs, _ROLE).model_dump(mode="json", by_alias=True, exclude_none=True)
    volumes: list[Manifest] = [*user["volumes"], {"name": "rljob-scratch", "emptyDir": {"sizeLimit": SCRATCH_SIZE}}]
    if (key := inputs.job.spec.rollout.gateway_key) is not None:
        # Group-readable, as certificates are: the user of the image may be anyone.
        items = [{"key": key.key, "path": _KEY_FILE}]
        volumes.append(
            {"name": "rljob-gateway", "secret": {"secretName": key.name, "items": items, "defaultMode": 0o440}}
        )
    if _gateway(inputs).service:
        # Of the rollouts' Secret the one entry that is no secret.
        items = [{"key": cluster_placement.CA_FILE, "path": cluster_placement.CA_FILE}]
        secret = certificate_secret(inputs.job, enums.Role.ROLLOUT)
        volumes.append({"name": "rljob-ca", "secret": {"secretName": secret, "items": items}})
    secrets = pod.pull_secrets(inputs)
    return {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "shareProcessNamespace": False,
        "securityContext": pod.security(inputs),
        "terminationGracePeriodSeconds": GRACE_S,
        "containers": [_container(inputs, user)],
        "volumes": container.merge_by_key(volumes, key="name"),
        **pod.chosen_place(user),
        **({"imagePullSecrets": secrets} if secrets else {}),
    }


def _container(inputs: Inputs, user: Manifest) -> Manifest:
    spec, gateway = inputs.job.spec, _gateway(inputs)
    agents = spec.agents
    assert agents is not None, "suites.roles says who has them"
    defaults: list[Manifest] = [{"name": name, "value": _SCRATCH_DIR} for name in ("HOME", "TMPDIR")]
    own: list[Manifest] = [
        container.pod_name(),
        {"name": GATEWAY_VARIABLE, "value": cluster_placement.gateway_url(inputs.job, gateway)},
    ]
    mounts: list[Manifest] = [{"name": "rljob-scratch", "mountPath": _SCRATCH_DIR}]
    if spec.rollout.gateway_key is not None:
        own.append({"name": KEY_FILE_VARIABLE, "value": f"{_KEY_DIR}/{_KEY_FILE}"})
        mounts.append({"name": "rljob-gateway", "mountPath": _KEY_DIR, "readOnly": True})
    if gateway.service:
        # An image's own certificates may be what its program needs: the manifest's word on them counts.
        defaults += [{"name": name, "value": _CA_PATH} for name in _TRUST_VARIABLES]
        own.append({"name": CA_FILE_VARIABLE, "value": _CA_PATH})
        mounts.append({"name": "rljob-ca", "mountPath": _CA_DIR, "readOnly": True})
    variables, folders = user["env"], user["volumeMounts"]
    assert isinstance(variables, list), "a list of the manifest"
    assert isinstance(folders, list), "a list of the manifest"
    # The image's own program runs where the manifest names none.
    words = {"command": [*agents.pod.command_prefix, *agents.command], "args": list(agents.args)}
    return {
        "name": container.NAME,
        "image": inputs.images[_ROLE],
        "imagePullPolicy": inputs.settings.pull_policy,
        **{key: value for key, value in words.items() if value},
        "env": container.merge_by_key([*defaults, *variables, *own], key="name"),
        "resources": container.requested_resources(inputs, _ROLE),
        "volumeMounts": container.merge_by_key([*folders, *mounts], key="mountPath"),
        "securityContext": copy.deepcopy(container.SECURITY),
        # It writes no report of why it ended: the end of its log says it.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        **({"envFrom": user["envFrom"]} if user["envFrom"] else {}),
    }


def _gateway(inputs: Inputs) -> process_config.GatewayConfig:
    gateway = inputs.configs.rollouts[0].gateway
    assert gateway is not None, "a rule of the manifest: agents have a gateway"
    return gateway
