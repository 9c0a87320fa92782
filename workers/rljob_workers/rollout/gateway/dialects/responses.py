"""POST /v1/responses of OpenAI. Nothing is kept between calls: a call has the whole conversation. Pure."""

import itertools
from collections.abc import Iterator

from rljob_api import types
from rljob_workers.rollout.gateway import conversation
from rljob_workers.rollout.gateway.dialects import fields, openai_form

_SERVED = openai_form.LABELS | {"input", "instructions", "max_output_tokens", "stream", "tools", "tool_choice"}
_NEUTRAL = {
    "parallel_tool_calls": True, "background": False, "include": [], "truncation": "disabled", "top_logprobs": 0,
    "text": {"format": {"type": "text"}},
}  # fmt: skip


class Responses(openai_form.Refusals):
    """Text and calls of functions."""

    def read(self, body: object, sampling: types.Sampling) -> conversation.Call:
        """Return the call. Raises BadCallError."""
        values = fields.checked(body, served=_SERVED, neutral=_NEUTRAL, sampling=sampling)
        messages = _messages(values.get("input"))
        if "instructions" in values:
            text = fields.content(values["instructions"], "instructions")
            messages = (conversation.Message(role=conversation.SYSTEM, content=text), *messages)
        return conversation.Call(
            messages=messages,
            tools=openai_form.tools(values, nested=False),
            max_tokens=fields.max_tokens(values, "max_output_tokens"),
            stream=fields.flag(values, "stream"),
            model=fields.model(values),
        )

    def answer(self, call: conversation.Call, answer: conversation.Answer) -> fields.Json:
        """Return the whole answer."""
        counts = openai_form.usage(answer)
        return {
            "id": answer.id, "object": "response", "created_at": answer.created_at_s, "model": call.model,
            "status": _status(answer),
            "incomplete_details": {"reason": "max_output_tokens"} if answer.truncated else None,
            "output": _items(answer), "parallel_tool_calls": bool(call.tools),
            "tool_choice": "auto" if call.tools else "none", "tools": [],
            "usage": {
                "input_tokens": counts["prompt_tokens"],
                "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
                "output_tokens": counts["completion_tokens"], "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": counts["total_tokens"],
            },
        }  # fmt: skip

    def stream(self, call: conversation.Call, opening: conversation.Opening) -> "_Events":
        """Return what writes the events."""
        return _Events(self, call, opening)


class _Events:
    """Created, how each item of the output grows, and completed: OpenAI's client puts them together."""

    def __init__(self, dialect: Responses, call: conversation.Call, opening: conversation.Opening) -> None:
        self._dialect, self._call, self._opening = dialect, call, opening
        self._number = itertools.count()
        # Of the text that is open, or was; of the item that is open, or comes next.
        self._text: str | None = None
        self._index = 0

    def begin(self) -> Iterator[str]:
        opening = self._opening
        empty = conversation.Answer(
            id=opening.id, num_prompt_tokens=opening.num_prompt_tokens, created_at_s=opening.created_at_s,
            output=fields.assistant(""), truncated=False, num_output_tokens=0,
        )  # fmt: skip
        whole = self._dialect.answer(self._call, empty)
        yield self._event("response.created", response={**whole, "status": "in_progress", "output": []})

    def text(self, text: str) -> Iterator[str]:
        if self._text is None:
            self._text = ""
            item = _text_item(self._opening, "in_progress", [])
            yield self._event("response.output_item.added", output_index=self._index, item=item)
            yield self._event("response.content_part.added", **self._place(), part=_part(""))
        self._text += text
        yield self._event("response.output_text.delta", **self._place(), delta=text, logprobs=[])

    def called(self, call: conversation.ToolCall) -> Iterator[str]:
        if self._text is not None and not self._index:
            yield from self._close_text("completed")
        item = _call_item(call)
        place: fields.Json = {"item_id": item["id"], "output_index": self._index}
        empty: fields.Json = {**item, "status": "in_progress", "arguments": ""}
        yield self._event("response.output_item.added", output_index=self._index, item=empty)
        yield self._event("response.function_call_arguments.delta", **place, delta=call.arguments)
        done: fields.Json = {"name": call.name, "arguments": call.arguments}
        yield self._event("response.function_call_arguments.done", **place, **done)
        yield self._event("response.output_item.done", output_index=self._index, item=item)
        self._index += 1

    def _place(self) -> fields.Json:
        return {"item_id": _text_id(self._opening), "output_index": self._index, "content_index": 0}

    def _close_text(self, status: str) -> Iterator[str]:
        text = self._text or ""
        yield self._event("response.output_text.done", **self._place(), text=text, logprobs=[])
        yield self._event("response.content_part.done", **self._place(), part=_part(text))
        item = _text_item(self._opening, status, [_part(text)])
        yield self._event("response.output_item.done", output_index=self._index, item=item)
        self._index += 1

    def end(self, answer: conversation.Answer) -> Iterator[str]:
        whole = self._dialect.answer(self._call, answer)
        if not self._index:
            if self._text is None:
                # An answer without a word has a text, too.
                yield from self.text("")
            yield from self._close_text(_status(answer))
        yield self._event("response.incomplete" if answer.truncated else "response.completed", response=whole)

    def _event(self, kind: str, **body: object) -> str:
        return fields.event({"type": kind, "sequence_number": next(self._number), **body}, name=kind)


def _messages(value: object) -> tuple[conversation.Message, ...]:
    """Return the messages of `input`: a call of a tool belongs to the answer before it. Raises BadCallError."""
    if isinstance(value, str):
        return (conversation.Message(role=conversation.USER, content=value),)
    messages: list[conversation.Message] = []
    for item, place in fields.listed(value, "input"):
        kind = item.get("type", "message") if isinstance(item, dict) else None
        if kind == "function_call":
            assert isinstance(item, dict)
            call = fields.tool_call(item.get("call_id"), item.get("name"), item.get("arguments"), place)
            of_answer = bool(messages) and messages[-1].role == conversation.ASSISTANT
            answer = messages.pop() if of_answer else fields.assistant("")
            messages.append(fields.assistant(answer.content, *answer.tool_calls, call))
        elif kind == "function_call_output":
            assert isinstance(item, dict)
            messages.append(fields.tool_result(item.get("call_id"), item.get("output"), place))
        elif kind == "message":
            messages.append(openai_form.message(item, place))
        else:
            raise fields.BadCallError(f"{place} must be a message, a function_call or a function_call_output")
    return tuple(messages)


def _items(answer: conversation.Answer) -> list[fields.Json]:
    """Return the text, if there is any in addition to calls of tools, and the calls."""
    output = answer.output
    calls = [_call_item(call) for call in output.tool_calls]
    # A text that calls follow is whole.
    message = _text_item(answer, "completed" if calls else _status(answer), [_part(output.content)])
    return [message, *calls] if output.content or not calls else calls


def _call_item(call: conversation.ToolCall) -> fields.Json:
    return {
        "type": "function_call", "id": f"fc-{call.id}", "call_id": call.id, "name": call.name,
        "arguments": call.arguments, "status": "completed",
    }  # fmt: skip


def _status(answer: conversation.Answer) -> str:
    return "incomplete" if answer.truncated else "completed"


def _part(text: str) -> fields.Json:
    return {"type": "output_text", "text": text, "annotations": []}


def _text_id(opening: conversation.Opening) -> str:
    return f"msg-{opening.id}"


def _text_item(opening: conversation.Opening, status: str, parts: list[fields.Json]) -> fields.Json:
    return {"type": "message", "id": _text_id(opening), "status": status, "role": "assistant", "content": parts}
