"""What says that a folder is a whole checkpoint, on a disk and in an object store alike, and what says that it is none
any more. Pure.

    COMPLETE.json   written last: step, update counter, digests of the config's sections, size of every file; in a
                    store their digests too. A folder that is copied from a store as it is is a checkpoint on a disk.
    attempt-*.json  a fence: what earlier attempts of the run finished beyond its step was taken back.
"""

import dataclasses
import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence

from rljob_api import resolve

MARKER = "COMPLETE.json"
FENCE = "attempt-"
# How DeepSpeed names what a rank writes for itself; every rank reads the other files.
_OF_RANK = re.compile(r"(?:^|/)(?:bf16_)?zero_pp_rank_(\d+)_mp_rank_\d+_[a-z]+_states\.pt$")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """What a checkpoint says alongside the tensors.

    `sections`: digests by name; `optimizer`: masters and moments are in it;
    `critic`: the value model's state is alongside the policy's, with its own counts. `attempt`: the trainer's, that
    wrote it, of the run with the uid `run`; 0 and empty where that was not recorded. entropy_coef, entropy: the
    coefficient of the entropy bonus after the step, and its entropy in nats; None where nothing adapts it.
    """

    step: int
    updates_applied: int
    skipped_in_a_row: int
    optimizer: bool
    sections: Mapping[str, str]
    critic: bool = False
    critic_updates_applied: int = 0
    critic_skipped_in_a_row: int = 0
    attempt: int = 0
    run: str = ""
    entropy_coef: float | None = None
    entropy: float | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Marker:
    """A whole checkpoint: `files` are sizes by name, `digests` BLAKE3 by name, empty where they are not known."""

    progress: Progress
    files: Mapping[str, int]
    digests: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def encode(self) -> str:
        """Return the text of COMPLETE.json."""
        digests = {"digests": dict(self.digests)} if self.digests else {}
        return json.dumps({**dataclasses.asdict(self.progress), "files": dict(self.files), **digests}, indent=1)


def decode(text: str | bytes) -> Marker:
    """Return what a COMPLETE.json says. Raises ValueError, KeyError or TypeError for one that is damaged."""
    content = json.loads(text)
    files, digests = content.pop("files"), content.pop("digests", {})
    return Marker(progress=Progress(**content), files=files, digests=digests)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Fence:
    """An attempt of a run and the step that it continued from."""

    run: str
    attempt: int
    goes_on_from: int

    @property
    def name(self) -> str:
        """Name of the file that says so."""
        return f"{FENCE}{resolve.digest(self.run)[:12]}-{self.attempt:06d}.json"

    def encode(self) -> str:
        return json.dumps(dataclasses.asdict(self))


def decode_fence(text: str | bytes) -> Fence:
    """Return what a fence says. Raises ValueError or TypeError for one that is damaged."""
    return Fence(**json.loads(text))


def is_behind(progress: Progress, fences: Iterable[Fence]) -> bool:
    """Return whether a later attempt of the same run continued from before this checkpoint, without it."""
    return any(
        fence.run == progress.run and fence.attempt > progress.attempt and progress.step > fence.goes_on_from
        for fence in fences
    )


def check_not_replaced(fences: Iterable[Fence], *, run: str, attempt: int) -> None:
    """Raise PermissionError if a later attempt of the run has left a fence."""
    later = max((fence.attempt for fence in fences if fence.run == run), default=0)
    if later > attempt:
        raise PermissionError(f"attempt {later} of the trainer has taken over from attempt {attempt}")


def superfluous(steps: Collection[int], *, keep_last: int, keep_every: int) -> Sequence[int]:
    """Return the steps whose checkpoints may go: all but the newest `keep_last` and multiples of `keep_every` (0:
    none).
    """
    ordered = sorted(set(steps), reverse=True)
    return [step for step in ordered[max(1, keep_last) :] if not (keep_every and step % keep_every == 0)]


def rank_of(file: str) -> int | None:
    """Return the rank that a file of a checkpoint is for; None for one that every rank reads, and rank 0 writes."""
    match = _OF_RANK.search(file)
    return int(match[1]) if match else None
