"""Calls of tools in sampled text: what is taken of what a parser read, and which parser a chat template asks for."""

import json

import hypothesis
import pytest
from hypothesis import strategies as st

from rljob_testing import rollout as fakes
from rljob_workers.rollout.gateway import conversation, tools

ADD = '<tool_call>{"name": "add", "arguments": {"a": 1, "b": [2]}}</tool_call>'


def read(text: str) -> tuple[str, tuple[conversation.ToolCall, ...]] | None:
    return tools.calls_in(text, fakes.read_marked, tools="[]", prefix="call-3")


def test_calls_have_ids_that_are_the_same_in_every_run_and_as_long_as_mistrals() -> None:
    found = read(f"Let me see.\n{ADD}" + '<tool_call>{"name": "stop", "arguments": {}}</tool_call>')
    assert found is not None
    content, (add, stop) = found
    assert (content, add.name, json.loads(add.arguments), stop.name) == (
        "Let me see.", "add", {"a": 1, "b": [2]}, "stop",
    )  # fmt: skip
    assert (len(add.id), len(stop.id), add.id == stop.id) == (9, 9, False)
    assert read(ADD) == ("", (add,))


def test_an_id_that_the_model_wrote_is_kept() -> None:
    def parser(text: str, **_: str) -> tools.Read:
        return tools.Read(content="", calls=[("add", "{}", text)])

    found = tools.calls_in("functions.add:0", parser, tools="[]", prefix="p")
    assert found is not None
    assert found[1][0].id == "functions.add:0"


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
    assert read(f"{ADD}<tool_call>{body}</tool_call>") is None


def test_a_text_without_calls_is_an_answer() -> None:
    assert read("three") is None


@hypothesis.given(st.dictionaries(st.text(), st.integers() | st.text() | st.booleans()))
def test_arguments_compare_whatever_the_spaces_between_them(arguments: dict[str, object]) -> None:
    loose, tight = json.dumps(arguments, indent=3), json.dumps(arguments, separators=(",", ":"))
    assert tools.canonical(loose) == tools.canonical(tight)
    assert json.loads(tools.canonical(tight)) == arguments


@pytest.mark.parametrize("arguments", ["", "[1]", "{", "[" * 100_000, '{"a": Infinity}'])
def test_arguments_that_are_no_object_are_refused(arguments: str) -> None:
    with pytest.raises(ValueError, match="arguments|JSON|Expecting"):
        tools.canonical(arguments)


@pytest.mark.parametrize(
    ("template", "parser"),
    [
        # What the templates of Qwen2.5 and Qwen3, Qwen3-Coder, Mistral v0.3, Llama 3.1 and 3.2, and SmolLM2 say.
        ('return a json object ... within <tool_call></tool_call> XML tags:\\n<tool_call>\\n{"name":', "hermes"),
        ("<tool_call>\\n<function=example_function_name>\\n<parameter=example_parameter_1>", "qwen3_coder"),
        ('{{- "[TOOL_CALLS] [" }}', "mistral"),
        ("{{- '<|python_tag|>' + tool_call.name + '.call(' }}", "llama3_json"),
        ('Respond in the format {"name": function name, "parameters": dictionary of argument name and its value}.',
         "llama3_json"),
        ("{% for message in messages %}{{ '<|im_start|>' + message['role'] }}{% endfor %}", None),
    ],
)  # fmt: skip
def test_a_chat_template_says_which_parser_reads_its_models(template: str, parser: str | None) -> None:
    assert tools.parser_of(template) == parser
