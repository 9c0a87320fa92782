"""What is reported an exception whose message may be made of a prompt or an answer."""

import asyncio
import gc
import logging

import pytest

from rljob_workers.runtime import logs, redaction

CANARY = "canary: what the policy wrote"
logger = logging.getLogger("rljob_workers.of_a_test")


def users_code(completion: str) -> None:
    raise ValueError(f"cannot read {completion}")


def raised(completion: str = CANARY) -> ValueError:
    with pytest.raises(ValueError) as caught:
        users_code(completion)
    return caught.value


def test_type_and_innermost_place_are_told() -> None:
    line = users_code.__code__.co_firstlineno + 1
    assert redaction.describe(raised()) == f"ValueError at test_withheld.py:{line} in users_code"


def test_what_thousands_of_texts_raise_is_logged_as_an_error_once_for_each_place(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redaction, "_logged", set())
    with caplog.at_level(logging.DEBUG, logger.name):
        for error in (raised(), raised("another text"), raised()):
            redaction.log_first(logger, "a parser", error)
        redaction.log_first(logger, "a parser", KeyError(CANARY))
    levels = [(record.levelname, record.getMessage().rpartition(" raised ")[0]) for record in caplog.records]
    first = ("ERROR", "for the first time a parser")
    assert levels == [first, ("DEBUG", "a parser"), ("DEBUG", "a parser"), first]
    assert CANARY not in caplog.text


def test_an_exception_that_was_never_raised_has_no_place() -> None:
    assert redaction.describe(KeyError("x")) == "KeyError"


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (float("nan"), "nan"),
        (3, "3"),
        (True, "True"),
        (None, "None"),
        (CANARY, "a str"),
        ([CANARY], "a list"),
        ({CANARY: 1}, "a dict"),
    ],
)
def test_numbers_are_shown_and_of_all_else_the_type(value: object, told: str) -> None:
    assert redaction.brief(value) == told


@pytest.mark.parametrize("level", [logging.DEBUG, logging.INFO])
@pytest.mark.parametrize("formatter", [logs.JsonFormatter({}), logs.TextFormatter()])
def test_the_stack_is_logged_and_the_message_is_not(
    caplog: pytest.LogCaptureFixture, formatter: logging.Formatter, level: int
) -> None:
    with caplog.at_level(level):
        redaction.log(logger, "the workflow", raised(), keys={"group": "g7"})
    (record,) = caplog.records
    line = formatter.format(record)
    assert "the workflow raised ValueError at test_withheld.py:" in line
    assert "in users_code" in line
    assert CANARY not in line
    assert record.__dict__["group"] == "g7"


def test_the_cause_and_the_context_of_an_exception_are_not_told_either(caplog: pytest.LogCaptureFixture) -> None:
    try:
        try:
            users_code(CANARY)
        except ValueError as cause:
            raise RuntimeError("went on") from cause
    except RuntimeError as error:
        redaction.log(logger, "the workflow", error)
    assert CANARY not in logs.JsonFormatter({}).format(caplog.records[0])


def test_at_level_text_the_start_of_the_message_is_a_line_of_its_own(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(redaction.TEXT):
        redaction.log(logger, "the workflow", raised("x" * 1000))
    _, said = caplog.records
    assert said.getMessage() == "the workflow said: cannot read " + "x" * (256 - len("cannot read "))


async def test_a_task_that_nobody_waited_for_is_told_by_its_stack(caplog: pytest.LogCaptureFixture) -> None:
    async def lost() -> None:
        users_code(CANARY)

    task = asyncio.create_task(lost())
    await asyncio.wait({task})
    del task
    gc.collect()
    (record,) = caplog.records
    assert CANARY in record.getMessage(), "asyncio itself quotes the exception"
    assert redaction.strip(record)
    line = logs.TextFormatter().format(record)
    assert "Task exception was never retrieved" in line
    assert "in users_code" in line
    assert "ValueError" in line
    assert CANARY not in line


def test_lines_of_other_loggers_stay_as_they_are(caplog: pytest.LogCaptureFixture) -> None:
    logging.getLogger("vllm.engine").error("the engine died", exc_info=raised("of a cause"))
    (record,) = caplog.records
    assert redaction.strip(record)
    assert "cannot read of a cause" in logs.TextFormatter().format(record)
