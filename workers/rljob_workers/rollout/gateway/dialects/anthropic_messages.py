"""POST /v1/messages of Anthropic: text and calls of tools. Pure. Source: Anthropic's API reference."""

import json
from collections.abc import Iterator, Mapping

from rljob_api import types
from rljob_workers.rollout.gateway import conversation
from rljob_workers.rollout.gateway.dialects import fields

# What it asks of a cache changes no answer, of a message, of a tool or of the whole call; nor does how soon it comes.
_CACHE = "cache_control"
_SERVED = frozenset(
    {
        "model", "metadata", "max_tokens", "messages", "stop_sequences", "system", "tools", "tool_choice", "stream",
        "service_tier", _CACHE,
    }
)  # fmt: skip
_NEUTRAL: Mapping[str, object] = {"thinking": {"type": "disabled"}}
_TOOL_KEYS = {"name", "description", "input_schema", "type", _CACHE}
_KIND_BY_STATUS = {
    400: "invalid_request_error", 401: "authentication_error", 403: "permission_error", 404: "not_found_error",
    413: "request_too_large", 429: "rate_limit_error", 503: "overloaded_error",
}  # fmt: skip


class AnthropicMessages:
    """The one API of Anthropic that is served."""

    def read(self, body: object, sampling: types.Sampling) -> conversation.Call:
        """Return the call. Raises BadCallError."""
        values = fields.checked(body, served=_SERVED, neutral=_NEUTRAL, sampling=sampling)
        messages: list[conversation.Message] = []
        if "system" in values:
            text = fields.content(values["system"], "system")
            messages.append(conversation.Message(role=conversation.SYSTEM, content=text))
        for item, place in fields.listed(values.get("messages"), "messages"):
            messages += _messages(item, place)
        if messages[-1].role == conversation.ASSISTANT:
            raise fields.BadCallError("messages end with the assistant's, but answers are not begun for the model")
        return conversation.Call(
            messages=tuple(messages),
            tools=_tools(values),
            max_tokens=fields.max_tokens(values, "max_tokens"),
            stops=fields.stops(values, "stop_sequences"),
            stream=fields.flag(values, "stream"),
            model=fields.model(values),
        )

    def answer(self, call: conversation.Call, answer: conversation.Answer) -> fields.Json:
        """Return the whole answer."""
        content, num_tokens = _blocks(answer.output), answer.num_output_tokens
        return _message(call, answer, content=content, ending=_ending(answer), num_tokens=num_tokens)

    def stream(self, call: conversation.Call, opening: conversation.Opening) -> "_Events":
        """Return what writes the events."""
        return _Events(call, opening)

    def refusal(self, status: int, code: str, sentence: str) -> fields.Json:  # noqa: ARG002  # its kinds are by status
        """Return how Anthropic says that a call was not served."""
        error = {"type": _KIND_BY_STATUS.get(status, "api_error"), "message": sentence}
        return {"type": "error", "error": error}


class _Events:
    """The message's start, each block's start, deltas and stop, the message's ending and stop."""

    def __init__(self, call: conversation.Call, opening: conversation.Opening) -> None:
        self._call, self._opening = call, opening
        # Of the block that is open, or comes next.
        self._index, self._has_text = 0, False

    def begin(self) -> Iterator[str]:
        ending = {"stop_reason": None, "stop_sequence": None}
        message = _message(self._call, self._opening, content=[], ending=ending, num_tokens=0)
        yield _event("message_start", message=message)

    def text(self, text: str) -> Iterator[str]:
        if not self._has_text:
            self._has_text = True
            yield _event("content_block_start", index=self._index, content_block={"type": "text", "text": ""})
        yield _event("content_block_delta", index=self._index, delta={"type": "text_delta", "text": text})

    def called(self, call: conversation.ToolCall) -> Iterator[str]:
        yield from self._close_text()
        delta = {"type": "input_json_delta", "partial_json": call.arguments}
        yield _event("content_block_start", index=self._index, content_block={**_tool_use(call), "input": {}})
        yield _event("content_block_delta", index=self._index, delta=delta)
        yield _event("content_block_stop", index=self._index)
        self._index += 1

    def _close_text(self) -> Iterator[str]:
        if self._has_text:
            yield _event("content_block_stop", index=self._index)
            self._index, self._has_text = self._index + 1, False

    def end(self, answer: conversation.Answer) -> Iterator[str]:
        yield from self._close_text()
        yield _event("message_delta", delta=_ending(answer), usage={"output_tokens": answer.num_output_tokens})
        yield _event("message_stop")


def _message(
    call: conversation.Call,
    opening: conversation.Opening,
    *,
    content: list[fields.Json],
    ending: Mapping[str, str | None],
    num_tokens: int,
) -> fields.Json:
    usage = {
        "input_tokens": opening.num_prompt_tokens, "output_tokens": num_tokens, "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 0,
    }  # fmt: skip
    return {
        "id": opening.id, "type": "message", "role": "assistant", "model": call.model, "content": content,
        **ending, "usage": usage,
    }  # fmt: skip


def _messages(item: object, place: str) -> list[conversation.Message]:
    """Return what a message of theirs is in a chat template's terms: results of tools are messages of their own."""
    if not isinstance(item, dict) or item.get("role") not in (conversation.USER, conversation.ASSISTANT):
        raise fields.BadCallError(f"{place} must be an object whose role is user or assistant")
    role, content = str(item["role"]), item.get("content")
    if isinstance(content, str):
        return [conversation.Message(role=role, content=content)]
    if not isinstance(content, list):
        raise fields.BadCallError(f"{place}.content must be a text or a list of blocks")
    blocks = [(block, f"{place}.content[{index}]") for index, block in enumerate(content)]
    if role == conversation.ASSISTANT:
        return [_assistant(blocks)]
    messages: list[conversation.Message] = []
    for block, where in blocks:
        kind = block.get("type") if isinstance(block, dict) else None
        if kind == "tool_result":
            assert isinstance(block, dict)
            messages.append(fields.tool_result(block.get("tool_use_id"), block.get("content", ""), where))
        elif kind == "text":
            text = fields.content([block], where)
            if messages and messages[-1].role == role:
                text = messages.pop().content + text
            messages.append(conversation.Message(role=role, content=text))
        else:
            raise fields.BadCallError(f"{where} must be of type text or tool_result")
    if not messages:
        raise fields.BadCallError(f"{place}.content is empty")
    return messages


def _assistant(blocks: list[tuple[object, str]]) -> conversation.Message:
    text, calls = "", []
    for block, where in blocks:
        kind = block.get("type") if isinstance(block, dict) else None
        if kind == "text":
            text += fields.content([block], where)
        elif kind == "tool_use":
            assert isinstance(block, dict)
            arguments = json.dumps(block.get("input"))
            calls.append(fields.tool_call(block.get("id"), block.get("name"), arguments, where))
        else:
            raise fields.BadCallError(f"{where} must be of type text or tool_use")
    return fields.assistant(text, *calls)


def _tools(values: Mapping[str, object]) -> str:
    choice = values.get("tool_choice", {"type": "auto"})
    if choice not in ({"type": "auto"}, {"type": "none"}, {"type": "auto", "disable_parallel_tool_use": False}):
        raise fields.BadCallError(
            f"tool_choice is {choice!r:.80}, but answers are sampled as they are: use the type auto or none"
        )
    shown = []
    for item, place in fields.declared(values.get("tools"), "tools"):
        if item.get("type") not in (None, "custom"):
            raise fields.BadCallError(f"{place}: type is {item['type']!r:.80}, but only tools of yours are served")
        if unknown := sorted(item.keys() - _TOOL_KEYS):
            raise fields.BadCallError(f"{place}: not supported: {', '.join(unknown)}")
        shown.append(fields.tool(item.get("name"), item.get("description"), item.get("input_schema"), place))
    return "" if choice == {"type": "none"} else fields.tools_text(shown)


def _blocks(output: conversation.Message) -> list[fields.Json]:
    """Return the text, if there is any, and the calls of tools."""
    text: list[fields.Json] = [{"type": "text", "text": output.content}] if output.content else []
    return text + [_tool_use(call) for call in output.tool_calls]


def _tool_use(call: conversation.ToolCall) -> fields.Json:
    return {"type": "tool_use", "id": call.id, "name": call.name, "input": json.loads(call.arguments)}


def _ending(answer: conversation.Answer) -> Mapping[str, str | None]:
    reason = "tool_use" if answer.output.tool_calls else "end_turn"
    if answer.truncated:
        reason = "max_tokens"
    elif answer.stopped_by:
        reason = "stop_sequence"
    return {"stop_reason": reason, "stop_sequence": answer.stopped_by or None}


def _event(kind: str, **body: object) -> str:
    return fields.event({"type": kind, **body}, name=kind)
