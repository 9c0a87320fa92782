"""What a candidate's process wrote into its reply, as data. Pure.

Each line is a record of JSON with the nonce of its run. That stops forged and mixed-up records, not lies: what a record
says is compared elsewhere.
"""

import dataclasses
import json

from rljob_workers.verifier.sandbox.processes import candidate


@dataclasses.dataclass(frozen=True, slots=True)
class Records:
    """entered: the launcher had confined the process. items: statuses and values after that, none if malformed.

    malformed: something in the reply is not a whole record of this run.
    """

    entered: bool
    items: tuple[tuple[str, object], ...] = ()
    malformed: bool = False


def read(data: bytes, nonce: str) -> Records:
    """Return the records of a reply. The first was written before the program was there, and stays."""
    first, _, rest = data.partition(b"\n")
    if _record(first, nonce) != (candidate.ENTERED, None):
        return Records(entered=False)
    lines = rest.split(b"\n")
    records = [_record(line, nonce) for line in lines[:-1]]
    whole = tuple(record for record in records if record is not None)
    malformed = len(whole) < len(records) or lines[-1] != b""
    return Records(entered=True, items=() if malformed else whole, malformed=malformed)


def _record(line: bytes, nonce: str) -> tuple[str, object] | None:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(record, dict) or record.get("nonce") != nonce or not isinstance(record.get("status"), str):
        return None
    return record["status"], record.get("value")
