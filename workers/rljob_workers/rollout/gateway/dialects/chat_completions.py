"""POST /v1/chat/completions of OpenAI. Pure."""

import dataclasses
import itertools
from collections.abc import Iterator

from rljob_api import types
from rljob_workers.rollout.gateway import conversation
from rljob_workers.rollout.gateway.dialects import fields, openai_form

_SERVED = openai_form.LABELS | {
    "messages", "max_tokens", "max_completion_tokens", "stream", "stream_options", "tools", "tool_choice",
    "stop",
}  # fmt: skip
_NEUTRAL = {
    "n": 1, "frequency_penalty": 0, "presence_penalty": 0, "logprobs": False, "parallel_tool_calls": True,
    "logit_bias": {}, "response_format": {"type": "text"},
}  # fmt: skip


class ChatCompletions(openai_form.Refusals):
    """Text and calls of functions."""

    def read(self, body: object, sampling: types.Sampling) -> conversation.Call:
        """Return the call. Raises BadCallError."""
        values = fields.checked(body, served=_SERVED, neutral=_NEUTRAL, sampling=sampling)
        messages = fields.listed(values.get("messages"), "messages")
        return conversation.Call(
            messages=tuple(openai_form.message(item, place) for item, place in messages),
            tools=openai_form.tools(values, nested=True),
            max_tokens=fields.max_tokens(values, "max_completion_tokens", "max_tokens"),
            stops=fields.stops(values, "stop"),
            stream=fields.flag(values, "stream"),
            include_usage=fields.include_usage(values),
            model=fields.model(values),
        )

    def answer(self, call: conversation.Call, answer: conversation.Answer) -> fields.Json:
        """Return the whole answer."""
        choice = {
            "index": 0, "message": _message(answer.output), "logprobs": None,
            "finish_reason": openai_form.ending(answer),
        }  # fmt: skip
        head = openai_form.head(call, answer, "chat.completion")
        return {**head, "choices": [choice], "usage": openai_form.usage(answer)}

    def stream(self, call: conversation.Call, opening: conversation.Opening) -> "_Chunks":
        """Return what writes the chunks."""
        return _Chunks(call, opening)


class _Chunks:
    """The role, pieces of text, each call of a tool and its arguments, the ending, the counts if asked for, and the end
    mark.
    """

    def __init__(self, call: conversation.Call, opening: conversation.Opening) -> None:
        self._call, self._head = call, openai_form.head(call, opening, "chat.completion.chunk")
        self._number = itertools.count()

    def begin(self) -> Iterator[str]:
        yield self._chunk({"role": "assistant", "content": ""})

    def text(self, text: str) -> Iterator[str]:
        yield self._chunk({"content": text})

    def called(self, call: conversation.ToolCall) -> Iterator[str]:
        index = next(self._number)
        yield self._chunk({"tool_calls": [{"index": index, **_tool_call(dataclasses.replace(call, arguments=""))}]})
        yield self._chunk({"tool_calls": [{"index": index, "function": {"arguments": call.arguments}}]})

    def end(self, answer: conversation.Answer) -> Iterator[str]:
        yield self._chunk({}, openai_form.ending(answer))
        if self._call.include_usage:
            yield fields.event({**self._head, "choices": [], "usage": openai_form.usage(answer)})
        yield openai_form.END

    def _chunk(self, delta: fields.Json, ending: str | None = None) -> str:
        return fields.event({**self._head, "choices": [{"index": 0, "delta": delta, "finish_reason": ending}]})


def _message(output: conversation.Message) -> fields.Json:
    if not output.tool_calls:
        return {"role": "assistant", "content": output.content}
    calls = [_tool_call(call) for call in output.tool_calls]
    return {"role": "assistant", "content": output.content or None, "tool_calls": calls}


def _tool_call(call: conversation.ToolCall) -> fields.Json:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
