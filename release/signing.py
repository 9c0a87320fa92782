"""Signatures by cosign, with a key or with the identity of the pipeline that makes the release."""

import pathlib
import shutil
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from release.programs import ReleaseError

KEY = "COSIGN_KEY"
# By which cosign itself gets the identity of a pipeline, without a person at a browser.
IDENTITIES = ("SIGSTORE_ID_TOKEN", "ACTIONS_ID_TOKEN_REQUEST_URL")


class Signer(NamedTuple):
    """cosign, and the key that it signs with: a file or an address of a key management service. None: an identity."""

    cosign: str
    key: str | None


def signer(environment: Mapping[str, str], which: Callable[[str], str | None] = shutil.which) -> Signer:
    """Return what signs a release. Raises ReleaseError where there is no cosign, or nothing that it could sign with."""
    cosign = which("cosign")
    if cosign is None:
        raise ReleaseError("cosign is not on the PATH: install it, or make a release without signatures by --unsigned")
    key = environment.get(KEY) or None
    if key is None and not any(environment.get(name) for name in IDENTITIES):
        raise ReleaseError(
            f"there is nothing to sign with: set {KEY} to a key, run in a pipeline that has an identity"
            f" ({' or '.join(IDENTITIES)}), or make a release without signatures by --unsigned"
        )
    if key is not None and "://" not in key and not pathlib.Path(key).is_file():
        raise ReleaseError(f"{KEY} is {key!r}, which is no file: it must be one, or an address such as awskms://...")
    return Signer(cosign, key)


def file_command(signer: Signer, file: pathlib.Path) -> Sequence[str]:
    """Return the command that writes the signature of a file, with all that verifies it, next to the file."""
    return [signer.cosign, "sign-blob", *_with(signer), "--bundle", f"{file}.sigstore.json", str(file)]


def image_commands(signer: Signer, image: str, bill: pathlib.Path) -> Sequence[Sequence[str]]:
    """Return the commands that sign an image and attach its bill of materials. image: its name with digest."""
    return [
        [signer.cosign, "sign", *_with(signer), image],
        [signer.cosign, "attest", *_with(signer), "--type", "cyclonedx", "--predicate", str(bill), image],
    ]


def _with(signer: Signer) -> Sequence[str]:
    # Without --yes cosign asks whether to write to the public log.
    return ["--yes", *(["--key", signer.key] if signer.key else [])]
