"""From a manifest file to resolved configs on this machine."""

import dataclasses
import json
import os
import pathlib
import shutil
from collections.abc import Mapping, Sequence

import yaml
from pydantic import JsonValue

from rljob_api import enums, errors, process_config, resolve, suites
from rljob_api.manifest.job import RLJob
from rljob_api.resolve import ResolvedJob
from rljob_api.validation import load, runtimes
from rljob_api.validation.load import load_manifest
from rljob_workers.local.run import resources
from rljob_workers.runtime import device


def apply_overrides(text: str, overrides: Sequence[str]) -> str:
    """Return the manifest text with each `path=value` set. Values are YAML; numbers with a point or exponent are text.

    Raises ManifestError for an override without a path or `=`, and for one that goes through a list or scalar.
    """
    if not overrides:
        return text
    document = load.load_document(text)
    for override in overrides:
        path, sign, value = override.partition("=")
        if not (path and sign):
            raise errors.ManifestError(f"--set {override} is not of the form path=value, for example spec.maxSteps=5")
        _set(document, path.split("."), _value(value), override)
    # JSON is YAML with every string quoted: "1e-5" and "no" stay the text that they are.
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def _value(text: str) -> JsonValue:
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise errors.ManifestError(f"--set: {text!r} is not a valid YAML value") from error
    # The manifest has decimal strings, and 1e-5 is one for a person; a mapping or list is taken as it is.
    return text if isinstance(value, float) else value


def _set(document: JsonValue, path: list[str], value: JsonValue, override: str) -> None:
    place = document
    for key in path[:-1]:
        if isinstance(place, dict):
            place = place.setdefault(key, {})
    if not isinstance(place, dict):
        raise errors.ManifestError(
            f"--set {override} addresses a field inside a list or scalar; set the whole value instead"
        )
    place[path[-1]] = value


_RUNS = pathlib.Path("runs")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """A manifest as it was read, and the folder that its relative paths are relative to."""

    job: RLJob
    text: str
    path: pathlib.Path
    # Where values of a runtime came from, by path below spec.
    origins: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def folder(self) -> pathlib.Path:
        return self.path.absolute().parent

    @property
    def spec(self) -> dict[str, object]:
        """Return the spec with its defaults, as plain JSON values under the manifest's names."""
        return self.job.spec.model_dump(mode="json", by_alias=True)


def read_manifest(path: pathlib.Path, changes: Sequence[str] = (), *, runtime: pathlib.Path | None = None) -> Manifest:
    """Return the manifest in `path` with `changes` (path=value) made, and with the values of the runtime in a file.

    Raises ManifestError, a sentence per problem.
    """
    changed = apply_overrides(_read(path), changes)
    if runtime is None:
        return Manifest(job=load_manifest(changed), text=changed, path=path)
    of_platform = runtimes.load_runtime(_read(runtime))
    document, merged = runtimes.with_runtime(load.load_document(changed), of_platform)
    reference = merged.spec.pop("runtimeRef", None)
    if isinstance(reference, dict) and reference.get("name") != of_platform.metadata.name:
        because = f"{runtime} holds {of_platform.label}: give the manifest of the runtime that the job names"
        raise errors.ManifestError(f"spec.runtimeRef.name is {reference.get('name')!r}, but {because}")
    if merged.problems:
        raise errors.ManifestError(*merged.problems)
    whole = json.dumps(document, indent=2, ensure_ascii=False) + "\n"
    return Manifest(job=load_manifest(whole), text=whole, path=path, origins=merged.origins)


def _read(path: pathlib.Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise errors.ManifestError(f"cannot read the manifest {path}: {reason}") from error


def default_run_dir(name: str) -> pathlib.Path:
    """Return where a job runs unless configured otherwise: runs/<name> below the current folder."""
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
    if isolation.runtime_class:
        raise errors.ManifestError(
            f"spec.verifier.isolation.type is {isolation.type!r}, but there are no pods on one machine: use Sandbox,"
            " which confines programs of the policy here, or run the job in a cluster"
        )
    admit_agents(manifest)


def admit_agents(manifest: Manifest) -> None:
    """Raise ManifestError for agents that cannot be started as processes here."""
    spec = manifest.job.spec
    if spec.agents is None:
        return
    problems = []
    if not spec.agents.command:
        image = spec.agents.pod.image or "the image"
        problems.append(
            f"spec.agents.command is not set, and {image} is not run on one machine: name the program that is here"
        )
    elif not _is_program(spec.agents.command[0], manifest.folder):
        name = spec.agents.command[0]
        problems.append(f"spec.agents.command is {name!r}, which is no program on PATH or below {manifest.folder}")
    if spec.agents.replicas < spec.rollout.replicas:
        problems.append(
            f"spec.agents.replicas is {spec.agents.replicas}, but on one machine each of {spec.rollout.replicas}"
            " rollouts has a gateway of its own: use as many, or more"
        )
    for variable in spec.agents.pod.env:
        secret = None if variable.value_from is None else variable.value_from.secret_key_ref
        if variable.value_from is not None and not (secret and secret.optional) and variable.name not in os.environ:
            problems.append(
                f"spec.agents.pod.env: {variable.name} has no value here: set it in the environment of rljob run"
            )
    if problems:
        raise errors.ManifestError(*problems)


def _is_program(name: str, folder: pathlib.Path) -> bool:
    return shutil.which(str(folder / name) if "/" in name else name) is not None


def gpus_here(configs: Mapping[str, process_config.ProcessConfig]) -> dict[str, tuple[str, ...]]:
    """Return the GPUs of this machine that each process gets, by its name. Raises ManifestError for too few of them."""
    engines = [
        config.spec.rollout.engine.type
        for config in configs.values()
        if isinstance(config, process_config.RolloutConfig)
    ]
    return resources.plan_gpus(configs, device.gpus(), engine=device.engine_kind(engines[0]))


def resolve_here(manifest: Manifest, *, run_dir: pathlib.Path, uid: str, attempt: int = 1) -> ResolvedJob:
    """Return the configs of all processes on this machine, with ports that are free now. Raises ManifestError."""
    job, machine = manifest.job, sorted(os.sched_getaffinity(0))
    reference = job.spec.runtime_ref
    if reference is not None:
        raise errors.ManifestError(
            f"spec.runtimeRef is {reference.kind} {reference.name}, which is in a cluster: give its manifest with"
            " --runtime FILE, or leave it out"
        )
    processes = {
        enums.Role.COORDINATOR: 1,
        enums.Role.ROLLOUT: job.spec.rollout.replicas,
        enums.Role.VERIFIER: job.spec.verifier.replicas,
        enums.Role.TRAINER: job.spec.trainer.processes_per_node,
        enums.Role.JUDGE: 1,
        enums.Role.ENVIRONMENT: suites.num_environments(job.spec),
    }
    placement = resolve.local_placement(
        job,
        uid=uid,
        run_dir=str(run_dir.absolute()),
        base_dir=str(manifest.folder),
        cache_dir=str(cache_dir()),
        ports=resources.free_ports(resolve.num_local_ports(job)),
        num_cores=len(machine),
        shares=resources.plan_cores(machine, processes, judges=job.spec.judge is not None),
        attempt=attempt,
    )
    return resolve.resolve(job, placement)
