"""A fake API server with an operator on it, and what tests touch of both."""

from typing import NamedTuple

from rljob_operator.kube import client
from rljob_testing.fake_api import FakeApi
from rljob_testing.operator_stage import Request, SaidStatus


class Scene(NamedTuple):
    """What all tests of a module share. way: of operators, with the API's faults."""

    api: FakeApi
    connection: client.ApiConnection
    client: client.Client
    said: SaidStatus
    coordinator: str
    requests: list[Request]
