"""Prompt templates and their stop rules as exact strings. Pure. Source: Oat / understand-r1-zero, workflow reference 8.

`Q` is replaced by the question unchanged. Only `chat` goes through the tokenizer's own template.
"""

import dataclasses

from rljob_api import errors, types

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
_TEXTS = {"qwen_math": _QWEN_MATH, "r1": _R1, "no": _MARK}
KNOWN = (CHAT, *sorted(_TEXTS))


def check(template: str) -> None:
    """Raise ManifestError for a template that does not exist."""
    if template not in KNOWN:
        raise errors.ManifestError(f"spec.data.template is '{template}', but must be one of {', '.join(KNOWN)}")


def render(template: str, question: str) -> str:
    """Return the prompt text of a plain-text template; `chat` has none and is refused by assertion."""
    check(template)
    assert template != CHAT, "the chat template belongs to the tokenizer"
    # The mark stands once in each text and is its only capital Q.
    before, after = _TEXTS[template].split(_MARK)
    return f"{before}{question}{after}"


def with_stop_rules(template: str, sampling: types.Sampling, *, eos_ids: tuple[int, ...]) -> types.Sampling:
    """Return `sampling` with the template's stops; the engine's own EOS ends generation in any case.

    qwen_math: none. r1: `</answer>`, kept in the output. no: the configured ones, nothing added. Otherwise the
    configured ones, EOS and pad. Deviation from the source: it also clears the configured stops of `no`, but
    whoever writes a stop beside a bare question, as few-shot prompts need it, means it; the default is none.
    """
    if template == "qwen_math":
        return dataclasses.replace(sampling, stop=(), stop_token_ids=(), include_stop=False)
    if template == "r1":
        return dataclasses.replace(sampling, stop=("</answer>",), stop_token_ids=(), include_stop=True)
    if template == "no" or sampling.ignore_eos:
        return sampling
    return dataclasses.replace(sampling, stop_token_ids=tuple(dict.fromkeys((*sampling.stop_token_ids, *eos_ids))))
