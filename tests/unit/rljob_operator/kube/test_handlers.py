"""What Kopf is asked to do with events, at the start and at the end; the wiring is proved by the integration tests."""

import asyncio
import json
import pathlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, cast

import kopf
import pytest
from kubernetes.aio.client import Configuration

from rljob_operator.kube import client, kinds, watch
from rljob_operator.kube.client import ApiConnection
from rljob_operator.kube.kinds import Kind


class Recorded:
    """Work that records what it is handed. A fake."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.stopped = asyncio.Event()
        self.can_stream = False

    def on_object(self, kind: Kind, deleted: bool, raw: Mapping[str, Any]) -> None:
        self.events.append(f"{kind.kind} {raw['name']}{' deleted' if deleted else ''}")

    async def start(self) -> None:
        self.events.append("start")

    @property
    def also_watched(self) -> Sequence[Kind]:
        return (kinds.QUEUED,)

    async def streams(self) -> bool:
        return self.can_stream

    async def finish(self) -> None:
        self.events.append("finish")


def login(**_: Any) -> kopf.ConnectionInfo:
    return kopf.ConnectionInfo(server="http://127.0.0.1")


@pytest.mark.parametrize(
    ("type_", "said"), [(None, "Pod p"), ("ADDED", "Pod p"), ("MODIFIED", "Pod p"), ("DELETED", "Pod p deleted")]
)
async def test_every_event_is_handed_on_and_nothing_is_returned(type_: str | None, said: str) -> None:
    work = Recorded()
    seen = watch.event_handler(kinds.POD, work)
    returned: object = await asyncio.ensure_future(seen(event={"type": type_, "object": {"name": "p"}}))
    assert returned is None
    assert work.events == [said]


def test_there_is_a_handler_for_each_watched_kind_and_none_that_changes_objects() -> None:
    made = watch.registry(Recorded(), login=login)
    assert len(made._watching.get_all_handlers()) == len(kinds.WATCHED) + len(kinds.RUNTIMES)
    of_namespaces = watch.registry(Recorded(), login=login, namespaced=True)
    assert len(of_namespaces._watching.get_all_handlers()) == len(kinds.WATCHED) + 1, "no right to the cluster's"
    assert len(made._activities.get_all_handlers()) == 3, "log in, start, finish"
    for other in (made._changing, made._spawning, made._indexing, made._webhooks):
        assert not list(other.get_all_handlers())


@pytest.mark.parametrize("can_stream", [True, False])
async def test_lists_are_streamed_where_the_server_can_and_come_in_pages_where_it_cannot(can_stream: bool) -> None:
    work, settings = Recorded(), watch.settings(namespaced=False)
    work.can_stream = can_stream
    made = watch.registry(work, login=login)
    (start,) = (one for one in made._activities.get_all_handlers() if one.id == "start")
    await cast("Callable[..., Awaitable[None]]", start.fn)(settings=settings)
    assert settings.watching.initial_streaming is can_stream
    assert settings.watching.chunk_size == client.PAGE
    selector = kinds.selector_of(kinds.QUEUED)
    assert settings.watching.label_selectors["kueue.x-k8s.io", "v1beta2", "workloads"] == selector
    assert len(made._watching.get_all_handlers()) == len(kinds.WATCHED) + len(kinds.RUNTIMES) + 1


async def test_a_process_whose_user_has_no_name_serves_under_its_host_s(monkeypatch: pytest.MonkeyPatch) -> None:
    def nameless() -> str:
        raise KeyError("getpwuid(): uid not found: 65532")

    monkeypatch.setattr("getpass.getuser", nameless)
    work = Recorded()
    work.stopped.set()
    connection = ApiConnection(Configuration(host="http://127.0.0.1:9"), in_cluster=False)
    await asyncio.wait_for(watch.serve(work, connection=connection, namespaces=["default"]), timeout=60)
    assert work.events == ["start", "finish"]


async def test_a_kubeconfig_with_a_token_logs_kopf_in_as_whom_the_client_is(tmp_path: pathlib.Path) -> None:
    kubeconfig = {
        "clusters": [{"name": "one", "cluster": {"server": "https://127.0.0.1:9"}}],
        "users": [{"name": "me", "user": {"token": "not-a-real-one"}}],
        "contexts": [{"name": "one", "context": {"cluster": "one", "user": "me"}}],
        "current-context": "one",
    }
    (tmp_path / "kubeconfig").write_text(json.dumps(kubeconfig))
    connection = await client.connect(str(tmp_path / "kubeconfig"))
    login_by_files = cast(Callable[[], Awaitable[kopf.ConnectionInfo]], watch.login(connection))
    found = await login_by_files()
    assert (found.server, found.token) == ("https://127.0.0.1:9", "not-a-real-one")
