"""Packages that a program may import besides the standard library, because its reward names them (`packages`).

Where they lie and what they need comes from their own metadata: the files of a distribution and of all that it
requires. Those can be read, and nothing else of the folder that they lie in, which is on no program's path: a finder in
its process (`candidate.py`) knows the modules by name. A warm interpreter imports them before its first fork.
"""

import dataclasses
import functools
import importlib.metadata
import os
import sys
from collections.abc import Iterator, Mapping, Sequence

from packaging.requirements import InvalidRequirement, Requirement

from rljob_api import errors, process_config
from rljob_api.manifest.verifier import USUAL_PACKAGES
from rljob_workers.verifier.sandbox.confinement import landlock

# Which of their modules programs use without more ado, though a package imports them when they are first asked for.
_ASKED_FOR: Mapping[str, Sequence[str]] = {
    "numpy": ("numpy.fft", "numpy.linalg", "numpy.ma", "numpy.polynomial", "numpy.random"),
}
_PACKAGE_FILE = "__init__.py"
_MODULE_SUFFIXES = (".py", ".so")


@dataclasses.dataclass(frozen=True, slots=True)
class Installed:
    """modules: the file that each module of the packages begins with, by its name. readable: rights by real path."""

    modules: Mapping[str, str]
    readable: Mapping[str, int]


@functools.cache
def installed(names: tuple[str, ...]) -> Installed:
    """Return where packages are, with what they require. Raises ManifestError for one that is not installed."""
    modules: dict[str, str] = {}
    readable: dict[str, int] = {}
    for name in names:
        distribution = _distribution(top(name))
        if distribution is None:
            raise errors.ManifestError(f"package {name!r} is not installed here")
        for required in _with_requirements(distribution, set()):
            modules |= _modules(required)
            readable |= _readable(required)
    return Installed(modules, readable)


def request_fields(names: tuple[str, ...]) -> dict[str, object]:
    """Return what a program's process is sent of them, as JSON. Raises ManifestError as `installed` does."""
    load = [module for name in names for module in (name, *_ASKED_FOR.get(name, ()))]
    return {"load": load, "modules": dict(installed(names).modules)}


def top(name: str) -> str:
    """Return the package that a module is a part of."""
    return name.partition(".")[0]


def of(reward: process_config.GraderConfig) -> tuple[str, ...]:
    """Return the packages of a reward. Raises ManifestError with a sentence for each that is not installed."""
    missing = [(index, name) for index, name in enumerate(reward.packages) if _distribution(top(name)) is None]
    if missing:
        there = ", ".join(name for name in USUAL_PACKAGES if _distribution(name) is not None) or "none"
        raise errors.ManifestError(
            *(
                f"reward {reward.name!r}: packages[{index}] is {name!r}, which is not installed where the verifier"
                f" runs; of the usual ones there are: {there}"
                for index, name in missing
            )
        )
    return reward.packages


def _distribution(name: str) -> importlib.metadata.Distribution | None:
    """Return the distribution that a top-level module comes from. The standard library comes from none."""
    if name in sys.stdlib_module_names:
        return None
    try:
        distribution = importlib.metadata.distribution(name)
    except (importlib.metadata.PackageNotFoundError, ValueError):
        distribution = None
    if distribution is not None and name in _modules(distribution):
        return distribution
    # Of another name than its module; to look through all of them takes a second.
    owners = _owners().get(name, ())
    return next(
        (candidate for candidate in map(importlib.metadata.distribution, owners) if name in _modules(candidate)), None
    )


@functools.cache
def _owners() -> Mapping[str, Sequence[str]]:
    return importlib.metadata.packages_distributions()


def _with_requirements(
    distribution: importlib.metadata.Distribution, visited: set[str]
) -> Iterator[importlib.metadata.Distribution]:
    """Yield a distribution and what it requires without extras, as far as it is installed."""
    visited.add(distribution.name)
    yield distribution
    for text in distribution.requires or ():
        try:
            requirement = Requirement(text)
            if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
                continue
            required = importlib.metadata.distribution(requirement.name)
        except (InvalidRequirement, importlib.metadata.PackageNotFoundError):
            continue
        if required.name not in visited:
            yield from _with_requirements(required, visited)


def _modules(distribution: importlib.metadata.Distribution) -> dict[str, str]:
    """Return the file that each top-level module of a distribution begins with."""
    modules: dict[str, str] = {}
    for file in distribution.files or ():
        parts = file.parts
        name = parts[0].partition(".")[0]
        is_package = len(parts) == 2 and parts[1] == _PACKAGE_FILE
        is_module = len(parts) == 1 and parts[0].endswith(_MODULE_SUFFIXES)
        # Of the standard library's modules nothing can be hidden, and an editable installation has no files here.
        if (is_package or is_module) and name.isidentifier() and not name.startswith("__"):
            modules[name] = os.path.realpath(str(distribution.locate_file(file)))
    return modules


def _readable(distribution: importlib.metadata.Distribution) -> dict[str, int]:
    """Return the folders and files of a distribution that are next to each other, and the rights on them."""
    file_rights, tree_rights = int(landlock.Fs.READ_FILE), int(landlock.Fs.READ_FILE | landlock.Fs.READ_DIR)
    files: dict[str, int] = {}
    for file in distribution.files or ():
        first = file.parts[0]
        if first in ("..", "/", "__pycache__") or first.endswith((".dist-info", ".egg-info", ".pth")):
            continue
        place = os.path.realpath(str(distribution.locate_file(first)))
        if os.path.isdir(place):
            files[place] = tree_rights
        elif os.path.isfile(place):
            files[place] = file_rights
    return files
