"""What any of the served APIs asks for, and what it is answered: one type each. `dialects.py` translates."""

import dataclasses
from typing import Protocol

MODEL = "policy"
SYSTEM, USER, ASSISTANT, TOOL = "system", "user", "assistant", "tool"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """One call of a tool. `arguments` is the JSON text of an object, written as `tools.canonical` writes it."""

    id: str
    name: str
    arguments: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One message of a conversation: an answer may call tools, and a message of role `tool` answers such a call."""

    role: str
    content: str
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A conversation to go on with, or a plain `prompt` (text, or token ids), and how it is to be answered.

    tools: those that the model may call, as the JSON list that a chat template reads, "" for none. stops: texts that
    end the answer, besides those of the job. max_tokens: of the answer, None for as many as the job allows.
    include_usage: count tokens in a stream, too.
    """

    messages: tuple[Message, ...] = ()
    prompt: str | tuple[int, ...] | None = None
    tools: str = ""
    stops: tuple[str, ...] = ()
    max_tokens: int | None = None
    stream: bool = False
    include_usage: bool = False
    model: str = MODEL


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """What is known of an answer before its first token. created_at_s: Unix time."""

    id: str
    num_prompt_tokens: int
    created_at_s: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Answer(Opening):
    """What was sampled for a call. `truncated`: the budget ended it. stopped_by: the stop of the call's own that ended
    it, "" if none did.
    """

    output: Message
    truncated: bool
    num_output_tokens: int
    stopped_by: str = ""


class Follower(Protocol):
    """Hears of an answer while it is sampled: once how it opens, then its text, then its calls of tools. What is left
    comes with the answer.
    """

    def begun(self, opening: Opening) -> None:
        """Hear that an answer begins."""

    def grew(self, text: str) -> None:
        """Hear what comes next of its text."""

    def called(self, call: ToolCall) -> None:
        """Hear its next call of a tool, which is whole. No text comes after it."""
