"""What signs a release, and with which commands."""

import pathlib

import pytest
from release import signing
from release.programs import ReleaseError
from release.signing import Signer

KMS = "awskms://alias/rljob"


def _on_the_path(name: str) -> str | None:
    return f"/programs/{name}"


def _not_there(name: str) -> str | None:
    return None


def test_without_cosign_there_is_no_signer_and_the_way_out_is_named() -> None:
    with pytest.raises(ReleaseError, match=r"cosign is not on the PATH.*--unsigned"):
        signing.signer({"COSIGN_KEY": KMS}, _not_there)


@pytest.mark.parametrize("environment", [{}, {"COSIGN_KEY": ""}, {"SIGSTORE_ID_TOKEN": ""}])
def test_without_key_and_identity_there_is_no_signer(environment: dict[str, str]) -> None:
    with pytest.raises(ReleaseError, match=r"nothing to sign with: set COSIGN_KEY.*--unsigned"):
        signing.signer(environment, _on_the_path)


def test_a_key_that_is_no_file_is_refused_by_its_value(tmp_path: pathlib.Path) -> None:
    with pytest.raises(ReleaseError, match=r"COSIGN_KEY is '.*absent.key', which is no file"):
        signing.signer({"COSIGN_KEY": str(tmp_path / "absent.key")}, _on_the_path)


def test_a_key_is_a_file_or_an_address_and_an_identity_needs_none(tmp_path: pathlib.Path) -> None:
    key = tmp_path / "cosign.key"
    key.write_text("")
    for environment, expected in (
        ({"COSIGN_KEY": str(key)}, str(key)),
        ({"COSIGN_KEY": KMS, "SIGSTORE_ID_TOKEN": "token"}, KMS),
        ({"SIGSTORE_ID_TOKEN": "token"}, None),
        ({"ACTIONS_ID_TOKEN_REQUEST_URL": "https://pipeline.example.com"}, None),
    ):
        assert signing.signer(environment, _on_the_path) == Signer("/programs/cosign", expected)


def test_the_checksums_are_signed_into_a_bundle_next_to_them() -> None:
    file = pathlib.Path("/release/SHA256SUMS")
    common = ["cosign", "sign-blob", "--yes"]
    ending = ["--bundle", "/release/SHA256SUMS.sigstore.json", "/release/SHA256SUMS"]
    assert signing.file_command(Signer("cosign", KMS), file) == [*common, "--key", KMS, *ending]
    # Without a key cosign asks for the identity by itself.
    assert signing.file_command(Signer("cosign", None), file) == [*common, *ending]


def test_an_image_is_signed_by_digest_and_has_its_bill_of_materials_attached() -> None:
    image, bill = "registry.example.com/rljob/rljob-slim@sha256:12", pathlib.Path("/release/sbom-slim.cdx.json")
    assert signing.image_commands(Signer("cosign", KMS), image, bill) == [
        ["cosign", "sign", "--yes", "--key", KMS, image],
        ["cosign", "attest", "--yes", "--key", KMS, "--type", "cyclonedx", "--predicate", str(bill), image],
    ]
