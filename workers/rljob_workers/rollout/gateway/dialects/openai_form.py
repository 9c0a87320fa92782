"""What OpenAI's three APIs have in common: their tools, messages, endings, counts and refusals. Pure."""

from collections.abc import Mapping

from rljob_workers.rollout.gateway import conversation
from rljob_workers.rollout.gateway.dialects import fields

ROLES = ("system", "developer", "user", "assistant", "tool")
_TOOL_KEYS = {"name", "description", "parameters", "strict"}
# Fields that name the caller, what is kept of the call, or how soon and from which cache it is answered: what is
# sampled depends on none of them.
LABELS = frozenset(
    {
        "model", "user", "metadata", "store", "safety_identifier", "service_tier", "prompt_cache_key",
        "prompt_cache_options", "prompt_cache_retention",
    }
)  # fmt: skip
END = "data: [DONE]\n\n"


class Refusals:
    """How OpenAI says that a call was not served."""

    def refusal(self, status: int, code: str, sentence: str) -> fields.Json:
        """Return the body. Source: OpenAI's API reference, and its client's `APIStatusError`."""
        kind = "server_error" if status >= 500 else "invalid_request_error"
        return {"error": {"message": sentence, "type": kind, "param": None, "code": code}}


def message(item: object, place: str) -> conversation.Message:
    """Return a message of a conversation. Raises BadCallError."""
    if not isinstance(item, dict) or item.get("role") not in ROLES:
        raise fields.BadCallError(f"{place} must be an object whose role is one of {', '.join(ROLES)}")
    role = conversation.SYSTEM if item["role"] == "developer" else str(item["role"])
    if role == conversation.TOOL:
        return fields.tool_result(item.get("tool_call_id"), item.get("content"), place)
    calls = item.get("tool_calls") if role == conversation.ASSISTANT else None
    if not calls:
        return conversation.Message(role=role, content=fields.content(item.get("content"), f"{place}.content"))
    if not isinstance(calls, list):
        raise fields.BadCallError(f"{place}.tool_calls must be a list")
    text = item.get("content")
    return fields.assistant(
        "" if text is None else fields.content(text, f"{place}.content"),
        *(_tool_call(call, f"{place}.tool_calls[{index}]") for index, call in enumerate(calls)),
    )


def _tool_call(call: object, place: str) -> conversation.ToolCall:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(call, dict) or not isinstance(function, dict):
        raise fields.BadCallError(f"{place} must have an id and a function")
    return fields.tool_call(call.get("id"), function.get("name"), function.get("arguments"), place)


def tools(body: Mapping[str, object], *, nested: bool) -> str:
    """Return the declared tools, "" for none. Raises BadCallError.

    `nested`: name and parameters stand below `function`, as in chat completions; in responses they do not.
    """
    choice = body.get("tool_choice")
    if choice not in (None, "auto", "none"):
        raise fields.BadCallError(
            f"tool_choice is {choice!r:.80}, but answers are sampled as they are: use auto or none"
        )
    shown = [_tool(item, place, nested=nested) for item, place in fields.declared(body.get("tools"), "tools")]
    return "" if choice == "none" else fields.tools_text(shown)


def _tool(item: Mapping[str, object], place: str, *, nested: bool) -> fields.Json:
    if item.get("type") != "function":
        raise fields.BadCallError(f"{place} must be an object of type function")
    function = item.get("function") if nested else {key: value for key, value in item.items() if key != "type"}
    if not isinstance(function, dict):
        raise fields.BadCallError(f"{place}.function must be an object")
    if unknown := sorted(function.keys() - _TOOL_KEYS):
        raise fields.BadCallError(f"{place}: not supported: {', '.join(unknown)}")
    if function.get("strict"):
        raise fields.BadCallError(f"{place}: strict is true, but answers are sampled as they are: leave it out")
    return fields.tool(function.get("name"), function.get("description"), function.get("parameters"), place)


def ending(answer: conversation.Answer) -> str:
    """Return `finish_reason`."""
    if answer.truncated:
        return "length"
    return "tool_calls" if answer.output.tool_calls else "stop"


def usage(answer: conversation.Answer) -> dict[str, int]:
    """Return the counts of tokens."""
    prompt, completion = answer.num_prompt_tokens, answer.num_output_tokens
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def head(call: conversation.Call, answer: conversation.Opening, kind: str) -> fields.Json:
    """Return what answers and chunks of completions begin with."""
    return {"id": answer.id, "object": kind, "created": answer.created_at_s, "model": call.model}
