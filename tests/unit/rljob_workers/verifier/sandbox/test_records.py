import json

import pytest

from rljob_workers.verifier.sandbox.processes import records
from rljob_workers.verifier.sandbox.processes.records import Records

NONCE = "00ff"


def line(status: object, value: object = None, nonce: str = NONCE) -> bytes:
    return json.dumps({"nonce": nonce, "status": status, "value": value}).encode() + b"\n"


ENTERED = line("entered")


def test_records_after_the_first_are_the_programs() -> None:
    assert records.read(ENTERED + line("returned", 3), NONCE) == Records(True, (("returned", 3),))
    assert records.read(ENTERED, NONCE) == Records(True)


@pytest.mark.parametrize("data", [b"", b"\n", line("returned", 3), line("entered", nonce="guess"), ENTERED[:-2]])
def test_reply_that_does_not_begin_with_the_launchers_word_is_not_the_programs(data: bytes) -> None:
    assert not records.read(data, NONCE).entered


@pytest.mark.covers("sandbox S-5")
@pytest.mark.parametrize(
    "forged",
    [
        line("returned", 3, nonce="guess"),
        line("returned", 3)[:-1],
        b"not JSON\n",
        b"\n",
        b"[1, 2]\n",
        b"\xff\n",
        line(None, 3),
        b"[" * 100_000 + b"\n",
    ],
)
def test_one_line_that_is_no_record_of_this_run_spoils_the_reply(forged: bytes) -> None:
    for data in (ENTERED + forged, ENTERED + line("returned", 3) + forged):
        assert records.read(data, NONCE) == Records(True, malformed=True)
