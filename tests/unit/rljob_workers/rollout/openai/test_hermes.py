"""Calls of tools in sampled text: what is read, and that nothing a model writes is more than text."""

import json

import hypothesis
import pytest
from hypothesis import strategies as st

from rljob_workers.rollout.openai import tools

ADD = '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": [2]}}\n</tool_call>'


def names(calls: tuple[tools.ToolCall, ...]) -> list[str]:
    return [call.name for call in calls]


def test_the_text_before_the_first_call_is_the_content_and_calls_are_numbered() -> None:
    text = f"Let me see.\n{ADD}\n" + '<tool_call>{"name": "stop", "arguments": {}}</tool_call>'
    content, calls = tools.extract_calls(text, prefix="call-3")
    assert content == "Let me see."
    assert [(call.id, call.name, json.loads(call.arguments)) for call in calls] == [
        ("call-3-tool-0", "add", {"a": 1, "b": [2]}),
        ("call-3-tool-1", "stop", {}),
    ]


def test_a_last_call_that_was_not_closed_counts() -> None:
    assert names(tools.extract_calls(ADD.removesuffix("</tool_call>"), prefix="c")[1]) == ["add"]


@pytest.mark.covers("workflows 7")
@pytest.mark.parametrize(
    "body",
    [
        "add(1, 2)",
        "[]",
        '{"name": "add"}',
        '{"name": "", "arguments": {}}',
        '{"name": "add", "arguments": "{}"}',
        '{"name": "add", "arguments": {"a": NaN}}',
        '{"name": "add", "arguments": {"a": 1}',
        "[" * 100_000,
        '{"name": "add", "arguments": {"a": ' + "1" * 5_000 + "}}",
    ],
)
def test_where_one_call_cannot_be_read_the_whole_text_is_the_answer(body: str) -> None:
    text = f"{ADD}<tool_call>{body}</tool_call>"
    assert tools.extract_calls(text, prefix="c") == (text, ())


@hypothesis.given(text=st.text())
def test_a_text_without_the_mark_is_returned_as_it_is(text: str) -> None:
    hypothesis.assume(tools.OPEN not in text)
    assert tools.extract_calls(text, prefix="c") == (text, ())


@hypothesis.given(st.dictionaries(st.text(), st.integers() | st.text() | st.booleans()))
def test_arguments_compare_whatever_the_spaces_between_them(arguments: dict[str, object]) -> None:
    loose, tight = json.dumps(arguments, indent=3), json.dumps(arguments, separators=(",", ":"))
    assert tools.canonical(loose) == tools.canonical(tight)
    assert json.loads(tools.canonical(tight)) == arguments


@pytest.mark.parametrize("arguments", ["", "[1]", "{", "[" * 100_000, '{"a": Infinity}'])
def test_arguments_that_are_no_object_are_refused(arguments: str) -> None:
    with pytest.raises(ValueError, match="arguments|JSON|Expecting"):
        tools.canonical(arguments)
