"""What installed packages add to rljob, by Python entry points. Finding one imports nothing; loading one does.

A package declares in its pyproject.toml:

    [project.entry-points."rljob.losses"]
    my-loss = "my_package.losses:my_loss"
"""

import functools
import importlib.metadata

from rljob_api import errors

# Policy losses: spec.algorithm.loss of type custom.
LOSSES = "rljob.losses"


def names(group: str) -> list[str]:
    """Return the names of a group that packages of this installation declare."""
    return sorted({entry.name for entry in importlib.metadata.entry_points(group=group)})


def problem(group: str, name: str, *, field: str) -> str:
    """Return why an entry point cannot be used here, empty if it can: none, or several packages declare it."""
    entries = importlib.metadata.entry_points(group=group, name=name)
    if len(entries) == 1:
        return ""
    if entries:
        packages = ", ".join(sorted(entry.dist.name if entry.dist else "unknown" for entry in entries))
        return f"{field} is {name!r}, but several packages declare it as an entry point of {group!r}: {packages}"
    installed = ", ".join(names(group)) or "none"
    return (
        f"{field} is {name!r}, but no package that is installed here declares it as an entry point of {group!r};"
        f" installed: {installed}. Install the package here and in the image of the role that uses it"
    )


# A process uses what was installed when it started.
@functools.cache
def load(group: str, name: str, *, field: str) -> object:
    """Return the object of an entry point. Raises ManifestError if it is missing or does not import."""
    if refusal := problem(group, name, field=field):
        raise errors.ManifestError(refusal)
    (entry,) = importlib.metadata.entry_points(group=group, name=name)
    try:
        return entry.load()
    except Exception as error:  # boundary: code of an installed package
        raise errors.ManifestError(f"{field} is {name!r}, but {entry.value} cannot be imported: {error!r}") from error
