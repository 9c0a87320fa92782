"""What a call of the OpenAI API asks for, and its answer, as JSON. Pure; `server.py` moves the bytes.

Chat completions and responses, with tools. What is not served is refused by name, never ignored: sampling is the job's,
because training needs the distribution that was sampled from.
"""

import dataclasses
import json
from collections.abc import Iterator, Mapping
from typing import Protocol

from rljob_api import types
from rljob_workers.rollout.openai import interactions, requests, tools

Json = dict[str, object]
_COMMON = {"model", "temperature", "top_p", "stream", "n", "user", "metadata", "store"}
_TOOLS = {"tools", "tool_choice", "parallel_tool_calls"}
_CHAT = _COMMON | _TOOLS | {"messages", "max_tokens", "max_completion_tokens", "stream_options"}
_RESPONSES = _COMMON | _TOOLS | {"input", "instructions", "max_output_tokens"}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A conversation to go on with, the tools it may call as JSON, and the most tokens of the answer (None: the
    job's).
    """

    messages: tuple[interactions.Message, ...]
    tools: str
    max_tokens: int | None
    stream: bool
    model: str


class Dialect(Protocol):
    """One of the two APIs: how a call is read and an answer is written."""

    def read(self, body: object, sampling: types.Sampling) -> Call:
        """Return the call. Raises BadCallError."""

    def answer(self, call: Call, done: interactions.Interaction, *, created: int) -> Json:
        """Return the whole answer."""

    def events(self, call: Call, done: interactions.Interaction, *, created: int) -> Iterator[str]:
        """Yield the server-sent events of a streamed answer."""


class ChatCompletions:
    """POST /v1/chat/completions."""

    def read(self, body: object, sampling: types.Sampling) -> Call:
        fields = _checked(body, _CHAT, sampling)
        return Call(
            messages=requests.chat_messages(fields.get("messages")),
            tools=requests.tools(fields, nested=True),
            max_tokens=requests.max_tokens(fields, ("max_completion_tokens", "max_tokens")),
            stream=requests.flag(fields, "stream"),
            model=str(fields.get("model", "policy")),
        )

    def answer(self, call: Call, done: interactions.Interaction, *, created: int) -> Json:
        choice = {"index": 0, "message": _chat_message(done), "finish_reason": _ending(done)}
        return {**_chat_head(call, done, "chat.completion", created), "choices": [choice], "usage": _usage(done)}

    def events(self, call: Call, done: interactions.Interaction, *, created: int) -> Iterator[str]:
        """Yield text and calls of tools as one chunk, the ending, and the end mark."""
        head = _chat_head(call, done, "chat.completion.chunk", created)
        whole = _chat_message(done)
        if "tool_calls" in whole:
            whole["tool_calls"] = [
                {"index": index, **_chat_tool_call(call)} for index, call in enumerate(_output(done).tool_calls)
            ]
        for delta, ending in ((whole, None), ({}, _ending(done))):
            yield _event({**head, "choices": [{"index": 0, "delta": delta, "finish_reason": ending}]})
        yield "data: [DONE]\n\n"


class Responses:
    """POST /v1/responses."""

    def read(self, body: object, sampling: types.Sampling) -> Call:
        fields = _checked(body, _RESPONSES, sampling)
        messages = requests.response_messages(fields.get("input"))
        instructions = fields.get("instructions")
        if isinstance(instructions, str):
            messages = (interactions.Message(role="system", content=instructions), *messages)
        return Call(
            messages=messages,
            tools=requests.tools(fields, nested=False),
            max_tokens=requests.max_tokens(fields, ("max_output_tokens",)),
            stream=requests.flag(fields, "stream"),
            model=str(fields.get("model", "policy")),
        )

    def answer(self, call: Call, done: interactions.Interaction, *, created: int) -> Json:
        cut = _ending(done) == "length"
        usage = _usage(done)
        return {
            "id": done.id, "object": "response", "created_at": created, "model": call.model,
            "status": "incomplete" if cut else "completed",
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "output": _response_items(done), "parallel_tool_calls": bool(call.tools),
            "tool_choice": "auto" if call.tools else "none", "tools": [],
            "usage": {
                "input_tokens": usage["prompt_tokens"],
                "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
                "output_tokens": usage["completion_tokens"], "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": usage["total_tokens"],
            },
        }  # fmt: skip

    def events(self, call: Call, done: interactions.Interaction, *, created: int) -> Iterator[str]:
        """Yield created, the events of each item of the output, and completed."""
        whole = self.answer(call, done, created=created)
        steps: list[tuple[str, Json]] = [
            ("response.created", {"response": {**whole, "status": "in_progress", "output": []}})
        ]
        for index, item in enumerate(_response_items(done)):
            steps += _item_events(item, _output(done).content, index)
        ending = "response.incomplete" if _ending(done) == "length" else "response.completed"
        steps.append((ending, {"response": whole}))
        for number, (kind, fields) in enumerate(steps):
            yield f"event: {kind}\n" + _event({"type": kind, "sequence_number": number, **fields})


def _item_events(item: Json, text: str, index: int) -> Iterator[tuple[str, Json]]:
    """Yield how an item of a response grows, its text or arguments as one delta: OpenAI's client puts it together."""
    place: Json = {"item_id": item["id"], "output_index": index}
    if item["type"] == "function_call":
        empty: Json = {**item, "status": "in_progress", "arguments": ""}
        yield "response.output_item.added", {"output_index": index, "item": empty}
        yield "response.function_call_arguments.delta", {**place, "delta": item["arguments"]}
        done: Json = {**place, "name": item["name"], "arguments": item["arguments"]}
        yield "response.function_call_arguments.done", done
    else:
        place["content_index"] = 0
        part: Json = {"type": "output_text", "text": text, "annotations": []}
        empty = {**item, "status": "in_progress", "content": []}
        yield "response.output_item.added", {"output_index": index, "item": empty}
        yield "response.content_part.added", {**place, "part": {**part, "text": ""}}
        yield "response.output_text.delta", {**place, "delta": text, "logprobs": []}
        yield "response.output_text.done", {**place, "text": text, "logprobs": []}
        yield "response.content_part.done", {**place, "part": part}
    yield "response.output_item.done", {"output_index": index, "item": item}


DIALECTS: Mapping[str, Dialect] = {"chat/completions": ChatCompletions(), "responses": Responses()}


def _checked(body: object, allowed: set[str], sampling: types.Sampling) -> Mapping[str, object]:
    if not isinstance(body, dict):
        raise requests.BadCallError("the body must be a JSON object")
    unknown = sorted(key for key, value in body.items() if key not in allowed and value is not None)
    if unknown:
        raise requests.BadCallError(f"not supported: {', '.join(unknown)}")
    if body.get("n") not in (None, 1):
        raise requests.BadCallError(f"n is {body['n']}, but a call has one answer: groups are made by the job")
    for key, own in (("temperature", sampling.temperature), ("top_p", sampling.top_p)):
        if body.get(key) not in (None, own):
            raise requests.BadCallError(f"{key} is {body[key]}, but the job samples with {own}: leave it out")
    return body


def _chat_head(call: Call, done: interactions.Interaction, kind: str, created: int) -> Json:
    return {"id": done.id, "object": kind, "created": created, "model": call.model}


def _chat_message(done: interactions.Interaction) -> Json:
    output = _output(done)
    if not output.tool_calls:
        return {"role": "assistant", "content": output.content}
    tool_calls = [_chat_tool_call(call) for call in output.tool_calls]
    return {"role": "assistant", "content": output.content or None, "tool_calls": tool_calls}


def _chat_tool_call(call: tools.ToolCall) -> Json:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def _response_items(done: interactions.Interaction) -> list[Json]:
    """Return the text, if there is any in addition to calls of tools, and the calls."""
    status = "incomplete" if _ending(done) == "length" else "completed"
    part: Json = {"type": "output_text", "text": _output(done).content, "annotations": []}
    message: Json = {
        "type": "message", "id": f"msg-{done.id}", "status": status, "role": "assistant", "content": [part],
    }  # fmt: skip
    tool_calls: list[Json] = [
        {
            "type": "function_call", "id": f"fc-{call.id}", "call_id": call.id, "name": call.name,
            "arguments": call.arguments, "status": "completed",
        }
        for call in _output(done).tool_calls
    ]  # fmt: skip
    return [message, *tool_calls] if _has_text(done) else tool_calls


def _has_text(done: interactions.Interaction) -> bool:
    output = _output(done)
    return bool(output.content) or not output.tool_calls


def _output(done: interactions.Interaction) -> interactions.Message:
    assert done.output is not None, "only answered calls are written"
    return done.output


def _ending(done: interactions.Interaction) -> str:
    assert done.result is not None, "only answered calls are written"
    if done.result.truncated:
        return "length"
    return "tool_calls" if _output(done).tool_calls else "stop"


def _usage(done: interactions.Interaction) -> dict[str, int]:
    assert done.result is not None, "only answered calls are written"
    prompt, completion = len(done.prompt_ids), len(done.result.output_ids)
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def _event(body: Json) -> str:
    return f"data: {json.dumps(body)}\n\n"
