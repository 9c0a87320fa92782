"""Prompt templates and their stop rules as exact strings. Pure. Source: Oat / understand-r1-zero,
docs/design/workflows.md#s-8.

`Q` is replaced by the question unchanged. Only `chat` goes through the tokenizer's own template.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import cast

from rljob_api import errors, types
from rljob_workers.runtime import redaction, user_code

FIELD = "spec.data.template"
# A user's template: from a record's columns to the prompt, as text or as ids.
Render = Callable[[Mapping[str, object]], str | Sequence[int]]
CHAT = "chat"
_QWEN_MATH = (
    "<|im_start|>system\nPlease reason step by step, and put your final answer within \\boxed{}.<|im_end|>\n"
    "<|im_start|>user\nQ<|im_end|>\n<|im_start|>assistant\n"
)
_R1 = (
    "A conversation between User and Assistant. The User asks a question, and the Assistant solves it."
    " The Assistant first thinks about the reasoning process in the mind and then provides the User with the answer."
    " The reasoning process is enclosed within <think> </think> and answer is enclosed within <answer> </answer> tags,"
    " respectively, i.e., <think> reasoning process here </think> <answer> answer here </answer>."
    "\nUser: Q\nAssistant: <think>"
)
_MARK = "Q"
_TEXTS = {"qwen_math": _QWEN_MATH, "r1": _R1, "raw": _MARK}
TEMPLATES = (CHAT, *sorted(_TEXTS))


def check(template: str, *, field: str = FIELD) -> None:
    """Raise ManifestError for a template that does not exist."""
    if template not in TEMPLATES and not is_custom(template):
        built_in = ", ".join(TEMPLATES)
        raise errors.ManifestError(f"{field} is '{template}', but must be one of {built_in}, or module:function")


def is_custom(template: str) -> bool:
    """Return whether the template is a function of the user's, module:function."""
    return ":" in template


def load_template(template: str, *, file: str, field: str = FIELD) -> Render | None:
    """Return the user's function, None for a template of ours. Raises ManifestError with file and line."""
    if not is_custom(template):
        return None
    loaded = user_code.load(template, file=file, field=field)
    if not callable(loaded):
        raise errors.ManifestError(f"{field} is '{template}', which is {type(loaded).__name__} and not a function")
    return cast("Render", loaded)


def rendered(render: Render, record: types.PromptRecord, *, field: str = FIELD) -> str | tuple[int, ...]:
    """Return what the user's function makes of a record: a text that is not empty, or ids. Raises DataError."""
    where = f"{field}: record {record.prompt_id} of {record.source}"
    try:
        prompt = render(record.columns)
    except Exception as error:  # boundary: a user's function may raise anything
        raise errors.DataError(f"{where}: {redaction.describe(error)}") from error
    if isinstance(prompt, str) and prompt:
        return prompt
    if isinstance(prompt, Sequence) and prompt and all(type(token) is int and token >= 0 for token in prompt):
        return tuple(int(token) for token in prompt)
    raise errors.DataError(f"{where} became {_kind(prompt)}, but must become a text or a list of token ids")


def _kind(value: object) -> str:
    return f"an empty {type(value).__name__}" if isinstance(value, Sequence) and not value else redaction.brief(value)


def render(template: str, question: str) -> str:
    """Return the prompt text of a plain-text template; `chat` and a user's have none and are refused by assertion."""
    check(template)
    assert template in _TEXTS, "the chat template belongs to the tokenizer, and a function to its author"
    # The mark appears once in each text and is its only capital Q.
    before, after = _TEXTS[template].split(_MARK)
    return f"{before}{question}{after}"


def with_stop_rules(template: str, sampling: types.Sampling, *, eos_ids: tuple[int, ...]) -> types.Sampling:
    """Return `sampling` with the template's stops; the engine's own EOS ends generation in any case.

    qwen_math: none. r1: `</answer>`, kept in the output. raw: the configured ones, nothing added. Otherwise the
    configured ones, EOS and pad. Deviation from the source: it also clears the configured stops of `no`, our `raw`, but
    anyone who writes a stop alongside a bare question, as few-shot prompts need it, means it; the default is none.
    """
    if template == "qwen_math":
        return dataclasses.replace(sampling, stop=(), stop_token_ids=(), include_stop=False)
    if template == "r1":
        return dataclasses.replace(sampling, stop=("</answer>",), stop_token_ids=(), include_stop=True)
    if template == "raw" or sampling.ignore_eos:
        return sampling
    return dataclasses.replace(sampling, stop_token_ids=tuple(dict.fromkeys((*sampling.stop_token_ids, *eos_ids))))


def text_between_turns(before: str, after: str, *, eos: str) -> str:
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
