"""What a rollout hands in for a record that cannot be used. Pure.

Only here is a prompt's length known, for only a rollout has the tokenizer. The checks before a run warn of what is left
out; in a cluster nothing is checked before, and what is left out is counted.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import cast

from rljob_api import enums, errors, types
from rljob_api.manifest.data import DataSourceSpec
from rljob_workers.rollout.episodes import arrays
from rljob_workers.runtime import redaction, user_code

logger = logging.getLogger(__name__)

PREDICATE_FIELD = "spec.data.filterGroups.predicate"
Predicate = Callable[[Mapping[str, object]], bool]


class Sources:
    """The data sources of training and the evaluation suites by name: a suite may have the name of a source."""

    def __init__(self, training: Iterable[DataSourceSpec] = (), suites: Iterable[DataSourceSpec] = ()) -> None:
        self._training = {source.name: source for source in training}
        self._suites = {suite.name: suite for suite in suites}

    def of(self, lease: types.GroupLease) -> DataSourceSpec | None:
        """Return the source of a lease's prompt, None where it is none of these."""
        of_kind = self._suites if lease.kind is enums.GroupKind.EVALUATION else self._training
        return of_kind.get(lease.prompt.source)


def too_long(record: types.PromptRecord, num_tokens: int, source: DataSourceSpec | None) -> str:
    """Return why a prompt is not to be generated from, empty if it may be."""
    if source is None or num_tokens <= source.max_prompt_tokens:
        return ""
    return too_long_message(record, num_tokens, source.max_prompt_tokens)


def too_long_message(record: types.PromptRecord, num_tokens: int, most: int) -> str:
    return (
        f"record '{record.prompt_id}' has {num_tokens} prompt tokens,"
        f" but maxPromptTokens of source '{record.source}' is {most}"
    )


def failure_reason(error: errors.RLJobError, source: DataSourceSpec | None) -> str:
    """Return the reason of a member's failure: that its record is invalid, where such are dropped, else the error's
    name. What a reward function answers with is not a fault of the record.
    """
    invalid = isinstance(error, errors.DataError | errors.RecordError)
    drops = source is not None and source.on_invalid_record == "Drop"
    return enums.DropReason.INVALID_RECORD if invalid and drops else error.name


def load_predicate(reference: str, *, file: str) -> Predicate | None:
    """Return the user's function, None where `reference` is empty. Raises ManifestError with file and line."""
    if not reference:
        return None
    loaded = user_code.load(reference, file=file, field=PREDICATE_FIELD)
    if not callable(loaded):
        raise errors.ManifestError(
            f"{PREDICATE_FIELD} is '{reference}', which is {type(loaded).__name__} and not a function"
        )
    return cast("Predicate", loaded)


def keeps_group(predicate: Predicate, record: types.PromptRecord, rows: Sequence[types.Trajectory]) -> bool:
    """Return whether the group of these rows, at least one, is to be trained. Raises EpisodeError if the function
    raises or returns anything but a truth value.
    """
    try:
        verdict = predicate({**arrays.padded(rows), "record": dict(record.columns)})
    except Exception as error:  # boundary: a user's function may raise anything
        redaction.log(logger, PREDICATE_FIELD, error)
        raise errors.EpisodeError(f"{PREDICATE_FIELD} raised {redaction.describe(error)}") from error
    if not isinstance(verdict, bool):
        raise errors.EpisodeError(
            f"{PREDICATE_FIELD} returned {redaction.brief(verdict)}, but must return True or False"
        )
    return verdict
