"""Certificate files of a job's roles, as pods see them."""

import pathlib
import time

from rljob_api import names, roles
from rljob_operator.pki import certificates

JOB = roles.JobIdentity(name="sums", namespace="team", uid="u-1")
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
        job: roles.JobIdentity = JOB,
        bundle: bytes | None = None,
        now: float | None = None,
    ) -> roles.TlsConfig:
        """Write ca.crt, tls.crt and tls.key, each in one step, and return where they are."""
        identity = names.identity(TRUST_DOMAIN, job.namespace, job.name, caller)
        leaf = certificates.make_leaf(
            self.pair, identity=identity, hosts=(HOST,), now=now or time.time(), lifetime_s=DAY_S
        )
        folder.mkdir(parents=True, exist_ok=True)
        content = {"ca.crt": bundle or self.pair.certificate, "tls.crt": leaf.certificate, "tls.key": leaf.key}
        for name, value in content.items():
            fresh = folder / f".{name}"
            fresh.write_bytes(value)
            fresh.replace(folder / name)
        return roles.TlsConfig(
            ca_file=str(folder / "ca.crt"), cert_file=str(folder / "tls.crt"), key_file=str(folder / "tls.key")
        )


def config(tls: roles.TlsConfig | None, role: names.Role = names.Role.COORDINATOR) -> roles.CommonConfig:
    """Return the config of a server."""
    return roles.CommonConfig(job=JOB, role=role, pod="pod-0", health_port=1, scratch_dir="/tmp", tls=tls)
