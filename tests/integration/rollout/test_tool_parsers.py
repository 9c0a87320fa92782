"""vLLM's own parsers of tool calls, by name and by the chat template, on what their models write."""

import json
import logging
import pathlib

import pytest
from tokenizers import AddedToken, Tokenizer

from rljob_api import errors
from rljob_testing import models
from rljob_workers.rollout import tokenizer
from rljob_workers.rollout.gateway import tools

FIELD = "spec.workflow.config.proxy.toolParser"
TOOLS = json.dumps(
    [
        {
            "type": "function",
            "function": {
                "name": "add",
                "description": "Adds.",
                "parameters": {"type": "object", "properties": {"a": {"type": "integer"}, "unit": {"type": "string"}}},
            },
        }
    ]
)
SPECIAL = ("<tool_call>", "</tool_call>", "[TOOL_CALLS]", "<|python_tag|>")
ARGUMENTS = {"a": 1, "unit": "km"}
WRITTEN = {
    "hermes": 'So.<tool_call>\n{"name": "add", "arguments": {"a": 1, "unit": "km"}}\n</tool_call>',
    "qwen3_coder": (
        "So.<tool_call>\n<function=add>\n<parameter=a>\n1\n</parameter>\n<parameter=unit>\nkm\n</parameter>\n"
        "</function>\n</tool_call>"
    ),
    "glm45": (
        "So.<tool_call>add\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n"
        "<arg_key>unit</arg_key>\n<arg_value>km</arg_value>\n</tool_call>"
    ),
    "mistral": '[TOOL_CALLS] [{"name": "add", "arguments": {"a": 1, "unit": "km"}}]',
    "llama3_json": '<|python_tag|>{"name": "add", "parameters": {"a": 1, "unit": "km"}}',
}
# The sentences of these models' templates by which they are known.
TEMPLATES = {
    "hermes": "{{ '<tool_call>' }}",
    "qwen3_coder": "{{ '<tool_call><function=' }}",
    "glm45": "{{ '<tool_call><arg_key>' }}",
    "mistral": "{{ '[TOOL_CALLS]' }}",
    "llama3_json": "{{ '<|python_tag|>' }}",
}


def tokens_of(folder: pathlib.Path, template: str) -> tokenizer.PromptTokenizer:
    models.make_tiny_tokenizer(folder)
    made = Tokenizer.from_file(str(folder / "tokenizer.json"))
    made.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    made.save(str(folder / "tokenizer.json"))
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"chat_template": template}))
    return tokenizer.PromptTokenizer(folder, template="chat")


@pytest.mark.covers("workflows 7")
@pytest.mark.parametrize("by", ["name", "chat template"])
@pytest.mark.parametrize("parser", WRITTEN)
def test_what_a_model_writes_is_read_by_name_and_by_its_chat_template(
    parser: str, by: str, tmp_path: pathlib.Path
) -> None:
    tokens = tokens_of(tmp_path, TEMPLATES[parser] if by == "chat template" else "{{ 'no tools' }}")
    found = tokens.tool_notation(parser if by == "name" else tools.AUTO, field=FIELD)
    assert found is not None
    # As an engine's ids are read: special tokens may be what marks a call.
    text = tokens.decode_exact(tokens.encode(WRITTEN[parser]))
    read = tools.calls_in(text, found.parser, tools=TOOLS, prefix="call-0")
    assert read is not None
    content, (call,) = read
    assert (call.name, json.loads(call.arguments), len(call.id)) == ("add", ARGUMENTS, 9)
    assert content == ("So." if WRITTEN[parser].startswith("So.") else "")
    assert tools.calls_in(text, found.parser, tools=TOOLS, prefix="call-0") == read


@pytest.mark.parametrize("parser", [name for name in WRITTEN if name in tools.MARKS])
def test_calls_that_are_whole_are_read_alike_before_the_rest_is_there(parser: str, tmp_path: pathlib.Path) -> None:
    found = tokens_of(tmp_path, "{{ 'no tools' }}").tool_notation(parser, field=FIELD)
    assert found is not None
    assert found.marks is not None
    first, second = WRITTEN[parser], WRITTEN[parser].removeprefix("So.").replace("km", "m")
    whole = tools.calls_in(f"{first}\n{second}", found.parser, tools=TOOLS, prefix="call-0")
    begun = tools.calls_in(first, found.parser, tools=TOOLS, prefix="call-0")
    assert whole is not None
    assert begun == (whole[0], whole[1][:1])
    assert (whole[0], len(whole[1])) == (first[: first.index(found.marks.opens)], 2)
    assert first.endswith(found.marks.closes)


@pytest.mark.parametrize("parser", WRITTEN)
@pytest.mark.parametrize("text", ["three", "", '<tool_call>{"name"', "[TOOL_CALLS] [", "<|python_tag|>{"])
def test_a_text_that_is_no_call_is_an_answer(parser: str, text: str, tmp_path: pathlib.Path) -> None:
    found = tokens_of(tmp_path, "{{ 'no tools' }}").tool_notation(parser, field=FIELD)
    assert found is not None
    assert tools.calls_in(text, found.parser, tools=TOOLS, prefix="call-0") is None


BROKEN = {
    "hermes": '<tool_call>{"name": "a", "arguments": {"x": SECRET</tool_call>',
    "llama3_json": '{"name": "a", "SECRET": 1}',
    "pythonic": "[convert(x=SECRET!)]",
    "poolside_v1": "<tool_call>SECRET</tool_call>",
}


@pytest.mark.parametrize("parser", BROKEN)
def test_a_call_that_cannot_be_read_is_no_line_of_a_log_with_its_text(
    parser: str, tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A policy that learns to make calls writes thousands of them."""
    found = tokens_of(tmp_path, "{{ 'no tools' }}").tool_notation(parser, field=FIELD)
    assert found is not None
    # As processes do: lines of libraries reach the one handler.
    monitored = logging.getLogger("vllm")
    monitored.addHandler(caplog.handler)
    try:
        for _ in range(3):
            tools.calls_in(BROKEN[parser], found.parser, tools=TOOLS, prefix="call-0")
    finally:
        monitored.removeHandler(caplog.handler)
    readers = ("vllm.tool_parsers", "vllm.parser", "rljob_workers")
    lines = [each for each in caplog.records if each.levelno >= logging.WARNING and each.name.startswith(readers)]
    assert len(lines) <= 1, "of three"
    assert "SECRET" not in caplog.text


@pytest.mark.covers("workflows 7")
def test_an_unknown_name_is_refused_with_the_names_that_there_are(tmp_path: pathlib.Path) -> None:
    tokens = tokens_of(tmp_path, "{{ 'no tools' }}")
    with pytest.raises(
        errors.ManifestError, match=rf"{FIELD} is 'hermse', but must be auto or one of .*hermes, .*xlam"
    ):
        tokens.tool_notation("hermse", field=FIELD)


def test_a_chat_template_without_a_known_notation_has_no_parser(tmp_path: pathlib.Path) -> None:
    assert tokens_of(tmp_path, "{{ 'no tools' }}").tool_notation(tools.AUTO, field=FIELD) is None
