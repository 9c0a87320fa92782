"""Marked texts in the place of prompts, completions, golds, hidden tests and secrets, and a look for them in what is
reported.

The mark is in each text several times, so that a part of eight characters or more is found, and it is looked for as
token ids, too: in the fakes a character's id is its code.
"""

import json
import logging
from collections.abc import Iterable

from rljob_workers.runtime import logs, redaction

MARK = "quetzal"
PROMPT, COMPLETION, GOLD, HIDDEN_TEST, SECRET = (
    f"{MARK} {kind} {MARK} {kind} {MARK}" for kind in ("prompt", "completion", "gold", "hidden-test", "secret")
)
IDS = tuple(map(ord, PROMPT))
_IDS_OF_MARK = ", ".join(str(ord(char)) for char in MARK)


def assert_untold(text: str) -> None:
    """Assert that no marked text, and no part of one, is in `text`."""
    for sought in (MARK, _IDS_OF_MARK, _IDS_OF_MARK.replace(" ", "")):
        at = text.find(sought)
        assert at < 0, f"told what may not be: ...{text[max(0, at - 200) : at + 100]}..."


def lines_of(records: Iterable[logging.LogRecord]) -> str:
    """Return what both formats write of the log records that are written at all, and every further field of theirs."""
    formats = (logs.JsonFormatter({}), logs.TextFormatter())
    return "\n".join(
        text
        for record in records
        if logs.is_wanted(record) and redaction.strip(record)
        for text in (*(each.format(record) for each in formats), json.dumps(record.__dict__, default=repr))
    )
