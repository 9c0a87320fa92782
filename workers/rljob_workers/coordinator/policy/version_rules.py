"""The registry's rules: which publish is accepted, what a rollout should load, what may be pruned. Pure.

A version is stored whole, as changes against the version before it, or as both. What it takes to get to one is
version_plan.py.

States: PUBLISHED > LIVE (a ready worker serves it) > RETIRED (artifacts pruned). An id means one set of bits for the
life of the job and is never used again; after a rewind ids continue while steps fall back, and the undone ones are
`superseded` but stay readable.
"""

import dataclasses
import enum
from collections.abc import Callable, Collection, Mapping, Sequence

from rljob_api import enums, types

_MOST_ANCHORS_BACK = 2


class Outcome(enum.StrEnum):
    """Answer to Publish."""

    ACCEPTED = "accepted"
    REPEATED = "repeated"
    CONFLICT = "conflict"
    MISSING = "missing"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Registered:
    """A registered version. Version 0 has no artifacts: its bytes are the model files.

    changes: against version `base`.
    """

    version: int
    step: int
    attempt: int
    state: enums.VersionState
    superseded: bool
    state_hash: str
    whole: types.Artifact | None = None
    changes: types.Artifact | None = None
    base: int = types.NO_VERSION

    @property
    def artifact_ids(self) -> frozenset[str]:
        return frozenset(artifact.artifact_id for artifact in (self.whole, self.changes) if artifact is not None)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Outcome and a sentence."""

    outcome: Outcome
    detail: str = ""


def judge(
    proposal: types.WeightVersion,
    *,
    registered: Registered | None,
    base: Registered | None,
    head: int,
    committed: int,
    attempt: int,
    stored: Mapping[str, int | None],
    base_can_be_had: bool,
) -> Answer:
    """Return what becomes of a proposed version.

    `registered`: the version of the same id, if there is one; `base`: the one that its changes are against;
    `base_can_be_had`: something that is stored leads to it; `stored`: bytes of each artifact.

    A known id with the same hash is a repetition (it may re-supply lost bytes), with another one a conflict.
    """
    if registered is not None and registered.state_hash != proposal.state_hash:
        return Answer(
            outcome=Outcome.CONFLICT, detail=f"version {proposal.version} has state hash {registered.state_hash}"
        )
    if problem := _problem_of_artifacts(proposal):
        return Answer(outcome=Outcome.CONFLICT, detail=problem)
    for artifact in proposal.artifacts:
        num_bytes = stored.get(artifact.artifact_id)
        if num_bytes != artifact.num_bytes:
            detail = f"artifact {artifact.artifact_id}: {num_bytes} of {artifact.num_bytes} bytes stored"
            return Answer(outcome=Outcome.MISSING, detail=detail)
    if registered is not None:
        return Answer(outcome=Outcome.REPEATED)
    if proposal.version != head + 1:
        return Answer(outcome=Outcome.CONFLICT, detail=f"the next version is {head + 1}, not {proposal.version}")
    if proposal.attempt != attempt:
        return Answer(
            outcome=Outcome.CONFLICT, detail=f"attempt {proposal.attempt} in the manifest of attempt {attempt}"
        )
    if not 0 <= proposal.step <= committed:
        return Answer(
            outcome=Outcome.CONFLICT, detail=f"step {proposal.step} of a run with {committed} committed steps"
        )
    if problem := _problem_of_base(proposal, base):
        return Answer(outcome=Outcome.CONFLICT, detail=problem)
    if proposal.kind is enums.VersionKind.DELTA and not base_can_be_had:
        return Answer(outcome=Outcome.MISSING, detail=f"nothing that is stored leads to version {proposal.base}")
    return Answer(outcome=Outcome.ACCEPTED)


def _problem_of_artifacts(proposal: types.WeightVersion) -> str:
    encodings = [artifact.encoding for artifact in proposal.artifacts]
    if not encodings or len(encodings) > len(set(encodings)):
        return f"a version has its whole image, its changes, or both; not {len(encodings)} artifacts {encodings}"
    if (enums.Encoding.WHOLE in encodings) != (proposal.kind is enums.VersionKind.ANCHOR):
        return f"an anchor is a version with its whole image; this {proposal.kind} has {encodings}"
    if (enums.Encoding.DELTA in encodings) != (proposal.base != types.NO_VERSION):
        return f"changes are against a version, but base is {proposal.base} for {encodings}"
    return ""


def _problem_of_base(proposal: types.WeightVersion, base: Registered | None) -> str:
    """Return why the changes cannot be against `base`: a publisher compares with what it published itself, last."""
    if proposal.base == types.NO_VERSION:
        return ""
    if proposal.base != proposal.version - 1 or base is None:
        return f"changes are against the version before, {proposal.version - 1}, not {proposal.base}"
    if base.state_hash != proposal.base_state_hash:
        return f"version {base.version} has state hash {base.state_hash}, not {proposal.base_state_hash}"
    if base.version and base.attempt != proposal.attempt:
        return f"version {base.version} is of attempt {base.attempt}: begin attempt {proposal.attempt} with an anchor"
    return ""


def to_retire(registered: Sequence[Registered], *, keep: int, needed: Collection[int]) -> list[Registered]:
    """Return the versions whose artifacts may go: all but the newest `keep`, those `needed`, and what leads to them.

    `needed`: pinned by an evaluation, or served or being loaded by a rollout. To each of them leads its nearest anchor
    with the changes since, and from the oldest of them the changes up to the head, so that a rollout behind it need not
    fetch a whole image; but no further back than two anchors, because images are what fills the disk. The head is never
    among the result.
    """
    by_id = {v.version: v for v in registered if v.artifact_ids}
    stored = sorted(by_id, reverse=True)
    retained = {version for index, version in enumerate(stored) if index < max(1, keep) or version in needed}
    for version in list(retained):
        retained |= _down_to(version, by_id, lambda v: v.whole is not None)
    served = {version for version in needed if version in by_id or version == 0}
    if stored and served:
        anchors = 0

        def is_far_enough(version: Registered) -> bool:
            nonlocal anchors
            anchors += version.whole is not None
            return version.version <= min(served) or anchors == _MOST_ANCHORS_BACK

        retained |= _down_to(stored[0], by_id, is_far_enough)
    bytes_kept = {artifact for version in retained for artifact in by_id[version].artifact_ids}
    return [
        by_id[version]
        for version in stored
        if version not in retained
        and not by_id[version].artifact_ids & bytes_kept
        and by_id[version].state is not enums.VersionState.RETIRED
    ]


def _down_to(version: int, by_id: Mapping[int, Registered], is_end: Callable[[Registered], bool]) -> set[int]:
    """Return `version` and what its changes are against, and so on, as far as the first for which `is_end` holds."""
    passed: set[int] = set()
    while version in by_id:
        passed.add(version)
        if is_end(by_id[version]):
            break
        version = by_id[version].base
    return passed


def version_to_load(*, head: int, evaluating: int | None, serving: int = 0, idle: bool = True) -> int:
    """Return the version id that a rollout should serve: that of an unfinished evaluation that it is a member of, else
    the head, which counts even where it is superseded.

    Ids along a running sequence must not decrease: a rollout goes back only once it is `idle`, without leases.
    """
    if evaluating is None:
        return head
    return evaluating if serving <= evaluating or idle else serving
