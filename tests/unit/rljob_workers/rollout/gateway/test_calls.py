"""Bodies of the APIs as calls: what is read, that answers come back as they went out, what is refused by name."""

import json

import pytest

from rljob_api import types
from rljob_workers.rollout.gateway import conversation
from rljob_workers.rollout.gateway.dialects import fields, registry

SAMPLING = types.Sampling()
HI = conversation.Message(role="user", content="hi")
ADD = conversation.ToolCall(id="c", name="add", arguments='{"a": 1}')
RESULT = conversation.Message(role="tool", content="3", tool_call_id="c")
SHOWN = [
    {
        "type": "function",
        "function": {"name": "add", "description": "Adds.", "parameters": {"type": "object", "properties": {}}},
    }
]


def read(api: str, **body: object) -> conversation.Call:
    return registry.DIALECTS[api].read(body, SAMPLING)


def test_messages_of_anthropic_are_those_of_a_chat_template() -> None:
    call = read(
        "messages",
        system=[{"type": "text", "text": "be "}, {"type": "text", "text": "good", "cache_control": {}}],
        messages=[
            {"role": "user", "content": [{"type": "text", "text": "h"}, {"type": "text", "text": "i"}]},
            {
                "role": "assistant",
                "content": [
                    {"type": "text", "text": "so"},
                    {"type": "tool_use", "id": "c", "name": "add", "input": {"a": 1}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "c", "content": [{"type": "text", "text": "3"}]},
                    {"type": "text", "text": "well"},
                ],
            },
        ],
        tools=[{"name": "add", "description": "Adds."}],
        max_tokens=5,
        stream=True,
        metadata={"user_id": "u"},
        stop_sequences=["END"],
    )
    assert call.messages == (
        conversation.Message(role="system", content="be good"),
        HI,
        conversation.Message(role="assistant", content="so", tool_calls=(ADD,)),
        RESULT,
        conversation.Message(role="user", content="well"),
    )
    assert (call.max_tokens, call.stream, json.loads(call.tools), call.stops) == (5, True, SHOWN, ("END",))


@pytest.mark.parametrize("text", ["", "so"])
@pytest.mark.parametrize("calls", [(), (ADD,)])
def test_an_answer_that_a_client_hands_back_is_the_answer_that_it_got(
    text: str, calls: tuple[conversation.ToolCall, ...]
) -> None:
    output = conversation.Message(role="assistant", content=text, tool_calls=calls)
    answer = conversation.Answer(
        id="i", output=output, truncated=False, num_prompt_tokens=1, num_output_tokens=1, created_at_s=0
    )
    asked: dict[str, object] = {"role": "user", "content": "hi"}

    chat = registry.DIALECTS["chat/completions"]
    choices = chat.answer(read("chat/completions", messages=[asked]), answer)["choices"]
    assert isinstance(choices, list)
    assert read("chat/completions", messages=[asked, choices[0]["message"]]).messages == (HI, output)

    items = registry.DIALECTS["responses"].answer(read("responses", input=[asked]), answer)["output"]
    assert isinstance(items, list)
    assert read("responses", input=[asked, *items]).messages == (HI, output)

    content = registry.DIALECTS["messages"].answer(read("messages", messages=[asked]), answer)["content"]
    handed_back = [asked, {"role": "assistant", "content": content}, asked]
    assert read("messages", messages=handed_back).messages == (HI, output, HI)


@pytest.mark.parametrize(("prompt", "expected"), [("hi", "hi"), (["hi"], "hi"), ([5, 6], (5, 6)), ([[5, 6]], (5, 6))])
def test_a_plain_prompt_is_a_text_or_ids(prompt: object, expected: object) -> None:
    call = read("completions", prompt=prompt, echo=False, logprobs=None)
    assert (call.prompt, call.messages) == (expected, ())


ASKED = {"messages": [{"role": "user", "content": "x"}]}
TOOL = {"name": "add", "input_schema": {"type": "object"}}


@pytest.mark.parametrize(
    ("api", "body", "said"),
    [
        ("completions", {}, "prompt must be one text or one list of token ids"),
        ("completions", {"prompt": ["a", "b"]}, "prompt must be one text"),
        ("completions", {"prompt": [1, -1]}, "prompt must be one text"),
        ("completions", {"prompt": [True]}, "prompt must be one text"),
        ("completions", {"prompt": "a", "echo": True}, "echo is True, which is not supported"),
        ("completions", {"prompt": "a", "logprobs": 1}, "not supported: logprobs"),
        ("completions", {"prompt": "a", "stream_options": {"x": 1}}, "stream_options must be an object"),
        ("responses", {"input": "a", "previous_response_id": "r"}, "not supported: previous_response_id"),
        ("responses", {"input": [{"type": "reasoning"}]}, "input[0] must be a message, a function_call"),
        ("responses", {"input": "a", "text": {"format": {"type": "json_object"}}}, "text is {'format'"),
        ("messages", {}, "messages must be a list"),
        ("messages", {"messages": [{"role": "system", "content": "x"}]}, "messages[0] must be an object whose role"),
        ("messages", {"messages": [{"role": "user", "content": []}]}, "messages[0].content is empty"),
        (
            "messages",
            {"messages": [{"role": "user", "content": [{"type": "image"}]}]},
            "messages[0].content[0] must be of type text or tool_result",
        ),
        (
            "messages",
            {"messages": [{"role": "assistant", "content": [{"type": "thinking"}]}]},
            "messages[0].content[0] must be of type text or tool_use",
        ),
        (
            "messages",
            {"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]},
            "messages[0].content[0] must name the call",
        ),
        ("messages", {"messages": [{"role": "assistant", "content": "x"}]}, "answers are not begun for the model"),
        ("messages", {**ASKED, "stop_sequences": ["x", ""]}, "stop_sequences must be a text of 1 to 256"),
        ("chat/completions", {**ASKED, "stop": ["x"] * 17}, "stop must be a text of 1 to 256 characters, or a list"),
        ("completions", {"prompt": "a", "stop": [1]}, "stop must be a text"),
        ("responses", {"input": "a", "stop": "x"}, "not supported: stop"),
        ("messages", {**ASKED, "thinking": {"type": "enabled"}}, "thinking is {'type': 'enabled'}, which is not"),
        ("messages", {**ASKED, "temperature": 0.5}, "temperature is 0.5, but the job samples with 1.0"),
        ("messages", {**ASKED, "tool_choice": {"type": "any"}}, "tool_choice is {'type': 'any'}, but"),
        ("messages", {**ASKED, "tools": [{**TOOL, "type": "bash_20250124"}]}, "tools[0]: type is 'bash_20250124'"),
        ("messages", {**ASKED, "tools": [{**TOOL, "strict": True}]}, "tools[0]: not supported: strict"),
        ("messages", {**ASKED, "tools": [3]}, "tools[0] must be an object"),
    ],
)  # fmt: skip
def test_what_is_not_served_is_refused_by_name(api: str, body: dict[str, object], said: str) -> None:
    with pytest.raises(fields.BadCallError) as refused:
        read(api, **body)
    assert said in str(refused.value)
