"""A server of the Model Context Protocol: `python -m rljob_testing.tool_server [PORT]`, without one by its standard
streams. Notes are a session's own.
"""

import os
import subprocess
import sys
import time

import mcp_types
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError

server = MCPServer("notes", log_level="ERROR")
notes: dict[str, list[str]] = {}


@server.tool()
def note(text: str, ctx: Context) -> str:
    """Write a note and return all of this session, and this process."""
    mine = notes.setdefault((ctx.headers or {}).get("mcp-session-id", ""), [])
    mine.append(text)
    return f"{','.join(mine)} {os.getpid()}"


@server.tool()
def variables(name: str) -> str:
    """Return a variable of this process."""
    return os.environ.get(name, "(unset)")


@server.tool()
def fail(why: str) -> str:
    """End with an error."""
    raise ToolError(why)


@server.tool()
def sleep(seconds: float) -> str:
    """Return after so long."""
    time.sleep(seconds)
    return "awake"


@server.tool()
def show() -> list[mcp_types.TextContent | mcp_types.ImageContent]:
    """Return a text with control characters, and an image."""
    return [
        mcp_types.TextContent(text="\x1b[1mbold<eos>"),
        mcp_types.ImageContent(data="aGk=", mime_type="image/png"),
    ]


@server.tool()
def leave(code: int) -> str:
    """End this process."""
    os._exit(code)


@server.tool()
def spawn() -> str:
    """Start a process and return its id."""
    return str(subprocess.Popen(["sleep", "600"]).pid)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        server.run("streamable-http", port=int(sys.argv[1]), max_sessions=None)
    else:
        server.run("stdio")
