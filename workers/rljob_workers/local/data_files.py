"""Which files of a manifest's data are not on this machine: `rljob plan` tells it, `rljob run` refuses it."""

import pathlib
from collections.abc import Iterator

from rljob_api.job import JobSpec
from rljob_api.spec.data import DataSourceSpec


def missing(spec: JobSpec, folder: pathlib.Path) -> list[str]:
    """Return a sentence for each path of training data and suites that is not there; relative ones are below `folder`.

    It is no error in a plan: the manifest may be for a cluster, where a volume of the coordinator has the file.
    """
    return [
        f"{field}: {folder / source.path} is not on this machine; rljob run needs it here, and a cluster in the"
        " coordinator's reach"
        for field, source in _sources(spec)
        if source.path is not None and not (folder / source.path).exists()
    ]


def _sources(spec: JobSpec) -> Iterator[tuple[str, DataSourceSpec]]:
    for index, source in enumerate(spec.data.train):
        yield f"spec.data.train[{index}].path", source
    for index, suite in enumerate(spec.evaluation.suites):
        yield f"spec.evaluation.suites[{index}].path", suite
