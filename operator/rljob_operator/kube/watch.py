"""What Kopf is given: where to log in, what to watch, and to hand every event on. It decides nothing
(docs/design/operator.md#s-1-1 to #s-1-5).

Handlers return None, because Kopf would write anything else into status, and never raise, because it would pause.
"""

import asyncio
import itertools
import socket
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, cast

import kopf

from rljob_operator.kube import kinds
from rljob_operator.kube.client import PAGE, ApiConnection
from rljob_operator.kube.kinds import Kind

PREFIX = "operator.rljob.dev"
# Seconds between tries of a watch that the API server refuses or does not answer; the last one for ever.
_AGAIN_S = (1, 2, 4, 8, 16, 30)


class _Again(Iterable[float]):
    """Waits without end. Kopf ends, and with it the process, once one watch has been refused often enough: a namespace
    that is gone, or an API server that is away for a minute, would end the work for all others.
    """

    def __iter__(self) -> Iterator[float]:
        """Return the seconds before each further try."""
        return itertools.chain(_AGAIN_S, itertools.repeat(_AGAIN_S[-1]))


class Work(Protocol):
    """What is handed the events."""

    @property
    def stopped(self) -> asyncio.Event:
        """Is set when the process should end."""

    def on_object(self, kind: Kind, deleted: bool, raw: Mapping[str, Any]) -> None:
        """Take an object that a watch saw, or saw deleted. It must not raise."""

    async def start(self) -> None:
        """Begin; no watch is opened before it returns."""

    @property
    def also_watched(self) -> Sequence[Kind]:
        """Return the optional kinds to watch; known once it was started."""

    async def streams(self) -> bool:
        """Return whether watches may begin with all that is there, instead of lists. It must not raise."""

    async def finish(self) -> None:
        """Begin nothing any more, and end what runs."""


def registry(
    work: Work,
    *,
    login: Callable[..., kopf.ConnectionInfo | None],
    namespaced: bool = False,
    namespace_selector: str = "",
) -> kopf.OperatorRegistry:
    """Return the handlers: log in, start before the first watch, one per watched kind, finish at the end."""
    of_namespaces = (kinds.NAMESPACE,) if namespace_selector else ()
    of_runtimes = (kind for kind in kinds.RUNTIMES if kind is kinds.RUNTIME or not namespaced)
    handlers = kopf.OperatorRegistry()

    async def started(settings: kopf.OperatorSettings, **_: Any) -> None:
        await work.start()
        for kind in work.also_watched:
            _watch(kind, work, handlers)
            settings.watching.label_selectors[kind.group, kind.version, kind.plural] = kinds.selector_of(kind)
        settings.watching.initial_streaming = await work.streams()

    async def ended(**_: Any) -> None:
        # Here, and not after Kopf: it cancels every task that began after it.
        await work.finish()

    kopf.on.login(registry=handlers, id="login")(login)
    kopf.on.startup(registry=handlers, id="start")(started)
    kopf.on.cleanup(registry=handlers, id="finish")(ended)
    for kind in (*of_namespaces, *kinds.WATCHED, *of_runtimes):
        _watch(kind, work, handlers)
    return handlers


def _watch(kind: Kind, work: Work, handlers: kopf.OperatorRegistry) -> None:
    kopf.on.event(kind.group, kind.version, kind.plural, registry=handlers, id="seen")(event_handler(kind, work))


async def serve(
    work: Work, *, connection: ApiConnection, namespaces: Sequence[str], namespace_selector: str = ""
) -> None:
    """Run Kopf until a signal comes or the work has stopped; no namespaces: the whole cluster.

    namespace_selector: labels of namespaces, where these are followed too; empty if not.
    """
    await kopf.operator(
        registry=registry(
            work, login=login(connection), namespaced=bool(namespaces), namespace_selector=namespace_selector
        ),
        settings=settings(namespaced=bool(namespaces), namespace_selector=namespace_selector),
        clusterwide=not namespaces,
        namespaces=namespaces,
        stop_flag=work.stopped,
        # The pod's name. Without one Kopf makes it from the user's, and a pod's uid need not have one.
        identity=socket.gethostname(),  # type: ignore[arg-type]  # a str by another name, which Kopf does not export
    )


def login(connection: ApiConnection) -> Callable[..., kopf.ConnectionInfo | None]:
    """Return Kopf's login by the way that the client takes too."""
    if connection.in_cluster:
        # Reads the token again each time: it is replaced every hour.
        return kopf.login_with_service_account
    certificate, key = connection.pair

    async def by_files(**_: Any) -> kopf.ConnectionInfo:
        return kopf.ConnectionInfo(
            server=connection.server,
            ca_path=connection.ca_file,
            certificate_path=certificate,
            private_key_path=key,
            token=connection.token,
        )

    return by_files  # type: ignore[return-value]  # Kopf takes coroutine functions


def event_handler(kind: Kind, work: Work) -> Callable[..., Awaitable[None]]:
    async def handler(event: Mapping[str, Any], **_: Any) -> None:
        work.on_object(kind, event["type"] == "DELETED", event["object"])

    return handler


class _NoDifferences(kopf.DiffBaseStorage):
    """What changed is found against our own cache. Kopf would copy each object at each event for it: a third of the
    processor time of a start.
    """

    def build(self, **_: Any) -> kopf.BodyEssence:
        return cast(kopf.BodyEssence, {})

    def fetch(self, **_: Any) -> None:
        return None

    def store(self, **_: Any) -> None:
        raise AssertionError("there are no handlers of changes")


class _NoProgress(kopf.ProgressStorage):
    """Handlers of events have none, and nothing is written into objects for them."""

    def fetch(self, **_: Any) -> None:
        return None

    def store(self, **_: Any) -> None:
        raise AssertionError("no handler has progress to keep")

    def purge(self, **_: Any) -> None:
        return None

    def touch(self, **_: Any) -> None:
        return None

    def clear(self, *, essence: kopf.BodyEssence) -> kopf.BodyEssence:
        return essence


def settings(*, namespaced: bool, namespace_selector: str = "") -> kopf.OperatorSettings:
    """Return Kopf's settings, every one that matters said explicitly (docs/design/operator.md#s-2).

    Whether watches begin with a streamed list is known only once the API server was asked.
    """
    kopf_settings = kopf.OperatorSettings()
    kopf_settings.networking.request_timeout = 30
    kopf_settings.networking.connect_timeout = 5
    kopf_settings.networking.error_backoffs = _Again()
    kopf_settings.watching.server_timeout = 300
    kopf_settings.watching.client_timeout = 330
    kopf_settings.watching.inactivity_timeout = 70
    # Kopf keeps what it listed until it was handed on: all pods of a large cluster at once are half a gigabyte.
    kopf_settings.watching.chunk_size = PAGE
    for kind in kinds.WATCHED:
        selector = kinds.selector_of(kind)
        if selector:
            kopf_settings.watching.label_selectors[kind.group, kind.version, kind.plural] = selector
    if namespace_selector:
        place = kinds.NAMESPACE.group, kinds.NAMESPACE.version, kinds.NAMESPACE.plural
        kopf_settings.watching.label_selectors[place] = namespace_selector
    kopf_settings.scanning.disabled = namespaced
    kopf_settings.persistence.finalizer = f"{PREFIX}/finalizer"
    kopf_settings.persistence.progress_storage = _NoProgress()
    kopf_settings.persistence.diffbase_storage = _NoDifferences()
    kopf_settings.posting.enabled = False
    kopf_settings.execution.default_backoff = 5
    kopf_settings.peering.standalone = True
    return kopf_settings
