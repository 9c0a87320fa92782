"""Rows from examples: a record's prompt as the policy is asked, and its answer as the policy would have ended it.

Nothing is generated and nothing graded. A row has the form of a sampled one, for it goes the same way to the trainer;
its log-probabilities are 0 and mean nothing, and its reward is no one's.
"""

import dataclasses
from collections.abc import Sequence
from typing import Protocol

from rljob_api import enums, errors, types

# Set in a record whose texts are whole already, special tokens included: `rljob trajectories --examples` writes such.
RENDERED = "rendered"
_NO_VERDICT = types.Verdict(
    reward=0.0, reason=enums.VerdictReason.OK, outcome=enums.VerifyOutcome.PASS, grader="example"
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """A record's prompt, a text or messages, and the answer to it."""

    prompt: str | Sequence[object]
    answer: str


class ExampleTokens(Protocol):
    """Makes tokens of examples; `tokenizer.PromptTokenizer` in production."""

    def example_ids(self, record: types.PromptRecord, sampling: types.Sampling) -> tuple[Sequence[int], Sequence[int]]:
        """Return the ids of prompt and answer, the answer ended as `sampling` ends it. Raises DataError."""


def of_record(record: types.PromptRecord) -> Example:
    """Return the example in a record: its answer, the first of several, or the last message if that is an answer.

    Raises DataError for a record without one.
    """
    prompt, answer = record.columns.get("prompt"), record.columns.get("answer")
    if isinstance(answer, list):
        answer = answer[0] if answer else None
    if isinstance(prompt, list) and not answer and prompt[-1].get("role") == "assistant":
        prompt, answer = prompt[:-1], prompt[-1]["content"]
    if not isinstance(answer, str) or not answer or not isinstance(prompt, str | list) or not prompt:
        raise errors.DataError(
            f"record {record.prompt_id} of {record.source} has no prompt with an answer to learn: it needs an answer,"
            " or messages of which the last one is the assistant's"
        )
    return Example(prompt=prompt, answer=answer)


def ended(answer: str, sampling: types.Sampling) -> str | None:
    """Return the answer with the text that ends one where texts do; None where the model's end token does. Pure."""
    if not sampling.stop:
        return None
    return answer if answer.endswith(sampling.stop) else answer + sampling.stop[0]


def too_long(record: types.PromptRecord, num_answer_tokens: int, sampling: types.Sampling) -> str:
    """Return why an answer cannot be learned, empty if it can: a row that long would fit nowhere."""
    if num_answer_tokens <= sampling.max_tokens:
        return ""
    return (
        f"record '{record.prompt_id}' of source '{record.source}' has an answer of {num_answer_tokens} tokens, but"
        f" rollout.sampling.maxTokens is {sampling.max_tokens}"
    )


def row(prompt: Sequence[int], answer: Sequence[int], *, version: int) -> types.Trajectory:
    """Return the row. version: any that the ledger knows."""
    before, count = len(prompt), len(answer)
    return types.Trajectory(
        tokens=types.ints((*prompt, *answer)),
        loss_mask=types.mask([0] * before + [1] * count),
        logprobs=types.floats([0.0] * (before + count)),
        versions=types.ints([types.NO_VERSION] * before + [version] * count),
        turn_ids=types.ints([types.NO_TURN] * before + [0] * count),
        truncated=False,
        reward=0.0,
        raw_reward=0.0,
        verdict=_NO_VERDICT,
        sample_index=0,
    )
