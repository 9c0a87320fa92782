"""Keys of TLS are reported by the names of their files, never by what is in them."""

import pathlib

import pytest

from rljob_api import errors, process_config
from rljob_testing import certificates as files
from rljob_testing import marked
from rljob_testing.marked import SECRET
from rljob_workers.rpc import channel
from rljob_workers.rpc import tls as certificates
from rljob_workers.rpc import tls as reloading

KEY = f"-----BEGIN PRIVATE KEY-----\n{SECRET}\n-----END PRIVATE KEY-----\n"


@pytest.fixture
def tls(tmp_path: pathlib.Path) -> process_config.TlsConfig:
    """Return certificate files whose key is marked, and of no use."""
    made = files.Authority().files(tmp_path, "coordinator")
    pathlib.Path(made.key_file).write_text(KEY)
    return made


def test_certificates_that_were_read_have_no_text_of_their_key(tls: process_config.TlsConfig) -> None:
    held = certificates.read(tls)
    assert SECRET.encode() in held.key
    marked.assert_untold(f"{held} {held!r} {[held]}")


async def test_a_key_that_cannot_be_read_any_more_is_told_by_its_path(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    tls = files.Authority().files(tmp_path, "rollout")
    key = pathlib.Path(tls.key_file)
    content = key.read_text()
    opened = channel.aio_channel(f"{files.HOST}:1", tls)
    assert isinstance(opened, reloading.ReloadingAioChannel)
    key.unlink()
    with pytest.raises(errors.UnavailableError, match=f"cannot read certificate file {key}"):
        certificates.read(tls)
    opened.current()
    assert f"kept the old certificates: cannot read certificate file {key}" in caplog.text
    assert content.splitlines()[1] not in marked.lines_of(caplog.records)
    await opened.close()
