"""Checks of what stands in the body of a call, for every API. Pure. What is wrong is said with its place."""

import json
import re
from collections.abc import Collection, Mapping, Sequence

from rljob_api import types
from rljob_workers.rollout.gateway import conversation, tools

Json = dict[str, object]
MAX_TOOLS = 128
# More than either API takes; a stream holds as many characters back.
MAX_STOPS, MAX_STOP_LENGTH = 16, 256
_TOOL_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


class BadCallError(ValueError):
    """A call that cannot be served; the sentence goes to the client."""


def checked(
    body: object, *, served: Collection[str], neutral: Mapping[str, object], sampling: types.Sampling
) -> Mapping[str, object]:
    """Return the fields of a body. Raises BadCallError for one that is neither in `served` nor null, or at the value
    of `neutral`, at which it changes nothing.

    Sampling is the job's, because training needs the distribution that was sampled from.
    """
    if not isinstance(body, dict):
        raise BadCallError("the body must be a JSON object")
    own = {"temperature": sampling.temperature, "top_p": sampling.top_p}
    values = {key: value for key, value in body.items() if value is not None}
    if unknown := sorted(values.keys() - {*served, *neutral, *own}):
        raise BadCallError(f"not supported: {', '.join(unknown)}")
    for key, value in values.items():
        if key in own and value != own[key]:
            raise BadCallError(f"{key} is {value!r:.80}, but the job samples with {own[key]}: leave it out")
        if key in neutral and value != neutral[key]:
            raise BadCallError(f"{key} is {value!r:.80}, which is not supported: leave it out")
    return values


def max_tokens(body: Mapping[str, object], *keys: str) -> int | None:
    """Return the first of `keys` that is set, a positive integer. Raises BadCallError."""
    for key in keys:
        value = body.get(key)
        if value is None:
            continue
        if type(value) is not int or value < 1:
            raise BadCallError(f"{key} is {value!r:.80}, but must be a positive integer")
        return value
    return None


def stops(body: Mapping[str, object], key: str) -> tuple[str, ...]:
    """Return the texts that end an answer: one, or a list of them. Raises BadCallError."""
    value = body.get(key, [])
    listed_stops = [value] if isinstance(value, str) else value
    if (
        not isinstance(listed_stops, list)
        or len(listed_stops) > MAX_STOPS
        or not all(isinstance(stop, str) and 0 < len(stop) <= MAX_STOP_LENGTH for stop in listed_stops)
    ):
        raise BadCallError(
            f"{key} must be a text of 1 to {MAX_STOP_LENGTH} characters, or a list of at most {MAX_STOPS} of them"
        )
    return tuple(listed_stops)


def flag(body: Mapping[str, object], key: str) -> bool:
    """Return a truth value, false if it is not set. Raises BadCallError."""
    value = body.get(key)
    if value not in (None, True, False):
        raise BadCallError(f"{key} is {value!r:.80}, but must be true or false")
    return bool(value)


def include_usage(body: Mapping[str, object]) -> bool:
    """Return what `stream_options` of OpenAI says. Raises BadCallError."""
    options = body.get("stream_options", {})
    if not isinstance(options, dict) or options.keys() - {"include_usage", "include_obfuscation"}:
        raise BadCallError("stream_options must be an object with include_usage")
    return flag(options, "include_usage")


def model(body: Mapping[str, object]) -> str:
    """Return the name that the answer repeats: there is one model."""
    return str(body.get("model", conversation.MODEL))


def models() -> Json:
    """Return the list of the one model, as both clients read it: some programs ask for it before their first call."""
    name = conversation.MODEL
    entry: Json = {
        "id": name, "object": "model", "created": 0, "owned_by": "rljob",
        "type": "model", "display_name": name, "created_at": "1970-01-01T00:00:00Z", "lifecycle": "active",
    }  # fmt: skip
    return {"object": "list", "data": [entry], "has_more": False, "first_id": name, "last_id": name}


def listed(value: object, key: str) -> list[tuple[object, str]]:
    """Return the items of a list that is not empty, each with its place. Raises BadCallError."""
    if not isinstance(value, list) or not value:
        raise BadCallError(f"{key} must be a list of messages")
    return [(item, f"{key}[{index}]") for index, item in enumerate(value)]


def content(value: object, place: str) -> str:
    """Return the text of a message's content: a text, or a list of text parts. Raises BadCallError."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        texts = [part.get("text") for part in value if isinstance(part, dict)]
        if len(texts) == len(value) and all(isinstance(text, str) for text in texts):
            return "".join(map(str, texts))
    raise BadCallError(f"{place} must be a text or a list of text parts")


def assistant(text: str, *calls: conversation.ToolCall) -> conversation.Message:
    """Return an answer."""
    return conversation.Message(role=conversation.ASSISTANT, content=text, tool_calls=calls)


def tool_result(id_: object, value: object, place: str) -> conversation.Message:
    """Return what a tool gave. Raises BadCallError."""
    if not isinstance(id_, str) or not id_:
        raise BadCallError(f"{place} must name the call that it answers")
    return conversation.Message(role=conversation.TOOL, content=content(value, f"{place}.content"), tool_call_id=id_)


def tool_call(id_: object, name: object, arguments: object, place: str) -> conversation.ToolCall:
    """Return a call of a tool, whose arguments are the JSON text of an object. Raises BadCallError."""
    if not (isinstance(id_, str) and id_ and isinstance(name, str) and name and isinstance(arguments, str)):
        raise BadCallError(f"{place} must have an id, a name and arguments, all of them texts")
    try:
        return conversation.ToolCall(id=id_, name=name, arguments=tools.canonical(arguments))
    except ValueError as error:
        raise BadCallError(f"{place}.arguments must be the JSON text of an object: {error}") from error


def declared(definitions: object, place: str) -> list[tuple[Mapping[str, object], str]]:
    """Return the objects of a list of tools, each with its place. Raises BadCallError."""
    if definitions is None:
        return []
    if not isinstance(definitions, list) or len(definitions) > MAX_TOOLS:
        raise BadCallError(f"{place} must be a list of at most {MAX_TOOLS} functions")
    for index, item in enumerate(definitions):
        if not isinstance(item, dict):
            raise BadCallError(f"{place}[{index}] must be an object")
    return [(item, f"{place}[{index}]") for index, item in enumerate(definitions)]


def tool(name: object, description: object, parameters: object, place: str) -> Json:
    """Return a tool as chat templates read it. Raises BadCallError."""
    if not isinstance(name, str) or not _TOOL_NAME.fullmatch(name):
        raise BadCallError(f"{place}: name is {name!r:.80}, but must be 1 to 64 letters, digits, _ or -")
    if parameters is not None and not isinstance(parameters, dict):
        raise BadCallError(f"{place}: parameters must be an object")
    schema = parameters or {"type": "object", "properties": {}}
    function = {"name": name, "description": str(description or ""), "parameters": schema}
    return {"type": "function", "function": function}


def tools_text(shown: Sequence[Json]) -> str:
    """Return the declared tools as JSON, "" for none."""
    return json.dumps(shown, ensure_ascii=False) if shown else ""


def event(body: Json, *, name: str = "") -> str:
    """Return a server-sent event."""
    return (f"event: {name}\n" if name else "") + f"data: {json.dumps(body)}\n\n"
