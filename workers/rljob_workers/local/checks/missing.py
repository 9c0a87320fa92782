"""What a manifest names that this machine does not have: `rljob plan` reports it, `rljob run` refuses it.

It is not an error in a plan: the manifest may be for a cluster, whose volumes and images have it.
"""

import importlib.util
import pathlib
from collections.abc import Mapping

from rljob_api import errors, plugins, process_config, suites
from rljob_api.manifest import trackers
from rljob_api.manifest.job import JobSpec
from rljob_api.manifest.verifier import USUAL_PACKAGES
from rljob_workers.local import prepare


def data_files(spec: JobSpec, folder: pathlib.Path) -> list[str]:
    """Return a sentence for each path of data that is not there; relative ones are below `folder`."""
    return [
        f"spec.{field}.path: {folder / source.path} is not on this machine; rljob run needs it here, and a cluster in"
        " the coordinator's reach"
        for field, source in suites.sources(spec)
        if source.path is not None and not (folder / source.path).exists()
    ]


def gpus(configs: Mapping[str, process_config.ProcessConfig]) -> list[str]:
    """Return why this machine and installation cannot compute on what a job wants, a sentence each."""
    try:
        prepare.gpus_here(configs)
    except errors.ManifestError as error:
        return [f"{problem}; rljob run needs them, and a cluster has its own" for problem in error.problems]
    return []


def entry_points(spec: JobSpec) -> list[str]:
    """Return why an engine, a policy loss or a tracker of a package cannot be used here. None is imported: the first
    two take torch, and `rljob-coordinator --check` imports the last.
    """
    loss, engine, problems = spec.algorithm.loss, spec.rollout.engine.type, list[str]()
    if loss.type == "custom" and loss.name is not None:
        problems.append(plugins.problem(plugins.LOSSES, loss.name, field="spec.algorithm.loss.name"))
    if plugins.plugin_name(engine):
        problems.append(plugins.problem(plugins.ENGINES, engine, field="spec.rollout.engine.type"))
    for tracker in spec.observability.trackers:
        if plugins.plugin_name(tracker.type):
            field = f"spec.observability.trackers[{tracker.name}].type"
            problems.append(plugins.problem(plugins.TRACKERS, tracker.type, field=field))
    return [problem for problem in problems if problem]


def tracker_packages(spec: JobSpec) -> list[str]:
    """Return a sentence for each built-in tracker whose package is not installed here."""
    return [problem for tracker in spec.observability.trackers if (problem := trackers.missing_library(tracker))]


def packages(spec: JobSpec) -> list[str]:
    """Return a sentence for each package of programs that is not installed here."""
    there = ", ".join(filter(_is_installed, USUAL_PACKAGES)) or "none"
    return [
        f"spec.{path}.packages[{index}]: {name} is not installed here; rljob run needs it here, and a cluster in the"
        f" verifier's image. Of the usual ones there are: {there}"
        for path, _, reward in suites.rewards(spec)
        for index, name in enumerate(reward.packages)
        if not _is_installed(name.partition(".")[0])
    ]


def _is_installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None
