import json
import logging
import pathlib

import pytest

from rljob_api import enums, errors
from rljob_workers.runtime import boot


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.ManifestError("x"), enums.ExitCode.CONFIGURATION),
        (errors.DataError("x"), enums.ExitCode.CONFIGURATION),
        (errors.SandboxError("x"), enums.ExitCode.ISOLATION_REFUSED),
        (errors.UnavailableError("x"), enums.ExitCode.INFRASTRUCTURE),
        (errors.DigestError("x"), enums.ExitCode.INFRASTRUCTURE),
        (errors.EngineError("x"), enums.ExitCode.FAILED),
    ],
)
def test_error_becomes_the_exit_code_of_its_boundary(error: errors.RLJobError, code: enums.ExitCode) -> None:
    def main() -> int:
        raise error

    assert boot.run_main(main) == code


def test_last_words_are_left_for_the_kubelet(tmp_path: pathlib.Path) -> None:
    message = tmp_path / "termination-log"
    message.write_text("")

    def main() -> int:
        raise errors.UnavailableError("coordinator is gone")

    boot.run_main(main, termination_log=str(message))
    assert json.loads(message.read_text()) == {"code": 75, "reason": "UnavailableError: coordinator is gone"}


def test_a_check_that_holds_leaves_no_words_as_if_the_program_had_ended(
    caplog: pytest.LogCaptureFixture, tmp_path: pathlib.Path
) -> None:
    message = tmp_path / "termination-log"
    message.write_text("")
    with caplog.at_level(logging.INFO):
        assert boot.run_check(lambda: None, termination_log=str(message)) == enums.ExitCode.OK
    assert (caplog.records, message.read_text()) == ([], "")


def test_a_check_that_fails_ends_the_program_as_its_main_part_would(
    caplog: pytest.LogCaptureFixture, tmp_path: pathlib.Path
) -> None:
    message = tmp_path / "termination-log"
    message.write_text("")

    def check() -> None:
        raise errors.StorageAccessError("there is no such bucket")

    with caplog.at_level(logging.INFO):
        assert boot.run_check(check, termination_log=str(message)) == enums.ExitCode.CONFIGURATION
    reason = "StorageAccessError: there is no such bucket"
    assert [record.getMessage() for record in caplog.records] == [
        "ended: there is no such bucket",
        f"exited with code 78 ({reason})",
    ]
    assert json.loads(message.read_text()) == {"code": 78, "reason": reason}


def test_error_that_is_not_of_the_tree_is_one_line_with_its_stack_and_code_1(
    caplog: pytest.LogCaptureFixture, tmp_path: pathlib.Path
) -> None:
    message = tmp_path / "termination-log"
    message.write_text("")

    def main() -> int:
        raise KeyError("bug")

    with caplog.at_level(logging.INFO):
        code = boot.run_main(main, termination_log=str(message))
    assert code == enums.ExitCode.FAILED
    assert [record.getMessage() for record in caplog.records] == [
        "ended: KeyError: 'bug'",
        "exited with code 1 (KeyError: 'bug')",
    ]
    assert caplog.records[0].exc_info
    assert json.loads(message.read_text()) == {"code": 1, "reason": "KeyError: 'bug'"}


def test_a_secret_of_the_environment_is_masked_in_the_last_words(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_canary_token")
    message = tmp_path / "termination-log"
    message.write_text("")

    def main() -> int:
        raise errors.UnavailableError("the hub refused hf_canary_token")

    boot.run_main(main, termination_log=str(message))
    assert json.loads(message.read_text())["reason"] == "UnavailableError: the hub refused ***"


def test_a_config_that_is_refused_is_told_to_a_person_and_to_the_operator(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    message = tmp_path / "termination-log"
    message.touch()
    code = boot.refuse(["no GPU is visible", "no image for it"], termination_log=str(message))
    assert code == enums.ExitCode.CONFIGURATION
    assert capsys.readouterr().err == "error: no GPU is visible\nerror: no image for it\n"
    assert json.loads(message.read_text()) == {"code": 78, "reason": "no GPU is visible; no image for it"}
