"""The Secrets of a job with `security.tls: Operator`: `<job>-ca`, which no pod mounts, and `<job>-tls-<role>`.

`secrets` is what a reconcile calls: given what the API server holds, it returns what has to be written and when to
look again. The operator's own certificate is made in memory from the CA and is stored nowhere.
"""

import base64
import binascii
import dataclasses
from collections.abc import Mapping

from rljob_api import cluster_placement, enums, suites
from rljob_api.manifest.job import RLJob
from rljob_operator.pki import certificates, rotation
from rljob_operator.pki.certificates import Pair
from rljob_operator.pki.rotation import Authorities
from rljob_operator.resources.inputs import Manifest, certificate_secret, job_labels, owner_reference

# Under these keys Kubernetes keeps a certificate, and every program that mounts one looks for them.
CERTIFICATE, KEY, BUNDLE = "tls.crt", "tls.key", cluster_placement.CA_FILE
_NEXT_CERTIFICATE, _NEXT_KEY, _PREVIOUS = "next.crt", "next.key", "previous.crt"
OPERATOR_S = 3600.0
Data = Mapping[str, str]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Secrets:
    """Secrets to apply, in this order, and the unix time at which something is due next.

    authorities: the CAs after that, for the operator's own connections. ends: unix seconds at which the certificate of
    each role ends.
    """

    changed: tuple[Manifest, ...]
    again_at: float
    authorities: Authorities
    ends: Mapping[enums.Role, float]


def authority_name(job: RLJob) -> str:
    return f"{job.metadata.name}-ca"


def secret_names(job: RLJob) -> tuple[str, ...]:
    """Return all of them: what a reconcile reads."""
    return (authority_name(job), *(certificate_secret(job, role) for role in suites.programs(job.spec)))


def secrets(job: RLJob, existing: Mapping[str, Data], *, trust_domain: str, now: float) -> Secrets:
    """Return what has to be written. `existing`: by name, the `data` of the Secrets that exist."""
    before = _authorities(existing.get(authority_name(job), {}))
    after = rotation.renewed(before, name=job.metadata.uid, now=now)
    changed = [] if after is before else [_secret(job, authority_name(job), _authority_data(after))]
    again_at = rotation.next_change(after)
    ends = {}
    for role in suites.programs(job.spec):
        data = existing.get(certificate_secret(job, role), {})
        leaf = _leaf(job, role, data, after, trust_domain=trust_domain, now=now)
        desired = {BUNDLE: after.bundle, CERTIFICATE: leaf.certificate, KEY: leaf.key}
        if desired != {key: _decoded(data, key) for key in desired}:
            changed.append(_secret(job, certificate_secret(job, role), desired))
        again_at = min(again_at, rotation.due_at(leaf.certificate))
        ends[role] = rotation.ends_at(leaf.certificate)
    return Secrets(changed=tuple(changed), again_at=again_at, authorities=after, ends=ends)


def operator_leaf(job: RLJob, authorities: Authorities, *, trust_domain: str, now: float) -> Pair:
    """Return the certificate with which the operator asks this job's coordinator; good for an hour."""
    identity = enums.identity(trust_domain, job.metadata.namespace, job.metadata.name, enums.OPERATOR)
    return certificates.make_leaf(authorities.current, identity=identity, hosts=(), now=now, lifetime_s=OPERATOR_S)


def hosts(job: RLJob, role: enums.Role) -> tuple[str, ...]:
    """Return the names that a role's pods answer to: its Service, and each pod behind it."""
    full = cluster_placement.service_host(job, role)
    return (full, full.removesuffix(".svc"), f"{job.metadata.name}-{role}", f"*.{full}")


def _leaf(job: RLJob, role: enums.Role, data: Data, authorities: Authorities, *, trust_domain: str, now: float) -> Pair:
    identity = enums.identity(trust_domain, job.metadata.namespace, job.metadata.name, role)
    leaf, dns_names = _pair(data, CERTIFICATE, KEY), hosts(job, role)
    if leaf is not None and rotation.leaf_is_good(leaf, authorities, identity=identity, hosts=dns_names, now=now):
        return leaf
    return certificates.make_leaf(
        authorities.current, identity=identity, hosts=dns_names, now=now, lifetime_s=rotation.LEAF_S
    )


def _authorities(data: Data) -> Authorities | None:
    current = _pair(data, CERTIFICATE, KEY)
    if current is None:
        return None
    return Authorities(current, _pair(data, _NEXT_CERTIFICATE, _NEXT_KEY), _decoded(data, _PREVIOUS))


def _authority_data(authorities: Authorities) -> dict[str, bytes]:
    data = {CERTIFICATE: authorities.current.certificate, KEY: authorities.current.key}
    if authorities.upcoming is not None:
        data |= {_NEXT_CERTIFICATE: authorities.upcoming.certificate, _NEXT_KEY: authorities.upcoming.key}
    return data | ({_PREVIOUS: authorities.previous} if authorities.previous else {})


def _pair(data: Data, certificate: str, key: str) -> Pair | None:
    pair = Pair(_decoded(data, certificate), _decoded(data, key))
    return pair if certificates.is_pair(pair) else None


def _decoded(data: Data, key: str) -> bytes:
    try:
        return base64.b64decode(data.get(key, ""), validate=True)
    except (binascii.Error, ValueError):
        return b""


def _secret(job: RLJob, name: str, data: Mapping[str, bytes]) -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "kubernetes.io/tls",
        "metadata": {
            "name": name,
            "namespace": job.metadata.namespace,
            "labels": job_labels(job),
            "ownerReferences": [owner_reference(job)],
        },
        "data": {key: base64.b64encode(value).decode() for key, value in data.items()},
    }
