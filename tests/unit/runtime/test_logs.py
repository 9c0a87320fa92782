import json
import logging

from rljob_workers.runtime import logs


def line_of(record: logging.LogRecord) -> dict[str, object]:
    return dict(json.loads(logs.JsonFormatter({"rljob": "j", "role": "trainer"}).format(record)))


def test_line_carries_identity_message_and_known_keys_only() -> None:
    record = logging.LogRecord("rljob.x", logging.INFO, "f", 1, "stepped %d", (3,), None)
    record.step, record.password = 3, "hunter2"
    line = line_of(record)
    assert (line["rljob"], line["role"], line["msg"], line["step"]) == ("j", "trainer", "stepped 3", 3)
    assert "hunter2" not in json.dumps(line)


def test_uncaught_exception_is_one_line() -> None:
    try:
        raise ValueError("two\nlines")
    except ValueError as error:
        record = logging.LogRecord("r", logging.ERROR, "f", 1, "died", (), (type(error), error, error.__traceback__))
    text = logs.JsonFormatter({}).format(record)
    assert "\n" not in text
    assert "two" in str(json.loads(text)["exc"])
