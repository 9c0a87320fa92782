"""The example manifests, and the scripts that made their data."""

import importlib.util
import pathlib
import types

ROOT = pathlib.Path(__file__).parents[2]
EXAMPLES = ROOT / "crds" / "examples"


def generator(name: str) -> types.ModuleType:
    """Return the script that makes a data set, imported."""
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
