"""What a call of the OpenAI API asks for, and its answer, as JSON. Pure; `server.py` moves the bytes.

Chat completions and responses. What is not served is refused by name, never ignored: sampling is the job's, because
training needs the distribution that was sampled from.
"""

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from rljob_api import types
from rljob_workers.rollout.episodes.proxy import interactions

Json = dict[str, object]
ROLES = ("system", "developer", "user", "assistant")
_COMMON = {"model", "temperature", "top_p", "stream", "n", "user", "metadata", "store"}
_CHAT = _COMMON | {"messages", "max_tokens", "max_completion_tokens", "stream_options"}
_RESPONSES = _COMMON | {"input", "instructions", "max_output_tokens"}


class BadCallError(ValueError):
    """A call that cannot be served; the sentence goes to the client."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A conversation to go on with, and the most tokens of the answer (None: the job's)."""

    messages: tuple[interactions.Message, ...]
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
        """Return the call. Raises BadCallError."""
        given = _checked(body, _CHAT, sampling)
        return Call(
            messages=_messages(given.get("messages"), "messages"),
            max_tokens=_max_tokens(given, ("max_completion_tokens", "max_tokens")),
            stream=_flag(given, "stream"),
            model=str(given.get("model", "policy")),
        )

    def answer(self, call: Call, done: interactions.Interaction, *, created: int) -> Json:
        """Return a chat.completion."""
        choice = {"index": 0, "message": {"role": "assistant", "content": _text(done)}, "finish_reason": _ending(done)}
        return {**_chat_head(call, done, "chat.completion", created), "choices": [choice], "usage": _usage(done)}

    def events(self, call: Call, done: interactions.Interaction, *, created: int) -> Iterator[str]:
        """Yield the text as one chunk, the ending, and the end mark."""
        head = _chat_head(call, done, "chat.completion.chunk", created)
        for delta, ending in (({"role": "assistant", "content": _text(done)}, None), ({}, _ending(done))):
            yield _event({**head, "choices": [{"index": 0, "delta": delta, "finish_reason": ending}]})
        yield "data: [DONE]\n\n"


class Responses:
    """POST /v1/responses."""

    def read(self, body: object, sampling: types.Sampling) -> Call:
        """Return the call. Raises BadCallError."""
        given = _checked(body, _RESPONSES, sampling)
        asked = given.get("input")
        if isinstance(asked, str):
            asked = [{"role": "user", "content": asked}]
        messages = _messages(asked, "input")
        instructions = given.get("instructions")
        if isinstance(instructions, str):
            messages = (interactions.Message(role="system", content=instructions), *messages)
        return Call(
            messages=messages,
            max_tokens=_max_tokens(given, ("max_output_tokens",)),
            stream=_flag(given, "stream"),
            model=str(given.get("model", "policy")),
        )

    def answer(self, call: Call, done: interactions.Interaction, *, created: int) -> Json:
        """Return a response object."""
        cut = _ending(done) == "length"
        part = {"type": "output_text", "text": _text(done), "annotations": []}
        message = {
            "type": "message", "id": f"msg-{done.id}", "status": "incomplete" if cut else "completed",
            "role": "assistant", "content": [part],
        }  # fmt: skip
        usage = _usage(done)
        return {
            "id": done.id, "object": "response", "created_at": created, "model": call.model,
            "status": "incomplete" if cut else "completed",
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "output": [message], "parallel_tool_calls": False, "tool_choice": "none", "tools": [],
            "usage": {
                "input_tokens": usage["prompt_tokens"], "output_tokens": usage["completion_tokens"],
                "total_tokens": usage["total_tokens"],
            },
        }  # fmt: skip

    def events(self, call: Call, done: interactions.Interaction, *, created: int) -> Iterator[str]:
        """Yield created, the text as one delta, and completed."""
        whole = self.answer(call, done, created=created)
        delta = {"item_id": f"msg-{done.id}", "output_index": 0, "content_index": 0, "delta": _text(done)}
        steps: list[tuple[str, Json]] = [
            ("response.created", {"response": {**whole, "status": "in_progress", "output": []}}),
            ("response.output_text.delta", dict(delta)),
            ("response.incomplete" if _ending(done) == "length" else "response.completed", {"response": whole}),
        ]
        for number, (kind, fields) in enumerate(steps):
            yield f"event: {kind}\n" + _event({"type": kind, "sequence_number": number, **fields})


DIALECTS: Mapping[str, Dialect] = {"chat/completions": ChatCompletions(), "responses": Responses()}


def _checked(body: object, known: set[str], sampling: types.Sampling) -> Mapping[str, object]:
    if not isinstance(body, dict):
        raise BadCallError("the body must be a JSON object")
    unknown = sorted(key for key, value in body.items() if key not in known and value is not None)
    if unknown:
        raise BadCallError(f"not supported: {', '.join(unknown)}")
    if body.get("n") not in (None, 1):
        raise BadCallError(f"n is {body['n']}, but a call has one answer: groups are made by the job")
    for key, own in (("temperature", sampling.temperature), ("top_p", sampling.top_p)):
        if body.get(key) not in (None, own):
            raise BadCallError(f"{key} is {body[key]}, but the job samples with {own}: leave it out")
    return body


def _messages(given: object, key: str) -> tuple[interactions.Message, ...]:
    if not isinstance(given, list) or not given:
        raise BadCallError(f"{key} must be a list of messages")
    return tuple(_message(item, f"{key}[{index}]") for index, item in enumerate(given))


def _message(item: object, place: str) -> interactions.Message:
    if not isinstance(item, dict) or item.get("role") not in ROLES:
        raise BadCallError(f"{place} must be an object whose role is one of {', '.join(ROLES)}")
    role = "system" if item["role"] == "developer" else str(item["role"])
    return interactions.Message(role=role, content=_content(item.get("content"), place))


def _content(content: object, place: str) -> str:
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        texts = [part.get("text") for part in content if isinstance(part, dict)]
        if len(texts) == len(content) and all(isinstance(text, str) for text in texts):
            return "".join(map(str, texts))
    raise BadCallError(f"{place}.content must be a text or a list of text parts")


def _max_tokens(body: Mapping[str, object], keys: Sequence[str]) -> int | None:
    for key in keys:
        value = body.get(key)
        if value is None:
            continue
        if type(value) is not int or value < 1:
            raise BadCallError(f"{key} is {value!r}, but must be a positive integer")
        return value
    return None


def _flag(body: Mapping[str, object], key: str) -> bool:
    value = body.get(key)
    if value not in (None, True, False):
        raise BadCallError(f"{key} is {value!r}, but must be true or false")
    return bool(value)


def _chat_head(call: Call, done: interactions.Interaction, kind: str, created: int) -> Json:
    return {"id": done.id, "object": kind, "created": created, "model": call.model}


def _text(done: interactions.Interaction) -> str:
    assert done.output is not None, "only answered calls are written"
    return done.output.content


def _ending(done: interactions.Interaction) -> str:
    assert done.result is not None, "only answered calls are written"
    return "length" if done.result.truncated else "stop"


def _usage(done: interactions.Interaction) -> dict[str, int]:
    assert done.result is not None, "only answered calls are written"
    asked, answered = len(done.prompt_ids), len(done.result.output_ids)
    return {"prompt_tokens": asked, "completion_tokens": answered, "total_tokens": asked + answered}


def _event(body: Json) -> str:
    return f"data: {json.dumps(body)}\n\n"
