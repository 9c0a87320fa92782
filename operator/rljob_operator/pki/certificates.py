"""Keys and certificates: ECDSA P-256, as PEM. What is due and where it is kept is decided elsewhere."""

import dataclasses
import datetime
from collections.abc import Sequence

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

# Clocks of nodes may differ.
SKEW_S = 300


@dataclasses.dataclass(frozen=True, slots=True, repr=False)
class Pair:
    """A certificate and its key, both PEM. It has no repr: a key must not reach a log."""

    certificate: bytes
    key: bytes


@dataclasses.dataclass(frozen=True, slots=True)
class Validity:
    """From when to when a certificate is good, unix seconds."""

    start: float
    end: float

    @property
    def seconds(self) -> float:
        return self.end - self.start


def make_authority(name: str, *, now: float, lifetime_s: float) -> Pair:
    """Return a CA that signs leaves and nothing else. `name` must differ from that of other CAs of the same job."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    builder = _builder(subject, subject, key, now=now, end=now + lifetime_s)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_usage(signs_certificates=True), critical=True)
    return _pair(builder.sign(key, hashes.SHA256()), key)


def make_leaf(authority: Pair, *, identity: str, hosts: Sequence[str], now: float, lifetime_s: float) -> Pair:
    """Return a certificate for both ends of a connection: one URI that says who it is, and the names it answers to.

    It never outlives its CA.
    """
    issuer = x509.load_pem_x509_certificate(authority.certificate)
    issuer_key = serialization.load_pem_private_key(authority.key, password=None)
    assert isinstance(issuer_key, ec.EllipticCurvePrivateKey), "made by make_authority"
    key = ec.generate_private_key(ec.SECP256R1())
    end = min(now + lifetime_s, issuer.not_valid_after_utc.timestamp())
    # Its identity is in the URI; an empty subject needs critical names (RFC 5280, 4.2.1.6).
    builder = _builder(x509.Name([]), issuer.subject, key, now=now, end=end)
    names = [x509.UniformResourceIdentifier(identity), *map(x509.DNSName, hosts)]
    usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    builder = (
        builder.add_extension(x509.SubjectAlternativeName(names), critical=True)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()), critical=False)
    )
    return _pair(builder.sign(issuer_key, hashes.SHA256()), key)


def validity(certificate: bytes) -> Validity | None:
    """Return the time of a PEM certificate; None if it is none."""
    try:
        parsed = x509.load_pem_x509_certificate(certificate)
    except ValueError:
        return None
    return Validity(parsed.not_valid_before_utc.timestamp(), parsed.not_valid_after_utc.timestamp())


def is_pair(pair: Pair) -> bool:
    """Return whether both can be read and belong together."""
    try:
        key = serialization.load_pem_private_key(pair.key, password=None)
        certified = x509.load_pem_x509_certificate(pair.certificate).public_key()
    except (ValueError, TypeError):
        return False
    return isinstance(key, ec.EllipticCurvePrivateKey) and key.public_key() == certified


def is_issued_by(certificate: bytes, authority: bytes) -> bool:
    """Return whether a certificate carries the signature of a CA."""
    try:
        leaf, issuer = x509.load_pem_x509_certificate(certificate), x509.load_pem_x509_certificate(authority)
        leaf.verify_directly_issued_by(issuer)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def names_of(certificate: bytes) -> tuple[str, tuple[str, ...]]:
    """Return identity and host names of a leaf that `make_leaf` made."""
    names = (
        x509.load_pem_x509_certificate(certificate)
        .extensions.get_extension_for_class(x509.SubjectAlternativeName)
        .value
    )
    (identity,) = names.get_values_for_type(x509.UniformResourceIdentifier)
    return identity, tuple(names.get_values_for_type(x509.DNSName))


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, *, now: float, end: float
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(_time(now - SKEW_S))
        .not_valid_after(_time(end))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _time(seconds: float) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC)


def _pair(certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> Pair:
    return Pair(
        certificate.public_bytes(serialization.Encoding.PEM),
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()),
    )
