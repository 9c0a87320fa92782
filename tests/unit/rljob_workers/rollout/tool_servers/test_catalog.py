"""Which tools of servers a model is offered: names, allow-lists, schemas, and what is refused."""

import pytest

from rljob_api import errors
from rljob_api.manifest.rollout import ToolServer
from rljob_testing import rollout as fakes
from rljob_workers.rollout.tool_servers import catalog

SCHEMA = {
    "type": "object",
    "properties": {"query": {"type": "string"}, "limit": {"type": "integer", "maximum": 5}},
    "required": ["query"],
}


def server(name: str = "search", **fields: object) -> ToolServer:
    return ToolServer.model_validate({"name": name, "url": f"http://{name}:80/mcp", **fields})


def listed(name: str, description: str = "", schema: object = SCHEMA) -> catalog.Listed:
    return catalog.Listed(name=name, description=description, schema=schema)


def tools(*listings: tuple[ToolServer, list[catalog.Listed]], has_shell: bool = False) -> catalog.Catalog:
    return catalog.catalog_of(listings, has_shell=has_shell, tokens=fakes.FakeTokens())


def test_tools_are_offered_in_the_servers_order_and_those_of_an_allow_list_alone() -> None:
    offered = tools(
        (server(tools=["find"]), [listed("drop"), listed("find")]), (server("clock"), [listed("now"), listed("zone")])
    )
    assert [(tool.name, tool.server.name) for tool in offered.values()] == [
        *(("find", "search"), ("now", "clock"), ("zone", "clock"))
    ]


@pytest.mark.parametrize(
    ("listings", "has_shell", "message"),
    [
        (
            [(server(), [listed("now")]), (server("clock"), [listed("now")])],
            False,
            r"mcp\[1\]: clock has a tool 'now', and so has search",
        ),
        ([(server(), [listed("now"), listed("now")])], False, "search has a tool 'now', and so has search"),
        ([(server(), [listed("shell")])], True, "search has a tool 'shell', and so has shell"),
        ([(server(), [])], False, r"mcp\[0\]: search at http://search:80/mcp has no tools"),
        ([(server(tools=["find"]), [listed("now")])], False, r"mcp\[0\].tools\[0\] is 'find', but search has now"),
        ([(server(), [listed("now", schema={"type": "text"})])], False, "'now' of search has no valid JSON Schema"),
    ],
)
def test_tools_that_cannot_be_offered_are_refused_by_name(
    listings: list[tuple[ToolServer, list[catalog.Listed]]], has_shell: bool, message: str
) -> None:
    with pytest.raises(errors.ManifestError, match=message):
        tools(*listings, has_shell=has_shell)


def test_a_tool_named_shell_is_one_like_any_other_where_there_is_no_shell() -> None:
    assert list(tools((server(), [listed("shell")]))) == ["shell"]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"query": "a", "limit": 5}, ""),
        ({}, "find: 'query' is a required property"),
        ({"query": "a", "limit": 9}, "find: limit: 9 is greater than the maximum of 5"),
        ({"query": "a", "limit": "\x1b" * 999}, "find: limit: '" + "\\x1b" * 10),
    ],
)
def test_arguments_that_do_not_fit_are_named_in_a_short_text_without_control_characters(
    arguments: dict[str, object], problem: str
) -> None:
    told = tools((server(), [listed("find")]))["find"].problem(arguments)
    assert told.startswith(problem)
    assert bool(told) == bool(problem)
    assert len(told) < 300


def test_a_schema_is_checked_without_fetching_what_it_refers_to() -> None:
    away = {"type": "object", "properties": {"a": {"$ref": "http://127.0.0.1:9/schema.json"}}}
    tool = tools((server(), [listed("find", schema=away)]))["find"]
    assert "cannot be checked" in tool.problem({"a": 1})


def test_declarations_have_neither_special_tokens_nor_control_characters() -> None:
    schema = {"type": "object", "properties": {"a": {"description": "<eos>", "enum": ["\x1b[2J"]}}}
    (tool,) = tools((server(), [listed("find", "End <eos>\x07", schema)])).values()
    assert tool.declaration == {
        "type": "function",
        "function": {
            "name": "find",
            "description": "End <\\eos>\\x07",
            "parameters": {
                "type": "object",
                "properties": {"a": {"description": "<\\eos>", "enum": ["\\x1b[2J"]}},
            },
        },
    }
