"""Calls of tools in a sampled text: who reads them, and what is taken of what they read.

A text is data here: it is read and never run. What cannot be read as calls is an answer.
"""

import dataclasses
import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from typing import Protocol

from rljob_workers.rollout.gateway import conversation
from rljob_workers.runtime import redaction

logger = logging.getLogger(__name__)

AUTO = "auto"
# What only the chat template of one notation says, most particular first, and vLLM's name of its parser.
_MARKS: tuple[tuple[tuple[str, ...], str], ...] = (
    (("<tool_call>", "<function="), "qwen3_coder"),
    (("<tool_call>", "<arg_key>"), "glm45"),
    (("<tool_call>",), "hermes"),
    (("[TOOL_CALLS]",), "mistral"),
    (("<|tool_calls_section_begin|>",), "kimi_k2"),
    (("<｜tool▁calls▁begin｜>",), "deepseek_v3"),  # noqa: RUF001  # the bars are the model's
    (("<minimax:tool_call>",), "minimax_m2"),
    (("<start_function_call>",), "functiongemma"),
    (("<|start_of_role|>", "<|tool_call|>"), "granite"),
    (("<|python_tag|>",), "llama3_json"),
    (('{"name": function name, "parameters": dictionary of argument name and its value}',), "llama3_json"),
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Marks:
    """What is around calls of tools in a text: before the first one, and after each."""

    opens: str
    closes: str


_TOOL_CALL = Marks(opens="<tool_call>", closes="</tool_call>")
# By vLLM's names of parsers: notations whose calls can be told one by one, each once it is whole.
MARKS: Mapping[str, Marks] = {
    "hermes": _TOOL_CALL,
    "qwen3_coder": _TOOL_CALL,
    "qwen3_json": _TOOL_CALL,
    "qwen3_xml": _TOOL_CALL,
    "glm45": _TOOL_CALL,
    "glm47": _TOOL_CALL,
}
# Mistral's templates take ids of this length alone.
_ID_LENGTH = 9


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """What a parser found. calls: name, JSON text of the arguments, and the id if the model wrote one."""

    content: str
    calls: Sequence[tuple[str, str, str]]


class Parser(Protocol):
    """Reads one notation."""

    def __call__(self, text: str, *, tools: str) -> Read:
        """Return text and calls; `text` has the special tokens. May raise anything: a model wrote the text."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Notation:
    """How a model writes calls. marks: None where only a whole text can be read."""

    parser: Parser
    marks: Marks | None = None


def parser_of(chat_template: str) -> str | None:
    """Return the name of the parser for models with this template, None if it shows no notation that is known."""
    return next((name for marks, name in _MARKS if all(mark in chat_template for mark in marks)), None)


def calls_in(
    text: str, parser: Parser, *, tools: str, prefix: str
) -> tuple[str, tuple[conversation.ToolCall, ...]] | None:
    """Return the text besides the calls, and the calls; None if there are none, or one that cannot be read.

    `prefix` is what the ids are made of, unless the model wrote them: the same for the same call.
    """
    try:
        read = parser(text, tools=tools)
    except Exception as error:  # noqa: BLE001  # boundary: what a model writes may be anything
        redaction.log_first(logger, "a parser of tool calls", error)
        return None
    calls: list[conversation.ToolCall] = []
    for number, (name, arguments, written) in enumerate(read.calls):
        id_ = written or hashlib.blake2b(f"{prefix}-{number}".encode()).hexdigest()[:_ID_LENGTH]
        try:
            calls.append(conversation.ToolCall(id=id_, name=name, arguments=canonical(arguments)))
        except ValueError:
            # This text is then an answer and no call.
            return None
    return (read.content, tuple(calls)) if calls and all(call.name for call in calls) else None


def canonical(arguments: str) -> str:
    """Return the JSON text of an object in one spelling, so that texts compare. Raises ValueError if it is none."""
    try:
        parsed = json.loads(arguments, parse_constant=_refuse)
        if isinstance(parsed, dict):
            return json.dumps(parsed, ensure_ascii=False)
    except RecursionError as error:
        raise ValueError("arguments are nested too deeply") from error
    raise ValueError(f"arguments are {type(parsed).__name__}, but must be an object")


def _refuse(constant: str) -> object:
    raise ValueError(f"{constant} is not valid JSON")
