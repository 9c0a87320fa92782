"""promtool: the checks and unit tests of Prometheus' own tool."""

import pathlib
import subprocess

TIMEOUT_S = 240.0


class PromtoolError(AssertionError):
    """promtool found a fault; the message is what it wrote."""


class Promtool:
    """Runs one promtool binary."""

    def __init__(self, program: pathlib.Path) -> None:
        """Keep the path."""
        self._program = program

    def check_metrics(self, exposition: bytes) -> None:
        """Parse the text format and look at names, units and help texts. Raises PromtoolError."""
        self._run("check", "metrics", text=exposition)

    def check_rules(self, *files: pathlib.Path) -> None:
        """Parse rule files, their expressions and their templates. Raises PromtoolError."""
        self._run("check", "rules", "--lint=all", "--lint-fatal", *map(str, files))

    def test_rules(self, file: pathlib.Path) -> None:
        """Run a file of unit tests. Raises PromtoolError with what differs."""
        self._run("test", "rules", str(file))

    def _run(self, *arguments: str, text: bytes = b"") -> None:
        done = subprocess.run([str(self._program), *arguments], input=text, capture_output=True, timeout=TIMEOUT_S)
        if done.returncode:
            raise PromtoolError((done.stdout + done.stderr).decode(errors="replace")[-4000:])
