"""A workflow of the user's own and the file that it stands in."""

import posixpath
from collections.abc import Iterator

from rljob_api.job import JobSpec
from rljob_api.rules.words import refuse


def file_and_module_agree(spec: JobSpec) -> Iterator[str]:
    """A file is named by the type's module, and by nothing else."""
    code, module = spec.workflow.code, spec.workflow.type.partition(":")[0]
    if code is None:
        return
    stem = posixpath.basename(code.path).removesuffix(".py")
    if ":" not in spec.workflow.type:
        yield refuse("workflow.code.path", code.path, f"workflow.type {module} is built in: name {stem}:<class>")
    elif module != stem:
        yield refuse("workflow.code.path", code.path, f"workflow.type {spec.workflow.type} wants a file {module}.py")
