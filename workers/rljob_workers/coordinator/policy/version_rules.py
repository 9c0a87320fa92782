"""The registry's rules: which publish is accepted, what a rollout should load, what may be pruned. Pure.

States: PUBLISHED > LIVE (a ready worker serves it) > RETIRED (artifacts pruned). An id means one set of bits for the
life of the job and is never used again; after a rewind ids continue while steps fall back, and the undone ones are
`superseded` but stay readable.
"""

import dataclasses
import enum
from collections.abc import Collection, Sequence

from rljob_api import enums, types


class Outcome(enum.StrEnum):
    """Answer to Publish."""

    ACCEPTED = "accepted"
    REPEATED = "repeated"
    CONFLICT = "conflict"
    MISSING = "missing"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Registered:
    """A registered version. `artifact` is empty for version 0, whose bytes are the model files."""

    version: int
    step: int
    attempt: int
    state: enums.VersionState
    superseded: bool
    state_hash: str
    artifact: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Outcome and a sentence."""

    outcome: Outcome
    detail: str = ""


def judge(
    proposal: types.WeightVersion,
    *,
    registered: Registered | None,
    head: int,
    committed: int,
    attempt: int,
    num_bytes: int | None,
) -> Answer:
    """Return what becomes of a proposed version.

    `registered`: the version of the same id, if there is one; `num_bytes`: stored bytes of its artifact.

    A known id with the same hash is a repetition (it may re-supply lost bytes), with another one a conflict.
    """
    if registered is not None:
        if registered.state_hash != proposal.state_hash:
            return Answer(
                outcome=Outcome.CONFLICT, detail=f"version {proposal.version} has state hash {registered.state_hash}"
            )
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
    if proposal.kind != "anchor" or len(proposal.artifacts) != 1:
        return Answer(outcome=Outcome.CONFLICT, detail="only dense versions with one artifact are served")
    if num_bytes != proposal.artifacts[0].num_bytes:
        artifact = proposal.artifacts[0]
        detail = f"artifact {artifact.artifact_id}: {num_bytes} of {artifact.num_bytes} bytes stored"
        return Answer(outcome=Outcome.MISSING, detail=detail)
    return Answer(outcome=Outcome.ACCEPTED)


def to_retire(registered: Sequence[Registered], *, keep: int, needed: Collection[int]) -> list[Registered]:
    """Return the versions whose artifacts may go: all but the newest `keep`, those `needed`, and those sharing their
    bytes.

    `needed`: pinned by an evaluation, or served or being loaded by a rollout. The head is never among the result.
    """
    stored = sorted((v for v in registered if v.artifact), key=lambda v: v.version, reverse=True)
    retained = [v for index, v in enumerate(stored) if index < max(1, keep) or v.version in needed]
    bytes_kept = {v.artifact for v in retained}
    return [
        v
        for v in stored
        if v not in retained and v.artifact not in bytes_kept and v.state is not enums.VersionState.RETIRED
    ]


def version_to_load(*, head: int, evaluating: int | None, serving: int = 0, idle: bool = True) -> int:
    """Return the version id that a rollout should serve: that of an unfinished evaluation that it is a member of, else
    the head, which counts even where it is superseded.

    Ids along a running sequence must not decrease: a rollout goes back only once it is `idle`, without leases.
    """
    if evaluating is None:
        return head
    return evaluating if serving <= evaluating or idle else serving
