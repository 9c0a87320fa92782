"""What a rollout hands in for a record that cannot be used. Pure.

Only here is a prompt's length known, for only a rollout has the tokenizer. The checks before a run warn of what is left
out; in a cluster nothing is checked before, and what is left out is counted.
"""

import dataclasses
from collections.abc import Mapping

from rljob_api import errors, names, roles, types


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """By training source, and by evaluation suite: a suite may have the name of a source."""

    by_source: Mapping[str, roles.RecordRules] = dataclasses.field(default_factory=dict)
    by_suite: Mapping[str, roles.RecordRules] = dataclasses.field(default_factory=dict)

    def of(self, lease: types.GroupLease) -> roles.RecordRules | None:
        """Return the rules of a lease's prompt, None where there are none."""
        of_kind = self.by_suite if lease.kind is names.GroupKind.EVALUATION else self.by_source
        return of_kind.get(lease.prompt.source)


NONE = Rules()


def too_long(record: types.PromptRecord, num_tokens: int, rules: roles.RecordRules | None) -> str:
    """Return why a prompt is not to be generated from, empty if it may be."""
    if rules is None or num_tokens <= rules.max_prompt_tokens:
        return ""
    return sentence(record, num_tokens, rules.max_prompt_tokens)


def sentence(record: types.PromptRecord, num_tokens: int, most: int) -> str:
    """Return in words that a prompt is too long."""
    return (
        f"record '{record.prompt_id}' has {num_tokens} prompt tokens,"
        f" but maxPromptTokens of source '{record.source}' is {most}"
    )


def reason(error: errors.RLJobError, rules: roles.RecordRules | None) -> str:
    """Return the reason of a member's failure: that its record is invalid, where such are dropped, else the error's
    name. What a reward function answers with is no fault of the record.
    """
    invalid = isinstance(error, errors.DataError | errors.RecordError)
    return names.DropReason.INVALID_RECORD if invalid and rules is not None and rules.drops else error.name
