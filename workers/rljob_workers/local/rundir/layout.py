"""A run directory: whose run it is, who runs it now, and where everything lies.

job.yaml    the manifest as it was read         configs/   one resolved config per process
job.json    identity: name, uid, spec           logs/      stdout and stderr of each process
run.lock    held while `rljob run` is at work   state/     the coordinator's ledger, weights and history.jsonl
runner.jsonl  what the runner did (journal.py)  checkpoints/ export/ dumps/ scratch/ cache/
pids.json   the processes that run now          summary.json report.html   at the end
"""

import contextlib
import fcntl
import hashlib
import json
import os
import pathlib
import shutil
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping
from typing import IO

import pydantic

from rljob_api import errors
from rljob_api.manifest.job import JobSpec
from rljob_workers.local import processes
from rljob_workers.local.rundir import changes
from rljob_workers.runtime import atomic

IDENTITY = "job.json"
_REMNANTS_S = 20.0
_POLL_S = 0.1
# A Unix socket's path has 107 bytes (unix(7)), and libraries give theirs names of up to 37 below the folder.
_MOST_TEMPORARY_BYTES = 64
# In the coordinator's state, here and in a cluster.
HISTORY = "history.jsonl"
_FOLDERS = ("configs", "logs", "state", "checkpoints", "export", "dumps", "scratch")


class Identity(pydantic.BaseModel):
    """Which run a directory belongs to. `spec` is the whole spec with its defaults, to name what changed."""

    model_config = pydantic.ConfigDict(frozen=True)

    name: str
    uid: str
    spec: dict[str, object]
    manifest_dir: str
    finished: bool = False


class RunDir:
    """Paths of one run directory and the checks of whose it is. Nothing is written before `claim`."""

    def __init__(self, path: pathlib.Path) -> None:
        """The path need not exist."""
        self.path = path.absolute()
        self.configs, self.logs, self.state = self.path / "configs", self.path / "logs", self.path / "state"
        self.journal, self.summary, self.report = (
            self.path / "runner.jsonl",
            self.path / "summary.json",
            self.path / "report.html",
        )
        self.history = self.state / HISTORY
        self.pids, self.dumps = self.path / "pids.json", self.path / "dumps"

    def identity(self) -> Identity | None:
        """Return whose run this is, None if it is no one's yet. Raises ManifestError for an unreadable identity."""
        try:
            return Identity.model_validate_json((self.path / IDENTITY).read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, pydantic.ValidationError) as error:
            raise errors.ManifestError(f"--run-dir {self.path}: {IDENTITY} cannot be read: {error}") from error

    def admit(self, *, name: str, spec: Mapping[str, object], manifest_dir: pathlib.Path) -> Identity:
        """Return the identity under which the job may run here: the recorded one, or a new one that `claim` writes.

        A finished run is finished still, unless `spec` asks for more steps: then it continues from its last checkpoint.
        Raises ManifestError if the directory holds another job, another spec of it, or something that is not a run.
        """
        identity = self.identity()
        if identity is None:
            self._refuse_foreign_content()
            return Identity(
                name=name,
                uid=str(uuid.uuid4()),
                spec=dict(spec),
                manifest_dir=str(manifest_dir),
            )
        if identity.name != name:
            raise errors.ManifestError(
                f"--run-dir {self.path} holds the run of job {identity.name!r}, not of {name!r}; nothing was "
                f"overwritten: choose another directory with --run-dir"
            )
        refuse = changes.refusals_of_finished if identity.finished else changes.refusals
        problems = refuse(old=_with_new_defaults(identity.spec), new=spec, run_dir=str(self.path))
        if problems:
            raise errors.ManifestError(*problems)
        finished = identity.finished and not changes.asks_for_more(old=identity.spec, new=spec)
        return identity.model_copy(update={"spec": dict(spec), "manifest_dir": str(manifest_dir), "finished": finished})

    def claim(self, identity: Identity, manifest_text: str) -> None:
        """Make the folders and record the identity and the manifest."""
        self.path.mkdir(parents=True, exist_ok=True)
        # First of all: a directory with content but no identity is refused.
        self.record(identity)
        for folder in _FOLDERS:
            (self.path / folder).mkdir(exist_ok=True)
        atomic.write_text(self.path / "job.yaml", manifest_text)

    def record(self, identity: Identity) -> None:
        atomic.write_text(self.path / IDENTITY, identity.model_dump_json(indent=1))

    @contextlib.contextmanager
    def temporary_files(self) -> Iterator[pathlib.Path]:
        """Yield an empty folder for whatever processes of the run leave behind, and remove it at the end.

        While the run's lock is held: what a run left that was killed is removed, too. Where the path of the folder is
        too long for sockets in it, what is yielded is a short link to it in the system's own folder.
        """
        folder = self.path / "scratch" / "tmp"
        link = pathlib.Path(tempfile.gettempdir(), f"rljob-{hashlib.sha256(os.fsencode(self.path)).hexdigest()[:12]}")
        _remove(folder, link)
        folder.mkdir(mode=0o700, parents=True)
        is_long = len(os.fsencode(folder)) > _MOST_TEMPORARY_BYTES
        try:
            if is_long:
                link.symlink_to(folder)
            yield link if is_long else folder
        finally:
            _remove(folder, link)

    @contextlib.contextmanager
    def lock(self) -> Iterator[int]:
        """Hold the directory; yields the lock's file, which processes of the run may hold on to.

        Raises ManifestError naming the pid if another `rljob run` holds it.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        with (self.path / "run.lock").open("a+", encoding="ascii") as file:
            _take(file, self.path)
            yield file.fileno()

    def _refuse_foreign_content(self) -> None:
        ours = {"run.lock"}
        if self.path.is_dir() and (other := sorted({entry.name for entry in self.path.iterdir()} - ours)):
            raise errors.ManifestError(
                f"--run-dir {self.path} is not empty ({', '.join(other[:3])}, ...) and is not a run directory; "
                f"nothing was overwritten: choose an empty or new directory"
            )


def _with_new_defaults(spec: Mapping[str, object]) -> Mapping[str, object]:
    """Return a recorded spec with the defaults of fields that it was recorded without: an earlier release knew fewer.

    One that this release cannot read stays as it is, and what differs is reported.
    """
    own = {field.alias or name for name, field in JobSpec.model_fields.items()}
    try:
        recorded = JobSpec.model_validate_json(json.dumps({key: value for key, value in spec.items() if key in own}))
    except pydantic.ValidationError:
        return spec
    return {**spec, **recorded.model_dump(mode="json", by_alias=True)}


def _remove(folder: pathlib.Path, link: pathlib.Path) -> None:
    if link.is_symlink() and link.readlink() == folder:
        link.unlink()
    shutil.rmtree(folder, ignore_errors=True)


def _take(file: IO[str], path: pathlib.Path) -> None:
    end = time.monotonic() + _REMNANTS_S
    while not _locked(file):
        file.seek(0)
        holder = file.read().strip()
        # A runner that was killed leaves guards that are just ending its processes.
        if time.monotonic() > end or (holder.isdigit() and processes.is_running(int(holder))):
            raise errors.ManifestError(
                f"--run-dir {path} is in use by another rljob run (pid {holder or 'unknown'}); "
                f"stop that one first, or choose another directory"
            )
        time.sleep(_POLL_S)
    file.seek(0)
    file.truncate()
    file.write(f"{os.getpid()}\n")
    file.flush()


def _locked(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
