"""Fakes of MCP servers: the tools of each are named `<server>-<tool>`, and give what they were made with."""

from collections.abc import Mapping, Sequence

from rljob_api import errors
from rljob_api.manifest.rollout import ToolServer
from rljob_workers.rollout.tool_servers import catalog
from rljob_workers.rpc import environment

ANY = {"type": "object"}


class FakeNetwork:
    """All servers. answers: by tool; an error is raised. refusals: raised one after the other where a session opens.

    `events` lists what was asked.
    """

    def __init__(
        self, answers: Mapping[str, str | errors.RLJobError | environment.Reply], *, schema: Mapping[str, object] = ANY
    ) -> None:
        self.answers, self.schema = answers, schema
        self.events: list[str] = []
        self.refusals: list[errors.RLJobError] = []

    async def connect(self, server: ToolServer) -> "FakeSession":
        if self.refusals:
            raise self.refusals.pop(0)
        self.events.append(f"open {server.name}")
        return FakeSession(self, server.name)


class FakeSession:
    def __init__(self, network: FakeNetwork, server: str) -> None:
        self.network, self.server = network, server

    async def tools(self) -> Sequence[catalog.Listed]:
        return [
            catalog.Listed(name=f"{self.server}-{name}", description="", schema=self.network.schema)
            for name in self.network.answers
        ]

    async def call(self, name: str, arguments: Mapping[str, object], *, timeout_s: float) -> environment.Reply:
        assert timeout_s > 0, "a call has a time"
        self.network.events.append(f"{name} {dict(arguments)}")
        answer = self.network.answers[name.partition("-")[2]]
        if isinstance(answer, errors.RLJobError):
            raise answer
        return answer if isinstance(answer, environment.Reply) else environment.Reply(stdout=answer.encode())

    async def close(self) -> None:
        self.network.events.append(f"close {self.server}")
