"""Every value of a job in force and where it came from, as `rljob plan` prints it."""

import dataclasses
from collections.abc import Iterator, Mapping

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from rljob_api.manifest.base import Section
from rljob_api.manifest.job import RLJob
from rljob_api.process_config import VerifierConfig
from rljob_api.resolve import ResolvedJob
from rljob_api.validation import fields, messages

WRITTEN = "written"
DEFAULT = "default"
_DEFAULT_IN_WORDS = "Default: "


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One value in force: its path, the value as text, and its origin: `written`, `default`, the runtime, or others."""

    path: str
    value: str
    why: str


def explain(job: RLJob, resolved: ResolvedJob, *, origins: Mapping[str, str] | None = None) -> list[Row]:
    """Return the rows in the manifest's order; fields that are unset, or that nothing reads, are left out.

    origins: where values of a runtime came from, by path below spec.
    """
    of_runtime = origins or {}
    machine = {path: (value, why) for path, value, why in _of_the_machine(job, resolved.verifiers[0])}
    rows: list[Row] = []
    for path, value, why in _leaves(job.spec, "spec", unused=frozenset(), why=""):
        shown, origin = machine.get(path, (value, why)) if value is None else (value, why)
        if shown is not None:
            origin = of_runtime.get(path.removeprefix("spec."), origin)
            rows.append(Row(path=path, value=messages.show(shown), why=origin))
    return rows


def _leaves(section: BaseModel, prefix: str, *, unused: frozenset[str], why: str) -> Iterator[tuple[str, object, str]]:
    """Yield (path, value, origin). unused: paths below the section that nothing reads; why: where all of it is from."""
    unused |= frozenset(section.unused()) if isinstance(section, Section) else frozenset()
    for key, info in fields.fields_of(type(section)).items():
        name = fields.attribute(type(section), key)
        value, path = getattr(section, name), f"{prefix}.{key}"
        if key == "pod" or (key in unused and name not in section.model_fields_set):
            continue
        origin = why or (WRITTEN if name in section.model_fields_set else _origin(info))
        if isinstance(value, BaseModel):
            below = frozenset(rest for part, _, rest in (item.partition(".") for item in unused) if part == key)
            block = origin if info.default_factory is not None and origin != WRITTEN else ""
            yield from _leaves(value, path, unused=below, why=block)
        elif isinstance(value, tuple) and value and isinstance(value[0], BaseModel):
            for index, item in enumerate(value):
                yield from _leaves(item, f"{path}[{index}]", unused=frozenset(), why="")
        else:
            yield path, value, origin


def _origin(info: FieldInfo) -> str:
    """Return `default` for a constant, else what the field's description says that it is derived from."""
    if info.default_factory is None:
        return DEFAULT
    return (info.description or "").rpartition(_DEFAULT_IN_WORDS)[2].rstrip(".") or DEFAULT


def _of_the_machine(job: RLJob, verifier: VerifierConfig) -> Iterator[tuple[str, object, str]]:
    """Yield what is unset in the manifest and known where the job is placed, and what suites have of training."""
    limits = {reward.name: reward.cpu_limit_s for reward in verifier.rewards if not reward.suite}
    yield "spec.verifier.timeoutSeconds", limits, "by grader"
    yield "spec.verifier.maxConcurrent", verifier.num_slots, "processor cores"
    for index in range(len(job.spec.evaluation.suites)):
        path, rewards = f"spec.evaluation.suites[{index}]", [reward.name for reward in job.spec.verifier.rewards]
        yield f"{path}.template", job.spec.data.template, "data.template"
        yield f"{path}.rewards", rewards, "verifier.rewards"
