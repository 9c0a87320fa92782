"""What a release is made of: one version, one commit, one time."""

import re
import tomllib
from collections.abc import Mapping

import yaml
from generators import CHART, ROOT

import rljob_api
from release import programs
from release.programs import ReleaseError

EPOCH = "SOURCE_DATE_EPOCH"


def version() -> str:
    """Return the version that package, code and chart have. Raises ReleaseError where one has another."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    return same_version(
        {
            "rljob_api.__version__": rljob_api.__version__,
            "version of pyproject.toml": project["version"],
            "version of Chart.yaml": chart["version"],
            "appVersion of Chart.yaml": chart["appVersion"],
        }
    )


def same_version(versions: Mapping[str, str]) -> str:
    """Return the one version of all. versions: by where they are written. Raises ReleaseError."""
    if len(set(versions.values())) != 1:
        raise ReleaseError("versions differ: " + ", ".join(f"{where} is {text}" for where, text in versions.items()))
    return next(iter(versions.values()))


def epoch(environment: Mapping[str, str]) -> int:
    """Return the time of everything in a release, in seconds since 1970: a variable, else the time of the commit.

    Raises ReleaseError.
    """
    text = environment.get(EPOCH)
    if text is None:
        text = programs.run("git", "log", "-1", "--format=%ct").strip()
    # An entry of a wheel cannot be older than 1980.
    if not re.fullmatch(r"[0-9]{9,11}", text) or int(text) < 315532800:
        raise ReleaseError(f"{EPOCH} is {text!r}: it must be seconds since 1970, from 1980 on")
    return int(text)


def require_committed() -> None:
    """Raise ReleaseError where the tree holds what is in no commit."""
    if changed := programs.run("git", "status", "--porcelain").splitlines():
        raise ReleaseError(f"the tree has {len(changed)} uncommitted changes, such as {changed[0][3:]}: commit them")
