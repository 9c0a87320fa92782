"""An agent of the `langchain` package with the tools of a server of MCP: `mcp-server-calculator`, over its standard
input and output.
"""

import asyncio
import sys

import langchain.agents
import langchain_core.messages as messages
import langchain_mcp_adapters.client as mcp_client
import langchain_mcp_adapters.tools as mcp_tools
import langchain_openai
import langgraph.errors
import sessions

TOOL = "calculate"
CALLED = 0.25
# Of the graph: a model's turn and its tools are two.
MOST_STEPS = 6
# What a model asks it to evaluate may take for ever.
SERVER = {
    "transport": "stdio",
    "command": "prlimit",
    "args": ["--cpu=20", "--as=2000000000", sys.executable, "-m", "mcp_server_calculator"],
}


def conversation(session: sessions.Session) -> list[messages.BaseMessage]:
    """Return sums that are worked out by the tool, and the one that is asked for."""
    shown: list[messages.BaseMessage] = []
    for number, (question, answer) in enumerate(session.examples):
        call = messages.ToolCall(name=TOOL, args={"expression": question}, id=f"example-{number}")
        shown += [
            messages.HumanMessage(f"{question} ="),
            messages.AIMessage("", tool_calls=[call]),
            messages.ToolMessage(answer, tool_call_id=call["id"]),
            messages.AIMessage(answer),
        ]
    return [*shown, messages.HumanMessage(f"{session.question} =")]


async def converse(session: sessions.Session) -> float:
    """Return 1 for the sum, else 0.25 if the server was asked."""
    model = langchain_openai.ChatOpenAI(
        model=sessions.MODEL, base_url=session.base_url, api_key=session.api_key, max_retries=0
    )
    client = mcp_client.MultiServerMCPClient({"calculator": SERVER})
    prompt = conversation(session)
    async with client.session("calculator") as server:
        agent = langchain.agents.create_agent(model, await mcp_tools.load_mcp_tools(server))
        try:
            state = await agent.ainvoke({"messages": prompt}, {"recursion_limit": MOST_STEPS})
        except langgraph.errors.GraphRecursionError:
            # It was still calling the tool.
            return CALLED
    added = state["messages"][len(prompt) :]
    if session.is_right(str(added[-1].content)):
        return 1.0
    return CALLED * any(isinstance(message, messages.ToolMessage) for message in added)


def play(session: sessions.Session) -> float:
    """Return the reward."""
    return asyncio.run(converse(session))


if __name__ == "__main__":
    sessions.serve(play, num_sessions=4)
