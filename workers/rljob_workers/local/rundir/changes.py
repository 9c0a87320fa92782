"""Which fields of a spec may differ when a run continues. Pure: two plain manifests in, sentences out."""

from collections.abc import Iterator, Mapping, Sequence

from rljob_api.manifest.job import LIVE

_UPWARDS = "maxSteps"
# docs/design/operator.md#s-5-9: what a running job takes over changes a run that continues, too.
_LIVE = tuple(path for path in LIVE if path != _UPWARDS)
_NOTHING = "not set"
# Values of a pod's environment may be secrets.
_ENVIRONMENT, _WITHHELD = ".env[", "a value that is not shown"


def refusals(*, old: Mapping[str, object], new: Mapping[str, object], run_dir: str) -> list[str]:
    """Return one sentence per field of spec that differs and may not: field, old value, new value, remedy."""
    before, after = dict(_leaves(old)), dict(_leaves(new))
    return [
        f"spec.{path} is {_word(path, after.get(path))}, but the run in {run_dir} was started with "
        f"{_word(path, before.get(path))}; undo the change, or start another run with another --run-dir"
        for path in _changed(before, after)
        if not _may_change(path, before.get(path), after.get(path))
    ]


def asks_for_more(*, old: Mapping[str, object], new: Mapping[str, object]) -> bool:
    """Return whether `new` has a later end, so that a finished run of `old` has steps to do again."""
    return _is_later(old.get(_UPWARDS), new.get(_UPWARDS))


def refusals_of_finished(*, old: Mapping[str, object], new: Mapping[str, object], run_dir: str) -> list[str]:
    """Return why a finished run of `old` is neither done as it is nor continued with under `new`; empty if it is."""
    problems = refusals(old=old, new=new, run_dir=run_dir)
    changed = _changed(dict(_leaves(old)), dict(_leaves(new)))
    if problems or not changed or asks_for_more(old=old, new=new):
        return problems
    fields = ", ".join(f"spec.{path}" for path in changed)
    return [
        f"--run-dir {run_dir} holds a finished run, which {fields} can no longer change; raise spec.{_UPWARDS} above "
        f"{old.get(_UPWARDS)} to continue it, or choose another directory with --run-dir"
    ]


def _changed(before: Mapping[str, object], after: Mapping[str, object]) -> list[str]:
    return [path for path in {**before, **after} if before.get(path) != after.get(path)]


def _may_change(path: str, old: object, new: object) -> bool:
    if path == _UPWARDS:
        return _is_later(old, new)
    return any(path == field or path.startswith(f"{field}.") for field in _LIVE)


def _is_later(old: object, new: object) -> bool:
    return isinstance(old, int) and isinstance(new, int) and new > old


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


def _word(path: str, value: object) -> str:
    if value is None:
        return _NOTHING
    return _WITHHELD if _ENVIRONMENT in path else repr(value)
