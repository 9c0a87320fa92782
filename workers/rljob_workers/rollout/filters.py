"""What a rollout hands in for a record that cannot be used. Pure.

Only here is a prompt's length known, for only a rollout has the tokenizer. The checks before a run warn of what is left
out; in a cluster nothing is checked before, and what is left out is counted.
"""

import dataclasses
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import cast

from rljob_api import errors, names, roles, types
from rljob_workers.rollout.episodes import arrays
from rljob_workers.runtime import redaction, user_code

logger = logging.getLogger(__name__)

PREDICATE_FIELD = "spec.data.filterGroups.predicate"
Predicate = Callable[[Mapping[str, object]], bool]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RecordRules:
    """By training source, and by evaluation suite: a suite may have the name of a source."""

    by_source: Mapping[str, roles.RecordRules] = dataclasses.field(default_factory=dict)
    by_suite: Mapping[str, roles.RecordRules] = dataclasses.field(default_factory=dict)

    def of(self, lease: types.GroupLease) -> roles.RecordRules | None:
        """Return the rules of a lease's prompt, None where there are none."""
        of_kind = self.by_suite if lease.kind is names.GroupKind.EVALUATION else self.by_source
        return of_kind.get(lease.prompt.source)


NO_RULES = RecordRules()


def too_long(record: types.PromptRecord, num_tokens: int, rules: roles.RecordRules | None) -> str:
    """Return why a prompt is not to be generated from, empty if it may be."""
    if rules is None or num_tokens <= rules.max_prompt_tokens:
        return ""
    return too_long_message(record, num_tokens, rules.max_prompt_tokens)


def too_long_message(record: types.PromptRecord, num_tokens: int, most: int) -> str:
    """Return in words that a prompt is too long."""
    return (
        f"record '{record.prompt_id}' has {num_tokens} prompt tokens,"
        f" but maxPromptTokens of source '{record.source}' is {most}"
    )


def failure_reason(error: errors.RLJobError, rules: roles.RecordRules | None) -> str:
    """Return the reason of a member's failure: that its record is invalid, where such are dropped, else the error's
    name. What a reward function answers with is no fault of the record.
    """
    invalid = isinstance(error, errors.DataError | errors.RecordError)
    return names.DropReason.INVALID_RECORD if invalid and rules is not None and rules.drops else error.name


def load_predicate(reference: str, *, file: str) -> Predicate | None:
    """Return the user's function, None where `reference` is empty. Raises ManifestError with file and line."""
    if not reference:
        return None
    found = user_code.load(reference, file=file, field=PREDICATE_FIELD)
    if not callable(found):
        raise errors.ManifestError(
            f"{PREDICATE_FIELD} is '{reference}', which is {type(found).__name__} and not a function"
        )
    return cast("Predicate", found)


def keeps_group(predicate: Predicate, record: types.PromptRecord, rows: Sequence[types.Trajectory]) -> bool:
    """Return whether the group of these rows, at least one, is to be trained. Raises EpisodeError if the function
    raises or returns anything but a truth value.
    """
    try:
        said = predicate({**arrays.padded(rows), "record": dict(record.columns)})
    except Exception as error:  # boundary: a user's function may raise anything
        redaction.log(logger, PREDICATE_FIELD, error)
        raise errors.EpisodeError(f"{PREDICATE_FIELD} raised {redaction.describe(error)}") from error
    if not isinstance(said, bool):
        raise errors.EpisodeError(f"{PREDICATE_FIELD} returned {redaction.brief(said)}, but must return True or False")
    return said
