"""The APIs that are served, by path below `/v1/`. What one does not serve is refused by name, never ignored.

A streamed answer comes in one piece, once it is whole: only then it is known which of its text is a call of a tool.
"""

from collections.abc import Iterator, Mapping
from typing import Protocol

from rljob_api import types
from rljob_workers.rollout.gateway import conversation
from rljob_workers.rollout.gateway.dialects import anthropic_messages, chat_completions, completions, fields, responses


class Dialect(Protocol):
    """How one API reads a call and writes an answer. Pure."""

    def read(self, body: object, sampling: types.Sampling) -> conversation.Call:
        """Return the call. Raises BadCallError."""

    def answer(self, call: conversation.Call, answer: conversation.Answer) -> fields.Json:
        """Return the whole answer."""

    def events(self, call: conversation.Call, answer: conversation.Answer) -> Iterator[str]:
        """Yield the server-sent events of a streamed answer."""

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
