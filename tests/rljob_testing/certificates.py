"""Certificate files of a job's roles, as pods see them."""

import base64
import json
import pathlib
import time
from collections.abc import Mapping
from typing import Any

from rljob_api import enums, process_config
from rljob_api.manifest.job import RLJob
from rljob_operator.pki import certificates, rotation, secrets

JOB = process_config.JobIdentity(name="sums", namespace="team", uid="u-1")
TRUST_DOMAIN = "cluster.local"
HOST = "localhost"
DAY_S = 86_400.0


class Authority:
    """A CA that signs for any caller and writes folders of certificate files."""

    def __init__(self, name: str = "u-1") -> None:
        self.pair = certificates.make_authority(name, now=time.time(), lifetime_s=90 * DAY_S)

    def files(
        self,
        folder: pathlib.Path,
        caller: str,
        *,
        job: process_config.JobIdentity = JOB,
        bundle: bytes | None = None,
        now: float | None = None,
    ) -> process_config.TlsConfig:
        """Write ca.crt, tls.crt and tls.key, each in one step, and return where they are."""
        identity = enums.identity(TRUST_DOMAIN, job.namespace, job.name, caller)
        leaf = certificates.make_leaf(
            self.pair, identity=identity, hosts=(HOST,), now=now or time.time(), lifetime_s=DAY_S
        )
        folder.mkdir(parents=True, exist_ok=True)
        content = {"ca.crt": bundle or self.pair.certificate, "tls.crt": leaf.certificate, "tls.key": leaf.key}
        for name, value in content.items():
            fresh = folder / f".{name}"
            fresh.write_bytes(value)
            fresh.replace(folder / name)
        return process_config.TlsConfig(
            ca_file=str(folder / "ca.crt"), cert_file=str(folder / "tls.crt"), key_file=str(folder / "tls.key")
        )


def config(
    tls: process_config.TlsConfig | None, role: enums.Role = enums.Role.COORDINATOR
) -> process_config.ProcessConfig:
    """Return the config of a server."""
    return process_config.ProcessConfig(job=JOB, role=role, pod="pod-0", health_port=1, scratch_dir="/tmp", tls=tls)


def leaf_that_is_due(
    job: Mapping[str, Any], authority: Mapping[str, str], role: enums.Role, *, now: float, within_s: float
) -> dict[str, str]:
    """Return the data of a role's Secret with a leaf that is to be renewed in `within_s` seconds.

    authority: the data of the Secret with the job's CA. The leaf is good until then, and for half as long again.
    """
    pair = certificates.Pair(*(base64.b64decode(authority[key]) for key in (secrets.CERTIFICATE, secrets.KEY)))
    parsed = RLJob.model_validate_json(json.dumps(job))
    metadata = parsed.metadata
    leaf = certificates.make_leaf(
        pair,
        identity=enums.identity(TRUST_DOMAIN, metadata.namespace, metadata.name, role),
        hosts=secrets.hosts(parsed, role),
        now=now,
        lifetime_s=(within_s + certificates.SKEW_S) / rotation.RENEW_AT - certificates.SKEW_S,
    )
    made = {secrets.CERTIFICATE: leaf.certificate, secrets.KEY: leaf.key}
    return {key: base64.b64encode(value).decode() for key, value in made.items()}
