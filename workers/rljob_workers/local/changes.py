"""Which fields of a spec may differ when a run goes on. Pure: two plain manifests in, sentences out."""

from collections.abc import Iterator, Mapping, Sequence

# Operator reference 5.9: editable at any time and taken over live.
_LIVE = (
    "suspend",
    "rollout.replicas",
    "rollout.autoscaling",
    "async.maxOffPolicySteps",
    "evaluation.everySteps",
    "ttlSecondsAfterFinished",
    "cleanupPolicy",
    "failurePolicy",
    "activeDeadlineSeconds",
    "observability.logLevel",
)
_UPWARDS = "maxSteps"
_NOTHING = "not set"


def refusals(*, old: Mapping[str, object], new: Mapping[str, object], run_dir: str) -> list[str]:
    """Return one sentence per field of spec that differs and may not: field, old value, new value, remedy."""
    before, after = dict(_leaves(old)), dict(_leaves(new))
    changed = [path for path in before | after if before.get(path) != after.get(path)]
    return [
        f"spec.{path} is {_word(after.get(path))}, but the run in {run_dir} was started with "
        f"{_word(before.get(path))}; undo the change, or start another run with --run-dir elsewhere"
        for path in changed
        if not _may_change(path, before.get(path), after.get(path))
    ]


def _may_change(path: str, old: object, new: object) -> bool:
    if path == _UPWARDS and isinstance(old, int) and isinstance(new, int):
        return new > old
    return any(path == field or path.startswith(f"{field}.") for field in _LIVE)


def _leaves(value: object, path: str = "") -> Iterator[tuple[str, object]]:
    """Yield (dotted path, scalar). Named list entries go by name, others by index; null is the same as absent."""
    if isinstance(value, Mapping):
        for key, below in value.items():
            yield from _leaves(below, f"{path}.{key}" if path else str(key))
    elif isinstance(value, Sequence) and not isinstance(value, str):
        for index, below in enumerate(value):
            name = below.get("name", index) if isinstance(below, Mapping) else index
            yield from _leaves(below, f"{path}[{name}]")
    elif value is not None:
        yield path, value


def _word(value: object) -> str:
    return _NOTHING if value is None else repr(value)
