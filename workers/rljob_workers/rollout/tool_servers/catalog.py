"""Which tools a model is offered: what the servers list, by the manifest's allow-lists, each name once. Pure.

The list is taken at the rollout's start and stays: a prompt that changed within a run would be another task.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence

from rljob_api import errors
from rljob_api.manifest.rollout import SHELL, ToolServer
from rljob_workers.rollout.episodes import protocols, shell_tool

FIELD = "spec.workflow.config.mcp"
# Of a list of names in a message.
_MOST_CHARS = 256


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """What a server says of a tool. schema: JSON Schema of its arguments."""

    name: str
    description: str
    schema: Mapping[str, object]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A tool that the model may call. declaration: as a chat template takes it. misfit: says in words what of a call's
    arguments does not fit the tool's schema, nothing if all does.
    """

    name: str
    server: ToolServer
    declaration: Mapping[str, object]
    misfit: Callable[[Mapping[str, object]], str]

    def problem(self, arguments: Mapping[str, object]) -> str:
        """Return what is wrong with a call's arguments, for the model to read; empty if nothing is."""
        misfit = shell_tool.escaped(self.misfit(arguments).encode(errors="backslashreplace"))
        return f"{self.name}: {misfit}" if misfit else ""


Catalog = Mapping[str, Tool]


def catalog_of(
    listings: Sequence[tuple[ToolServer, Sequence[Listed]]], *, has_shell: bool, tokens: protocols.Tokens
) -> Catalog:
    """Return the tools by their names, in the servers' order. Raises ManifestError with all that is wrong."""
    problems: list[str] = []
    tools: dict[str, Tool] = {}
    for index, (server, listed) in enumerate(listings):
        field = f"{FIELD}[{index}]"
        problems += _selection_problems(server, listed, field=field)
        for each in (each for each in listed if server.tools is None or each.name in server.tools):
            if other := SHELL if has_shell and each.name == SHELL else _server_of(tools, each.name):
                problems.append(
                    f"{field}: {server.name} has a tool '{each.name}', and so has {other}: a model cannot tell them"
                    f" apart; name the others of {server.name} in {field}.tools"
                )
                continue
            try:
                tools[each.name] = _tool(server, each, tokens)
            except ValueError as error:
                problems.append(
                    f"{field}: tool '{each.name}' of {server.name} has no valid JSON Schema of its arguments"
                    f" ({error}): correct it, or leave the tool out of {field}.tools"
                )
    if problems:
        raise errors.ManifestError(*problems)
    return tools


def _selection_problems(server: ToolServer, listed: Sequence[Listed], *, field: str) -> Iterator[str]:
    names = [each.name for each in listed]
    if not names:
        yield f"{field}: {server.name} at {server.place} has no tools: remove it, or look at the server"
        return
    for index, name in enumerate(server.tools or ()):
        if name not in names:
            yield f"{field}.tools[{index}] is '{name}', but {server.name} has {', '.join(names)[:_MOST_CHARS]}"


def _server_of(tools: Catalog, name: str) -> str:
    return tools[name].server.name if name in tools else ""


def _tool(server: ToolServer, listed: Listed, tokens: protocols.Tokens) -> Tool:
    # Its library is where rollouts run, and not where a manifest's form alone is checked.
    from rljob_workers.rollout.tool_servers import arguments

    function = {"name": listed.name, "description": listed.description, "parameters": listed.schema}
    return Tool(
        name=listed.name,
        server=server,
        declaration={"type": "function", "function": _plain(function, tokens)},
        misfit=arguments.Arguments(listed.schema).problem,
    )


def _plain(value: object, tokens: protocols.Tokens) -> object:
    """Return a JSON value whose texts have neither special tokens nor control characters."""
    if isinstance(value, str):
        return tokens.plain(shell_tool.escaped(value.encode(errors="backslashreplace")))
    if isinstance(value, Mapping):
        return {str(_plain(key, tokens)): _plain(each, tokens) for key, each in value.items()}
    if isinstance(value, Sequence):
        return [_plain(each, tokens) for each in value]
    return value
