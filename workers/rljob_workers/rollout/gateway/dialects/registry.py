"""The APIs that are served, by path below `/v1/`. What one does not serve is refused by name, never ignored."""

from collections.abc import Iterator, Mapping
from typing import Protocol

from rljob_api import types
from rljob_workers.rollout.gateway import conversation
from rljob_workers.rollout.gateway.dialects import anthropic_messages, chat_completions, completions, fields, responses


class Stream(Protocol):
    """Writes one answer as server-sent events, in this order."""

    def begin(self) -> Iterator[str]:
        """Yield what comes before any text."""

    def text(self, text: str) -> Iterator[str]:
        """Yield the next piece of the text."""

    def called(self, call: conversation.ToolCall) -> Iterator[str]:
        """Yield the next call of a tool."""

    def end(self, answer: conversation.Answer) -> Iterator[str]:
        """Yield what comes after text and calls: how the answer ended, counts."""


class Dialect(Protocol):
    """How one API reads a call and writes an answer. Pure."""

    def read(self, body: object, sampling: types.Sampling) -> conversation.Call:
        """Return the call. Raises BadCallError."""

    def answer(self, call: conversation.Call, answer: conversation.Answer) -> fields.Json:
        """Return the whole answer."""

    def stream(self, call: conversation.Call, opening: conversation.Opening) -> Stream:
        """Return what writes a streamed answer."""

    def refusal(self, status: int, code: str, sentence: str) -> fields.Json:
        """Return the body of a call that was not served, with its HTTP status and OpenAI's code for it."""


DIALECTS: Mapping[str, Dialect] = {
    "chat/completions": chat_completions.ChatCompletions(),
    "completions": completions.Completions(),
    "responses": responses.Responses(),
    "messages": anthropic_messages.AnthropicMessages(),
}
# How a path that is not served is refused.
OTHER: Dialect = DIALECTS["chat/completions"]
