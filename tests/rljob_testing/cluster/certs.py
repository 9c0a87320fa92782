"""Keys and certificates of one cluster: a CA, one server certificate, client certificates by user and group."""

import datetime
import ipaddress
import pathlib
from collections.abc import Sequence

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

DAYS = 7


class Authority:
    """A certificate authority in a folder: `ca.crt`, and `<name>.crt` with `<name>.key` for each certificate."""

    def __init__(self, folder: pathlib.Path) -> None:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name("rljob-test-ca", ())
        usage = x509.BasicConstraints(ca=True, path_length=0)
        self._write("ca", self._key, _builder(self._name, self._name, self._key).add_extension(usage, critical=True))

    def client(self, name: str, user: str, groups: Sequence[str] = ()) -> None:
        """Write a client certificate: the API server reads the user from CN and the groups from O."""
        self._issue(name, _name(user, groups), x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), ())

    def server(self, name: str, hosts: Sequence[str], addresses: Sequence[str]) -> None:
        """Write a server certificate for host names and IP addresses."""
        names = [
            *(x509.DNSName(host) for host in hosts),
            *(x509.IPAddress(ipaddress.ip_address(address)) for address in addresses),
        ]
        self._issue(name, _name(name, ()), x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), names)

    def _issue(
        self, name: str, subject: x509.Name, usage: x509.ExtendedKeyUsage, names: Sequence[x509.GeneralName]
    ) -> None:
        key = ec.generate_private_key(ec.SECP256R1())
        builder = _builder(subject, self._name, key).add_extension(usage, critical=False)
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        self._write(name, key, builder)

    def _write(self, name: str, key: ec.EllipticCurvePrivateKey, builder: x509.CertificateBuilder) -> None:
        certificate = builder.sign(self._key, hashes.SHA256())
        (self.folder / f"{name}.crt").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        path = self.folder / f"{name}.key"
        path.touch(mode=0o600)
        path.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.TraditionalOpenSSL,
                serialization.NoEncryption(),
            )
        )


def _name(common: str, groups: Sequence[str]) -> x509.Name:
    return x509.Name(
        [
            *(x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups),
            x509.NameAttribute(NameOID.COMMON_NAME, common),
        ]
    )


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + datetime.timedelta(days=DAYS))
    )
