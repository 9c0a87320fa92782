"""The text that stands between an answer and the next one, found once per tokenizer. Pure. Source: workflow 5.1.

Two renderings of the chat template are compared, so that neither a default system prompt nor BOS gets into the middle.
"""

from rljob_api import errors


def between(before: str, after: str, *, eos: str) -> str:
    """Return what `after` (with the user's feedback, the next answer opened) adds to `before` (the answer closed).

    Whatever follows the answer's last EOS in `before`, a line break as a rule, belongs to the feedback, because
    generation ends with EOS. Raises ManifestError with both texts if `after` does not begin with `before`.
    """
    closed = before.rstrip("\n")
    if not after.startswith(closed) or (eos and not closed.endswith(eos)):
        raise errors.ManifestError(
            "spec.workflow.type is 'multi_turn_math', but the tokenizer's chat template does not append turns:"
            f" an answer renders as {before!r} and with feedback as {after!r}; the second must begin with the first,"
            f" closed by {eos!r}"
        )
    return after[len(closed) :]
