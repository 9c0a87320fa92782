"""The init container of verifier pods: it tests the isolation that grading will have, on the node it is on."""

import copy

from rljob_api import names
from rljob_api.spec.verifier import runtime_class
from rljob_operator.resources import container, folders, resources_of
from rljob_operator.resources.inputs import Inputs, Manifest, pod_of

NAME = "preflight"
ROLE = names.Role.VERIFIER
_SANDBOX = ("landlock", "seccomp", "confined")
_POSTURE = ("no_new_privileges", "capabilities", "read_only_root", "no_token")


def preflight(inputs: Inputs) -> Manifest:
    """Return the container; with the service's image, security context and resources, and none of its files."""
    spec, settings = inputs.job.spec, inputs.settings
    arguments = [f"--require={','.join(required(inputs))}"]
    if name := runtime_class(spec.verifier.isolation):
        arguments.append(f"--runtime-class={name}")
    if spec.security.network_policy:
        arguments.append("--closed-network")
    return {
        "name": NAME,
        "image": inputs.images[ROLE],
        "imagePullPolicy": pod_of(inputs, ROLE).image_pull_policy or settings.pull_policy,
        "command": ["python", "-m", "rljob_workers.verifier.preflight"],
        "args": arguments,
        "env": [{"name": "HOME", "value": folders.SCRATCH}, {"name": "PYTHONDONTWRITEBYTECODE", "value": "1"}],
        "resources": resources_of.of_verifier(inputs),
        "securityContext": copy.deepcopy(container.SECURITY),
        "terminationMessagePolicy": "File",
        "volumeMounts": [{"name": "rljob-scratch", "mountPath": folders.SCRATCH}],
    }


def required(inputs: Inputs) -> tuple[str, ...]:
    """Return the layers without which no pod becomes ready: none where the manifest asks for no isolation.

    The network counts where the installation demands policies; elsewhere it is reported, since many small clusters
    enforce none. Of a RuntimeClass the layer `confined` is all that can be demanded from inside: its kernel may have no
    Landlock, and gVisor takes no seccomp profile of a pod unless its runtime is told to (`oci-seccomp`). That the pod
    has the class is read in the pod itself (`policies/isolation.py`).
    """
    isolation = inputs.job.spec.verifier.isolation
    if isolation == "none":
        return ()
    layers = (*_POSTURE, *(("confined",) if runtime_class(isolation) else _SANDBOX))
    return (*layers, "network") if inputs.settings.require_network_policy else layers
