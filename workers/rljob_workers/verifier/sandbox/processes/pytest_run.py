"""What runs the tests of a repository inside a candidate's process: pytest, whose results go over the channel back.

`candidate.py` loads this file by path, and pytest with it, before its process is confined and sees a repository. The
tests and the code that they test share this process, so nothing that it says proves anything. It still must not be
fooled by accident, or by what one line does: what pytest reports, what it heard of exceptions, and what this file saw
itself must agree.
"""

import os
import sys
from collections.abc import Generator, Sequence
from typing import Protocol

import pytest

_PHASES = frozenset(("setup", "call", "teardown"))
# Nothing is looked for in the repository or in installed packages, nothing is written, and stdout is the program's own.
_OPTIONS = (
    "--disable-plugin-autoload",
    # A test file is imported from its own path, whatever else has its name; no folder goes before the standard library.
    "--import-mode=importlib",
    "--assert=plain",
    "--capture=no",
    *(word for name in ("cacheprovider", "faulthandler", "logging", "terminal") for word in ("-p", f"no:{name}")),
)


class Channel(Protocol):
    """The way back."""

    def send(self, status: str, value: object = None) -> None: ...


def run(request: "dict[str, object]", reply: Channel) -> None:
    """Run the tests of a request: one record for each that ran, [index, passed or failed], and one at the end."""
    tree, tests = str(request["tree"]), request["tests"]
    assert isinstance(tests, list)
    os.chdir(tree)
    # Last: a file of the answer's can hide no module of the standard library.
    sys.path += [tree, os.path.join(tree, "src")]
    own = ("-c", str(request["configuration"]), "--rootdir", tree, "--confcutdir", tree)
    # By whole paths: a name that begins with a dash is not an option.
    files = dict.fromkeys(os.path.join(tree, test.partition("::")[0]) for test in tests)
    pytest.main([*own, *_OPTIONS, *files], plugins=[Reports(tests, reply)])
    reply.send("finished")


class Reports:
    """Keeps the tests that were asked for, and reports on each that ran."""

    def __init__(self, tests: Sequence[str], reply: Channel) -> None:
        """`tests`: ids [N]."""
        self._indexes = {test: index for index, test in enumerate(tests)}
        self._reply = reply
        self._clean: dict[str, set[str]] = {}
        self._returned: set[str] = set()
        self._marred: set[str] = set()

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: "list[pytest.Item]") -> None:
        """Leave out the tests that no one asked for."""
        items[:] = [item for item in items if item.nodeid in self._indexes]

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, object, object]:
        """Note that a test came to its end; what it raises does not get past the `yield`."""
        returned = yield
        self._returned.add(item.nodeid)
        return returned

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: "pytest.CallInfo[None]"
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Note the phases in which nothing was raised: a failure of unittest's is reported here alone."""
        report = yield
        if call.excinfo is None:
            self._clean.setdefault(item.nodeid, set()).add(call.when)
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note what is reported otherwise than as passed: skipped, expected to fail, or failed in a part of it."""
        if report.outcome != "passed" or hasattr(report, "wasxfail"):
            self._marred.add(report.nodeid)

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        passed = self._clean.get(nodeid, set()) == _PHASES and nodeid in self._returned and nodeid not in self._marred
        self._reply.send("test", [self._indexes[nodeid], "passed" if passed else "failed"])
