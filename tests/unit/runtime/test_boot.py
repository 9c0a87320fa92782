import json
import pathlib

import pytest

from rljob_api import errors, names
from rljob_workers.runtime import boot


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.ManifestError("x"), names.ExitCode.CONFIGURATION),
        (errors.DataError("x"), names.ExitCode.CONFIGURATION),
        (errors.SandboxError("x"), names.ExitCode.ISOLATION_REFUSED),
        (errors.UnavailableError("x"), names.ExitCode.INFRASTRUCTURE),
        (errors.DigestError("x"), names.ExitCode.INFRASTRUCTURE),
        (errors.EngineError("x"), names.ExitCode.FAILED),
    ],
)
def test_error_becomes_the_exit_code_of_its_boundary(error: errors.RLJobError, code: names.ExitCode) -> None:
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


def test_error_that_is_not_of_the_tree_rises() -> None:
    def main() -> int:
        raise KeyError("bug")

    with pytest.raises(KeyError):
        boot.run_main(main)
