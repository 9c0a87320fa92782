import datetime

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID

from rljob_operator.pki import certificates

NOW = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC).timestamp()
DAY = 86_400.0
IDENTITY = "spiffe://cluster.local/ns/team/rljob/sums/role/rollout"
HOSTS = ("sums-rollout.team.svc", "*.sums-rollout.team.svc")


def test_a_leaf_says_who_it_is_and_serves_both_ends() -> None:
    authority = certificates.make_authority("u-1", now=NOW, lifetime_s=90 * DAY)
    leaf = certificates.make_leaf(authority, identity=IDENTITY, hosts=HOSTS, now=NOW, lifetime_s=7 * DAY)
    read = x509.load_pem_x509_certificate(leaf.certificate)
    names = read.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.UniformResourceIdentifier) == [IDENTITY]
    assert names.get_values_for_type(x509.DNSName) == list(HOSTS)
    assert names.get_values_for_type(x509.IPAddress) == []
    usages = read.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert set(usages) == {ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH}
    key = read.public_key()
    assert isinstance(key, ec.EllipticCurvePublicKey)
    assert key.curve.name == "secp256r1"
    assert not read.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert certificates.names_of(leaf.certificate) == (IDENTITY, HOSTS)


def test_a_ca_may_sign_leaves_and_no_other_ca() -> None:
    authority = certificates.make_authority("u-1", now=NOW, lifetime_s=90 * DAY)
    read = x509.load_pem_x509_certificate(authority.certificate)
    basic = read.extensions.get_extension_for_class(x509.BasicConstraints).value
    assert (basic.ca, basic.path_length) == (True, 0)
    usage = read.extensions.get_extension_for_class(x509.KeyUsage).value
    assert usage.key_cert_sign
    assert not usage.digital_signature


def test_a_leaf_never_outlives_its_ca() -> None:
    authority = certificates.make_authority("u-1", now=NOW, lifetime_s=DAY)
    leaf = certificates.make_leaf(authority, identity=IDENTITY, hosts=HOSTS, now=NOW, lifetime_s=7 * DAY)
    found = certificates.validity(leaf.certificate)
    assert found is not None
    assert (found.start, found.end) == (NOW - 300, NOW + DAY)


def test_a_signature_of_another_ca_is_told_apart() -> None:
    one, other = (certificates.make_authority(name, now=NOW, lifetime_s=DAY) for name in ("a", "b"))
    leaf = certificates.make_leaf(one, identity=IDENTITY, hosts=HOSTS, now=NOW, lifetime_s=DAY)
    assert certificates.is_issued_by(leaf.certificate, one.certificate)
    assert not certificates.is_issued_by(leaf.certificate, other.certificate)
    assert not certificates.is_issued_by(b"nonsense", one.certificate)


def test_a_key_of_another_certificate_is_no_pair_and_no_key_is_printed() -> None:
    one, other = (certificates.make_authority(name, now=NOW, lifetime_s=DAY) for name in ("a", "b"))
    assert certificates.is_pair(one)
    assert not certificates.is_pair(certificates.Pair(one.certificate, other.key))
    assert not certificates.is_pair(certificates.Pair(b"", b""))
    assert "PRIVATE" not in f"{one!r} {one}"
