"""What stands in the body of a call: messages, tools, limits. Pure. What is wrong is said with its place."""

import json
import re
from collections.abc import Mapping, Sequence

from rljob_workers.rollout.openai import interactions
from rljob_workers.rollout.openai import tools as hermes

ROLES = ("system", "developer", "user", "assistant", "tool")
MAX_TOOLS = 128
_TOOL_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_TOOL_KEYS = {"name", "description", "parameters", "strict"}


class BadCallError(ValueError):
    """A call that cannot be served; the sentence goes to the client."""


def chat_messages(value: object) -> tuple[interactions.Message, ...]:
    """Raises BadCallError."""
    return tuple(_message(item, place) for item, place in _listed(value, "messages"))


def response_messages(value: object) -> tuple[interactions.Message, ...]:
    """Return the `input` of a response: a call of a tool belongs to the answer before it. Raises BadCallError."""
    if isinstance(value, str):
        return (interactions.Message(role="user", content=value),)
    messages: list[interactions.Message] = []
    for item, place in _listed(value, "input"):
        kind = item.get("type", "message") if isinstance(item, dict) else None
        if kind == "function_call":
            assert isinstance(item, dict)
            call = _tool_call(item.get("call_id"), item, place)
            answer = messages.pop() if messages and messages[-1].role == "assistant" else _assistant("")
            messages.append(_assistant(answer.content, *answer.tool_calls, call))
        elif kind == "function_call_output":
            assert isinstance(item, dict)
            messages.append(_tool_result(item.get("call_id"), item.get("output"), place))
        elif kind == "message":
            messages.append(_message(item, place))
        else:
            raise BadCallError(f"{place} must be a message, a function_call or a function_call_output")
    return tuple(messages)


def tools(body: Mapping[str, object], *, nested: bool) -> str:
    """Return the declared tools as the JSON list that a chat template reads, "" for none. Raises BadCallError.

    `nested`: name and parameters stand below `function`, as in chat completions; in responses they do not.
    """
    definitions, choice = body.get("tools"), body.get("tool_choice")
    if body.get("parallel_tool_calls") not in (None, True):
        raise BadCallError("parallel_tool_calls is false, but the model decides how often it calls: leave it out")
    if choice not in (None, "auto", "none"):
        raise BadCallError(f"tool_choice is {choice!r}, but answers are sampled as they are: use auto or none")
    if definitions is None or definitions == []:
        return ""
    if not isinstance(definitions, list) or len(definitions) > MAX_TOOLS:
        raise BadCallError(f"tools must be a list of at most {MAX_TOOLS} functions")
    declared = [_tool(item, f"tools[{index}]", nested=nested) for index, item in enumerate(definitions)]
    return "" if choice == "none" else json.dumps(declared, ensure_ascii=False)


def max_tokens(body: Mapping[str, object], keys: Sequence[str]) -> int | None:
    """Return the first of `keys` that is set, a positive integer. Raises BadCallError."""
    for key in keys:
        value = body.get(key)
        if value is None:
            continue
        if type(value) is not int or value < 1:
            raise BadCallError(f"{key} is {value!r}, but must be a positive integer")
        return value
    return None


def flag(body: Mapping[str, object], key: str) -> bool:
    """Return a truth value, false if it is not set. Raises BadCallError."""
    value = body.get(key)
    if value not in (None, True, False):
        raise BadCallError(f"{key} is {value!r}, but must be true or false")
    return bool(value)


def _listed(value: object, key: str) -> list[tuple[object, str]]:
    if not isinstance(value, list) or not value:
        raise BadCallError(f"{key} must be a list of messages")
    return [(item, f"{key}[{index}]") for index, item in enumerate(value)]


def _message(item: object, place: str) -> interactions.Message:
    if not isinstance(item, dict) or item.get("role") not in ROLES:
        raise BadCallError(f"{place} must be an object whose role is one of {', '.join(ROLES)}")
    role = "system" if item["role"] == "developer" else str(item["role"])
    if role == "tool":
        return _tool_result(item.get("tool_call_id"), item.get("content"), place)
    tool_calls = item.get("tool_calls") if role == "assistant" else None
    if not tool_calls:
        return interactions.Message(role=role, content=_content(item.get("content"), f"{place}.content"))
    if not isinstance(tool_calls, list):
        raise BadCallError(f"{place}.tool_calls must be a list")
    content = item.get("content")
    return _assistant(
        "" if content is None else _content(content, f"{place}.content"),
        *(_chat_tool_call(call, f"{place}.tool_calls[{index}]") for index, call in enumerate(tool_calls)),
    )


def _assistant(content: str, *calls: hermes.ToolCall) -> interactions.Message:
    return interactions.Message(role="assistant", content=content, tool_calls=calls)


def _tool_result(id_: object, content: object, place: str) -> interactions.Message:
    if not isinstance(id_, str) or not id_:
        raise BadCallError(f"{place} must name the call that it answers")
    return interactions.Message(role="tool", content=_content(content, f"{place}.content"), tool_call_id=id_)


def _chat_tool_call(call: object, place: str) -> hermes.ToolCall:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(call, dict) or not isinstance(function, dict):
        raise BadCallError(f"{place} must have an id and a function")
    return _tool_call(call.get("id"), function, place)


def _tool_call(id_: object, function: Mapping[str, object], place: str) -> hermes.ToolCall:
    name, arguments = function.get("name"), function.get("arguments")
    if not (isinstance(id_, str) and id_ and isinstance(name, str) and name and isinstance(arguments, str)):
        raise BadCallError(f"{place} must have an id, a name and arguments, all of them texts")
    try:
        return hermes.ToolCall(id=id_, name=name, arguments=hermes.canonical(arguments))
    except ValueError as error:
        raise BadCallError(f"{place}.arguments must be the JSON text of an object: {error}") from error


def _content(content: object, place: str) -> str:
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        texts = [part.get("text") for part in content if isinstance(part, dict)]
        if len(texts) == len(content) and all(isinstance(text, str) for text in texts):
            return "".join(map(str, texts))
    raise BadCallError(f"{place} must be a text or a list of text parts")


def _tool(item: object, place: str, *, nested: bool) -> dict[str, object]:
    if not isinstance(item, dict) or item.get("type") != "function":
        raise BadCallError(f"{place} must be an object of type function")
    function = item.get("function") if nested else {key: value for key, value in item.items() if key != "type"}
    if not isinstance(function, dict):
        raise BadCallError(f"{place}.function must be an object")
    if unknown := sorted(function.keys() - _TOOL_KEYS):
        raise BadCallError(f"{place}: not supported: {', '.join(unknown)}")
    name, parameters = function.get("name"), function.get("parameters")
    if not isinstance(name, str) or not _TOOL_NAME.fullmatch(name):
        raise BadCallError(f"{place}: name is {name!r:.80}, but must be 1 to 64 letters, digits, _ or -")
    if function.get("strict"):
        raise BadCallError(f"{place}: strict is true, but answers are sampled as they are: leave it out")
    if parameters is not None and not isinstance(parameters, dict):
        raise BadCallError(f"{place}: parameters must be an object")
    return {
        "type": "function",
        "function": {
            "name": name,
            "description": str(function.get("description") or ""),
            "parameters": parameters or {"type": "object", "properties": {}},
        },
    }
