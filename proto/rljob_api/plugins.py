"""What installed packages add to rljob, by Python entry points. Finding one imports nothing; loading one does.

A package declares in its pyproject.toml:

    [project.entry-points."rljob.losses"]
    my-loss = "my_package.losses:my_loss"

A field with types of its own besides (reward, workflow, engine, tracker) names an entry point as `plugin:<name>`.
"""

import functools
import importlib.metadata

from rljob_api import errors

# Policy losses: spec.algorithm.loss of type custom.
LOSSES = "rljob.losses"
# Types of spec.verifier.rewards[], spec.workflow, spec.rollout.engine and spec.observability.trackers[].
GRADERS = "rljob.graders"
ENVIRONMENTS = "rljob.environments"
ENGINES = "rljob.engines"
TRACKERS = "rljob.trackers"
PREFIX = "plugin:"


def plugin_name(type_: str) -> str:
    """Return the entry point that a type names, empty if it names none."""
    return type_.removeprefix(PREFIX) if type_.startswith(PREFIX) else ""


def names(group: str) -> list[str]:
    """Return the names of a group that packages of this installation declare."""
    return sorted({entry.name for entry in importlib.metadata.entry_points(group=group)})


def problem(group: str, value: str, *, field: str) -> str:
    """Return why an entry point cannot be used here, empty if it can: none, or several packages declare it.

    value: what `field` holds, a name or `plugin:<name>`.
    """
    name = plugin_name(value) or value
    entries = importlib.metadata.entry_points(group=group, name=name)
    if len(entries) == 1:
        return ""
    if entries:
        packages = ", ".join(sorted(entry.dist.name if entry.dist else "unknown" for entry in entries))
        return f"{field} is {value!r}, but several packages declare it as an entry point of {group!r}: {packages}"
    installed = ", ".join(names(group)) or "none"
    return (
        f"{field} is {value!r}, but no package that is installed here declares it as an entry point of {group!r};"
        f" installed: {installed}. Install the package here and in the image of the role that uses it"
    )


def find(group: str, value: str, *, field: str) -> importlib.metadata.EntryPoint:
    """Return an entry point. Raises ManifestError unless exactly one package declares it."""
    if refusal := problem(group, value, field=field):
        raise errors.ManifestError(refusal)
    (entry,) = importlib.metadata.entry_points(group=group, name=plugin_name(value) or value)
    return entry


# A process uses what was installed when it started.
@functools.cache
def load(group: str, value: str, *, field: str) -> object:
    """Return the object of an entry point. Raises ManifestError if it is missing or does not import."""
    entry = find(group, value, field=field)
    try:
        return entry.load()
    except Exception as error:  # boundary: code of an installed package
        raise errors.ManifestError(f"{field} is {value!r}, but {entry.value} cannot be imported: {error!r}") from error
