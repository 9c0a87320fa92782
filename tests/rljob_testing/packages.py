"""Distributions as an installer leaves them: a module, and metadata with its entry points."""

import importlib
import pathlib
import sys
import textwrap

import pytest

from rljob_api import plugins


def install(folder: pathlib.Path, name: str, *, entry_points: str, module: str = "") -> None:
    """Write a distribution into a folder of the path; its module, if it has one, is named after it."""
    stem = name.replace("-", "_")
    if module:
        (folder / f"{stem}.py").write_text(textwrap.dedent(module))
    info = folder / f"{stem}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "RECORD").write_text(f"{stem}.py,,\n{info.name}/METADATA,,\n{info.name}/entry_points.txt,,\n")
    (info / "entry_points.txt").write_text(textwrap.dedent(entry_points))


def put_on_path(folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a folder of distributions on the path of this process and of those that it starts, until the test ends."""
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv("PYTHONPATH", str(folder))
    importlib.invalidate_caches()
    plugins.load.cache_clear()
    for module in folder.glob("*.py"):
        monkeypatch.delitem(sys.modules, module.stem, raising=False)
