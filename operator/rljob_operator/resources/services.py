"""Names of the roles: a headless Service each, which is DNS and nothing else."""

from rljob_api import names
from rljob_operator.resources import container
from rljob_operator.resources.inputs import Inputs, Manifest, child_name, first_config, labels, metadata, selector


def service(inputs: Inputs, role: names.Role) -> Manifest:
    """Return the Service `<job>-<role>`.

    A trainer's and a coordinator's pods are found before they are ready: a rendezvous must not wait for readiness.
    Headless for verifiers too, so that a client sees every pod and spreads its calls itself.
    """
    early = role in (names.Role.TRAINER, names.Role.COORDINATOR)
    ports = container.ports(first_config(inputs, role))
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(inputs, child_name(inputs, role), labels(inputs, role)),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": early,
            "selector": selector(inputs, role),
            "ports": [
                {"name": port["name"], "port": port["containerPort"], "targetPort": port["name"], "protocol": "TCP"}
                for port in ports
            ],
        },
    }
