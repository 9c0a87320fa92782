"""A user's own file and options before anything starts: does it import, has its class the right form, do types fit?

Both looks are programs of their own with a time limit: neither the module nor the type checker enters this process.
"""

import importlib.util
import json
import pathlib
import posixpath
import subprocess
import sys

from rljob_api import suites
from rljob_api.manifest.job import JobSpec
from rljob_workers.local import prepare

_LIMIT_S = 120.0
_ERROR = "error: "
# What lies alongside the manifest is not on the path, here as in a run: it is named in workflow.code, or installed.
_PYTHON = (sys.executable, "-P", "-m")


def problems(spec: JobSpec, folder: pathlib.Path) -> list[str]:
    """Return one sentence per problem, with file and line; relative paths are below `folder`."""
    code = spec.workflow.code
    path = "" if code is None else posixpath.normpath(posixpath.join(folder, code.path))
    checks = []
    functions = {field: template for field, template in suites.templates(spec) if ":" in template}
    if spec.data.filter_groups.predicate is not None:
        functions["data.filterGroups.predicate"] = spec.data.filter_groups.predicate
    if spec.workflow.is_own or functions or spec.workflow.config:
        values = (dict(spec.workflow.config), functions, spec.environment is not None)
        checks.append(["rollout", path, spec.workflow.type, *map(json.dumps, values)])
    checks += [
        ["verifier", path, reward.type, json.dumps(dict(reward.config))]
        for _, _, reward in suites.rewards(spec)
        if ":" in reward.type
    ]
    lines = [
        problem
        for role, *arguments in checks
        for problem in _lines([*_PYTHON, f"rljob_workers.{role}.code_check", *arguments], folder)
    ]
    if lines or not checks or not path:
        return list(dict.fromkeys(lines))
    return type_errors(path, folder)


def can_check_types() -> bool:
    """Return whether mypy is installed: it is not a part of the base."""
    return importlib.util.find_spec("mypy") is not None


def type_errors(path: str, folder: pathlib.Path) -> list[str]:
    """Return what mypy says of a file, `file:line: sentence` each; nothing without mypy."""
    if not can_check_types():
        return []
    # What it learns of our packages and the libraries is the same for every job, and no file of the user's folder.
    cache = prepare.cache_dir() / "mypy"
    options = [
        f"--cache-dir={cache}",
        "--follow-imports=silent",
        "--ignore-missing-imports",
        "--show-absolute-path",
        "--no-error-summary",
    ]
    return _lines([*_PYTHON, "mypy", *options, "--hide-error-codes", "--config-file=", path], folder)


def _lines(command: list[str], folder: pathlib.Path) -> list[str]:
    try:
        ended = subprocess.run(
            command, capture_output=True, text=True, timeout=_LIMIT_S, check=False, cwd=folder, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired:
        return [f"the check of spec.workflow.code did not end within {_LIMIT_S:.0f} s"]
    if ended.returncode == 0:
        return []
    output = (ended.stderr + ended.stdout).splitlines()
    messages = [line.removeprefix(_ERROR) for line in output if _ERROR in line]
    return messages or [
        f"the check of spec.workflow.code ended with exit code {ended.returncode}: {' '.join(output[-3:])}"
    ]
