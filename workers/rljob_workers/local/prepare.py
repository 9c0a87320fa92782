"""From a manifest file to resolved configs on this machine."""

import dataclasses
import os
import pathlib
from collections.abc import Sequence

from rljob_api import errors, names, resolve
from rljob_api.load import load_manifest
from rljob_api.manifest.job import RLJob
from rljob_api.manifest.verifier import runtime_class
from rljob_api.resolve import ResolvedJob
from rljob_workers.local import cores, overrides, ports

_RUNS = pathlib.Path("runs")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """A manifest as it was read, and the folder that its relative paths are relative to."""

    job: RLJob
    text: str
    path: pathlib.Path

    @property
    def folder(self) -> pathlib.Path:
        """Return the manifest's folder."""
        return self.path.absolute().parent

    @property
    def spec(self) -> dict[str, object]:
        """Return the spec with its defaults, as plain JSON values under the manifest's names."""
        return self.job.spec.model_dump(mode="json", by_alias=True)


def read_manifest(path: pathlib.Path, changes: Sequence[str] = ()) -> Manifest:
    """Return the manifest in `path` with `changes` (path=value) made. Raises ManifestError, a sentence per problem."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise errors.ManifestError(f"cannot read the manifest {path}: {reason}") from error
    changed = overrides.apply(text, changes)
    return Manifest(job=load_manifest(changed), text=changed, path=path)


def default_run_dir(name: str) -> pathlib.Path:
    """Return where a job runs unless told otherwise: runs/<name> below the current folder."""
    return _RUNS / name


def cache_dir() -> pathlib.Path:
    """Return where converted models are kept between runs: $RLJOB_CACHE_DIR, else the user's cache folder."""
    own = os.environ.get("RLJOB_CACHE_DIR")
    if own:
        return pathlib.Path(own).absolute()
    shared = os.environ.get("XDG_CACHE_HOME") or str(pathlib.Path.home() / ".cache")
    return pathlib.Path(shared) / "rljob"


def admit_here(manifest: Manifest) -> None:
    """Raise ManifestError for a job that asks for what one machine does not have."""
    isolation = manifest.job.spec.verifier.isolation
    if runtime_class(isolation):
        raise errors.ManifestError(
            f"spec.verifier.isolation is {isolation!r}, but there are no pods on one machine: set sandbox, which"
            " confines programs of the policy here, or run the job in a cluster"
        )


def resolve_here(manifest: Manifest, *, run_dir: pathlib.Path, uid: str, attempt: int = 1) -> ResolvedJob:
    """Return the configs of all processes on this machine, with ports that are free now. Raises ManifestError."""
    job, machine = manifest.job, sorted(os.sched_getaffinity(0))
    processes = {
        names.Role.COORDINATOR: 1,
        names.Role.ROLLOUT: job.spec.rollout.replicas,
        names.Role.VERIFIER: job.spec.verifier.replicas,
        names.Role.TRAINER: job.spec.trainer.processes_per_node,
    }
    placement = resolve.local_placement(
        job,
        uid=uid,
        run_dir=str(run_dir.absolute()),
        base_dir=str(manifest.folder),
        cache_dir=str(cache_dir()),
        ports=ports.free_ports(resolve.num_local_ports(job)),
        num_cores=len(machine),
        shares=cores.plan_cores(machine, processes),
        attempt=attempt,
    )
    return resolve.resolve(job, placement)
