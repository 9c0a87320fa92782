"""Calls of tools in a sampled text, in Hermes' notation. Pure.

`<tool_call>{"name": ..., "arguments": {...}}</tool_call>`: Qwen and Hermes models write it. A text is data here: it is
parsed as JSON and never run. Source: the parser `hermes` of vLLM, whose readings these are, the unclosed last call and
the dropped text after a call included.
"""

import dataclasses
import json

OPEN, CLOSE = "<tool_call>", "</tool_call>"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """One call. `arguments` is the JSON text of an object, written as `canonical` writes it."""

    id: str
    name: str
    arguments: str


def extract_calls(text: str, *, prefix: str) -> tuple[str, tuple[ToolCall, ...]]:
    """Return what stands before the first call, and the calls; the whole text and none if one cannot be read.

    `prefix` begins the ids, which number the calls.
    """
    before, opened, rest = text.partition(OPEN)
    if not opened:
        return text, ()
    calls: list[ToolCall] = []
    for number, block in enumerate(rest.split(OPEN)):
        call = _read(block.partition(CLOSE)[0], id_=f"{prefix}-tool-{number}")
        if call is None:
            return text, ()
        calls.append(call)
    return before.rstrip(), tuple(calls)


def canonical(arguments: str) -> str:
    """Return the JSON text of an object in one spelling, so that texts compare. Raises ValueError if it is none."""
    try:
        parsed = json.loads(arguments, parse_constant=_refuse)
        if isinstance(parsed, dict):
            return json.dumps(parsed, ensure_ascii=False)
    except RecursionError as error:
        raise ValueError("arguments are nested too deeply") from error
    raise ValueError(f"arguments are {type(parsed).__name__}, but must be an object")


def _read(body: str, *, id_: str) -> ToolCall | None:
    try:
        parsed = json.loads(body, parse_constant=_refuse)
        if not isinstance(parsed, dict):
            return None
        name, arguments = parsed.get("name"), parsed.get("arguments")
        if not isinstance(name, str) or not name or not isinstance(arguments, dict):
            return None
        return ToolCall(id=id_, name=name, arguments=json.dumps(arguments, ensure_ascii=False))
    except (ValueError, RecursionError):
        # What a model writes may be anything; this text is then an answer and no call.
        return None


def _refuse(constant: str) -> object:
    raise ValueError(f"{constant} is not valid JSON")
