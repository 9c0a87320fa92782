"""What a running coordinator takes over of a config that changed under it. Pure: two configs in, one in force out.

Some fields are editable at any time (docs/design/operator.md#s-5-9); everything else was decided when the process
began, and a difference there is logged and not followed.
"""

import dataclasses
from collections.abc import Iterator, Mapping

from rljob_api import process_config
from rljob_api.manifest.job import LIVE

_MAX_STEPS = ("spec", "maxSteps")
_BOUND = ("spec", "async", "maxOffPolicySteps")
# Resolved from the bound where the manifest does not set them, so they move with it and never alone.
_WITH_BOUND = frozenset({("spec", "async", "maxInflightGroups"), ("spec", "async", "inFlightWeightUpdates")})
_LIVE = tuple(("spec", *path.split(".")) for path in LIVE)
# The pod's name comes from its environment, and the generation is what is acknowledged.
_APART = frozenset({("pod",), ("job", "config_generation")})
Path = tuple[str, ...]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LiveChanges:
    """The config in force from now on, and by dotted field name what it took over, what it left, what it refused.

    config.job.config_generation is the new one only if nothing was left out: it acknowledges what is in force.
    """

    config: process_config.CoordinatorConfig
    taken: tuple[str, ...]
    ignored: tuple[str, ...]
    refused: tuple[str, ...]


def live_changes(old: process_config.CoordinatorConfig, new: process_config.CoordinatorConfig) -> LiveChanges:
    """Return what becomes of `old`, the config in force, when the file says `new`; a lower maxSteps is refused."""
    before, after = dict(_leaves(old.model_dump())), dict(_leaves(new.model_dump()))
    changed = sorted(
        path for path in before.keys() | after.keys() if before.get(path) != after.get(path) and path not in _APART
    )
    refused = (_MAX_STEPS,) if new.spec.max_steps < old.spec.max_steps else ()
    taken = [path for path in changed if _is_live(path, bound_moves=_BOUND in changed) and path not in refused]
    ignored = [path for path in changed if path not in taken and path not in refused]
    values = {path: after.get(path) for path in taken}
    if not refused and not ignored:
        values["job", "config_generation"] = new.job.config_generation
    lower = f"spec.maxSteps is {new.spec.max_steps}, but was {old.spec.max_steps}: the end of a run moves upwards only"
    return LiveChanges(
        config=_with(old, values),
        taken=tuple(f"{_dotted(path)} {before.get(path)} to {after.get(path)}" for path in taken),
        ignored=tuple(map(_dotted, ignored)),
        refused=tuple(lower for _ in refused),
    )


def _is_live(path: Path, *, bound_moves: bool) -> bool:
    return (bound_moves and path in _WITH_BOUND) or any(path[: len(live)] == live for live in _LIVE)


def _dotted(path: Path) -> str:
    return ".".join(path)


def _leaves(value: object, path: Path = ()) -> Iterator[tuple[Path, object]]:
    """Yield (path, value) of everything that is not a map; a list is one value, None is the same as absent."""
    if isinstance(value, Mapping):
        for key, below in value.items():
            yield from _leaves(below, (*path, str(key)))
    elif value is not None:
        yield path, value


def _with(config: process_config.CoordinatorConfig, values: Mapping[Path, object]) -> process_config.CoordinatorConfig:
    content = config.model_dump()
    for path, value in values.items():
        section = content
        for key in path[:-1]:
            section = section[key]
        section[path[-1]] = value
    return process_config.CoordinatorConfig.model_validate(content)
