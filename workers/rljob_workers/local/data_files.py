"""Which files of a manifest's data are not on this machine: `rljob plan` tells it, `rljob run` refuses it."""

import pathlib

from rljob_api import suites
from rljob_api.job import JobSpec


def missing(spec: JobSpec, folder: pathlib.Path) -> list[str]:
    """Return a sentence for each path of training data and suites that is not there; relative ones are below `folder`.

    It is no error in a plan: the manifest may be for a cluster, where a volume of the coordinator has the file.
    """
    return [
        f"spec.{field}.path: {folder / source.path} is not on this machine; rljob run needs it here, and a cluster in"
        " the coordinator's reach"
        for field, source in suites.sources(spec)
        if source.path is not None and not (folder / source.path).exists()
    ]
