import json
import logging

import pytest

from rljob_workers.runtime import logs, redaction


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


ENVIRONMENT = {
    "HF_TOKEN": "hf_canary_0123456789",
    "WANDB_API_KEY": "wandb_canary",
    "db_password": "hunter2-canary",
    "HOME": "/home/somebody",
    "TOKENIZERS_PARALLELISM": "false-but-long",
    "SHORT_TOKEN": "on",
    "PEM_KEY": "hunter2-canary-and-more",
}


def test_secrets_are_known_by_the_names_of_their_variables_the_longest_first() -> None:
    found = logs.secrets_of(ENVIRONMENT)
    assert set(found) == {"hf_canary_0123456789", "wandb_canary", "hunter2-canary", "hunter2-canary-and-more"}
    assert found.index("hunter2-canary-and-more") < found.index("hunter2-canary")


@pytest.mark.covers("security")
@pytest.mark.parametrize("secret", ["hf_canary_0123456789", 'quoted "canary"\nof two lines'])
def test_a_secret_is_masked_in_message_stack_and_keys(secret: str) -> None:
    try:
        raise OSError(f"401 for {secret}")
    except OSError as error:
        trace = (type(error), error, error.__traceback__)
    record = logging.LogRecord("r", logging.ERROR, "f", 1, "the hub refused %s", (secret,), trace)
    record.group = secret
    for formatter in (logs.JsonFormatter({"pod": "p"}, secrets=(secret,)), logs.TextFormatter(secrets=(secret,))):
        line = formatter.format(record)
        assert "the hub refused ***" in line
        assert "OSError: 401 for ***" in line
        assert "canary" not in line


@pytest.mark.parametrize(
    ("name", "level", "wanted"),
    [
        ("rljob_workers.rollout.group", logging.DEBUG, True),
        ("__main__", logging.DEBUG, True),
        ("openai._base_client", logging.DEBUG, False),
        ("rljob_workers_of_others", logging.DEBUG, False),
        ("vllm.engine", logging.INFO, True),
    ],
)
def test_of_libraries_nothing_below_info_is_written(name: str, level: int, wanted: bool) -> None:
    assert logs.is_wanted(logging.LogRecord(name, level, "f", 1, "m", (), None)) is wanted


@pytest.fixture
def own_root(monkeypatch: pytest.MonkeyPatch) -> logging.Logger:
    """Return the root logger, which gets its handlers and its level back."""
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", [])
    monkeypatch.setattr(root, "level", root.level)
    monkeypatch.setattr(logging, "captureWarnings", lambda *, capture: None)
    return root


@pytest.mark.parametrize(
    ("level", "texts", "written"),
    [("Debug", True, True), ("Debug", False, False), ("Info", True, False)],
)
def test_texts_are_written_at_level_debug_and_with_the_switch(
    own_root: logging.Logger, capsys: pytest.CaptureFixture[str], level: str, texts: bool, written: bool
) -> None:
    logs.configure(level=level, identity={}, secrets=("hf_canary",), texts=texts)
    own_root.getChild("rljob_workers.x").log(redaction.TEXT, "it said hf_canary: %s", "a piece of a prompt")
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    found = [(line["level"], line["msg"]) for line in lines]
    assert found == ([("debug", "it said ***: a piece of a prompt")] if written else [])
