"""An agent of the `smolagents` package: its ToolCallingAgent, with a tool that adds. It runs no code of the model's."""

from typing import ClassVar

import sessions
import smolagents

MOST_STEPS = 2
CALLED = 0.25


class Add(smolagents.Tool):
    """Adds two numbers, and counts how often."""

    name = "add"
    description = "Add two numbers."
    inputs: ClassVar = {
        "first": {"type": "integer", "description": "A number."},
        "second": {"type": "integer", "description": "Another number."},
    }
    output_type = "integer"

    def __init__(self) -> None:
        super().__init__()
        self.num_calls = 0

    def forward(self, first: int, second: int) -> int:
        """Return the sum."""
        self.num_calls += 1
        return first + second


def play(session: sessions.Session) -> float:
    """Return 1 for the sum as the final answer, else 0.25 if the tool was called."""
    model = smolagents.OpenAIModel(
        sessions.MODEL,
        api_base=session.base_url,
        api_key=session.api_key,
        client_kwargs={"max_retries": 0},
        # Its default is `required`, which would sample another distribution.
        tool_choice="auto",
        retry=False,
    )
    add = Add()
    agent = smolagents.ToolCallingAgent(
        tools=[add], model=model, max_steps=MOST_STEPS, verbosity_level=smolagents.LogLevel.OFF
    )
    answer = str(agent.run(f"Use the tool add: {session.question}"))
    return 1.0 if session.is_right(answer) else CALLED * bool(add.num_calls)


if __name__ == "__main__":
    sessions.serve(play, num_sessions=4)
