"""A workflow, template or reward of the user's own and the file that it stands in."""

import posixpath
from collections.abc import Iterator

from rljob_api import suites
from rljob_api.manifest.job import JobSpec
from rljob_api.messages import refuse


def file_and_module_agree(spec: JobSpec) -> Iterator[str]:
    """A file is named by the module of the workflow, a template, a reward or the predicate, and by nothing else."""
    code = spec.workflow.code
    if code is None:
        return
    stem = posixpath.basename(code.path).removesuffix(".py")
    named = [(field, type_) for field, type_ in _types(spec) if ":" in type_]
    if stem in [_module(type_) for _, type_ in named]:
        return
    if named:
        field, type_ = named[0]
        yield refuse("workflow.code.path", code.path, f"{field} {type_} wants a file {_module(type_)}.py")
    else:
        yield refuse(
            "workflow.code.path", code.path, f"workflow.type {spec.workflow.type} is built in: name {stem}:<class>"
        )


def _types(spec: JobSpec) -> Iterator[tuple[str, str]]:
    yield "workflow.type", spec.workflow.type
    yield from suites.templates(spec)
    if (predicate := spec.data.filter_groups.predicate) is not None:
        yield "data.filterGroups.predicate", predicate
    for path, _, reward in suites.rewards(spec):
        yield f"{path}.type", reward.type


def _module(type_: str) -> str:
    return type_.partition(":")[0]
