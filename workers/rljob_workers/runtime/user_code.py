"""A user's own code: one Python file (or an installed module), imported once, named by `module:Name`.

It is trusted as the manifest is, and runs in the process that its field belongs to. What is wrong with it is said with
file and line. Own file: the check at `rljob plan` imports it without any engine.
"""

import importlib
import importlib.util
import sys
import traceback
from pathlib import Path
from types import ModuleType

from rljob_api import errors


def load(reference: str, *, file: str, field: str) -> object:
    """Return what `module:Name` names; `module` is the file's stem if a file is given, else an installed module.

    Raises ManifestError with the field, and with file and line of what was raised while it was imported.
    """
    module_name, _, name = reference.partition(":")
    module = _from_file(Path(file), field) if file and Path(file).stem == module_name else _installed(reference, field)
    if not hasattr(module, name):
        there = ", ".join(sorted(key for key, value in vars(module).items() if _own(value, module))) or "nothing"
        raise errors.ManifestError(
            f"{field} is '{reference}', but {module.__file__ or module_name} has no {name}; it defines {there}"
        )
    loaded: object = getattr(module, name)
    return loaded


def _own(value: object, module: ModuleType) -> bool:
    return getattr(value, "__module__", None) == module.__name__


def _from_file(path: Path, field: str) -> ModuleType:
    if not path.is_file():
        raise errors.ManifestError(f"spec.workflow.code.path: there is no file {path}")
    loaded = sys.modules.get(path.stem)
    if loaded is not None:
        if loaded.__file__ == str(path):
            return loaded
        raise errors.ManifestError(
            f"spec.workflow.code.path: {path.name} has the name of a module that is loaded already ({loaded.__file__});"
            " give the file another name"
        )
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None, "a file that ends in .py has a loader"
    assert spec.loader is not None, "a file that ends in .py has a loader"
    module = importlib.util.module_from_spec(spec)
    # Data classes and pickling look their module up by its name.
    sys.modules[path.stem] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # boundary: a user's module may raise anything
        del sys.modules[path.stem]
        raise errors.ManifestError(f"{place(error, path)}: {type(error).__name__}: {error} ({field})") from error
    return module


def _installed(reference: str, field: str) -> ModuleType:
    try:
        return importlib.import_module(reference.partition(":")[0])
    except ImportError as error:
        raise errors.ManifestError(
            f"{field} is '{reference}', but its module cannot be imported ({error}); name its file in"
            " spec.workflow.code.path, or install it in the image"
        ) from error


def place(error: BaseException, path: Path) -> str:
    """Return `file:line` of the innermost line of `path` that `error` passed through."""
    if isinstance(error, SyntaxError) and error.filename == str(path):
        return f"{path}:{error.lineno}"
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    return f"{path}:{lines[-1]}" if lines else str(path)
