"""Trajectory dumps as this package reads them: `dumps/{rollout|eval-rollout}/{version}/{group}.jsonl`, a row a line.

The only file here that knows the names of their keys. Folders and files are listed one folder at a time and rows read
one at a time, so that memory does not grow with a run.
"""

import dataclasses
import pathlib
from collections.abc import Iterator, Sequence
from typing import Annotated

import pydantic

from rljob_workers.local.rundir import bounded_lines

# A row of 128 k tokens with its prompt takes less than two megabytes.
MAX_ROW_BYTES = 16 << 20
GroupId = Annotated[str, pydantic.Field(pattern=r"^[\w.-]{1,128}$")]
TRAINING, EVALUATION = "rollout", "eval-rollout"


class Part(pydantic.BaseModel):
    """One run of tokens that were given or sampled. role: prompt, gen or context."""

    model_config = pydantic.ConfigDict(frozen=True)

    role: str
    len: int
    text: str


class Turn(pydantic.BaseModel):
    """One turn of an episode with several."""

    model_config = pydantic.ConfigDict(frozen=True)

    success: bool | None = None
    raw_reward: float
    prompt_len: int
    answer_len: int
    version_start: int
    version_end: int
    stop_reason: str = ""
    reason: str = ""


class Tokens(pydantic.BaseModel):
    """Each token after the prompt: its text, and its log-probability in nats, None where it was not sampled."""

    model_config = pydantic.ConfigDict(frozen=True)

    texts: tuple[str, ...]
    logprobs: tuple[float | None, ...]

    @pydantic.model_validator(mode="after")
    def _as_many_of_both(self) -> "Tokens":
        if len(self.texts) != len(self.logprobs):
            raise ValueError(f"{len(self.texts)} texts of tokens have {len(self.logprobs)} log-probabilities")
        return self


class Row(pydantic.BaseModel):
    """One line of a dump. Lengths are tokens; versions are weight version ids, -1 where nothing was sampled."""

    model_config = pydantic.ConfigDict(frozen=True, extra="ignore")

    group_id: GroupId
    sample_idx: int
    attempt: int
    query_id: str
    seqlen: int
    prompt_len: int
    head_version: int
    tail_version: int
    version_rle: tuple[tuple[int, int], ...]
    reward: float
    raw_reward: float
    truncated: bool
    stop_reason: str
    formatted: bool
    reason: str
    prompt: str
    completion: str
    segments: tuple[Part, ...] | None = None
    turns: tuple[Turn, ...] | None = None
    tokens: Tokens | None = None

    @property
    def parts(self) -> tuple[Part, ...]:
        """Return the segments; of a row without them, its prompt and its completion."""
        return self.segments or (
            Part(role="prompt", len=self.prompt_len, text=self.prompt),
            Part(role="gen", len=self.seqlen - self.prompt_len, text=self.completion),
        )


@dataclasses.dataclass(slots=True)
class Unreadable:
    """How many lines could not be read: half written, longer than `MAX_ROW_BYTES`, or no dump of ours."""

    count: int = 0


def rows(
    folder: pathlib.Path,
    *,
    kind: str,
    unreadable: Unreadable,
    versions: Sequence[int] = (),
    groups: Sequence[str] | None = None,
) -> Iterator[Row]:
    """Yield rows of a kind, newest version first, a group's rows in the order in which they were written.

    `versions` (empty: all) and `groups` (None: all) say which files are opened at all.
    """
    for version in sorted(_versions(folder / kind), reverse=True):
        if versions and version not in versions:
            continue
        for path in _files(folder / kind / str(version), groups):
            yield from _rows(path, unreadable)


def _versions(folder: pathlib.Path) -> list[int]:
    if not folder.is_dir():
        return []
    return [int(entry.name) for entry in folder.iterdir() if entry.name.removeprefix("-").isdecimal()]


def _files(folder: pathlib.Path, groups: Sequence[str] | None) -> list[pathlib.Path]:
    if groups is None:
        return sorted(folder.glob("*.jsonl"), reverse=True)
    file_names = {f"{group}.jsonl" for group in groups}
    return [path for path in sorted(folder.glob("*.jsonl"), reverse=True) if path.name in file_names]


def _rows(path: pathlib.Path, unreadable: Unreadable) -> Iterator[Row]:
    try:
        stream = path.open("rb")
    except FileNotFoundError:
        # Removed between listing and reading.
        return
    with stream:
        for line in bounded_lines.read(stream, max_bytes=MAX_ROW_BYTES):
            row = None if line.cut else _row(line.data)
            if row is None:
                unreadable.count += 1
            else:
                yield row


def _row(data: bytes) -> Row | None:
    try:
        return Row.model_validate_json(data)
    except pydantic.ValidationError:
        return None
