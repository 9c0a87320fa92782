"""Which optional APIs this operator may use: served by the cluster, allowed by the settings, and open to its rights."""

import dataclasses
import logging
from collections.abc import Sequence

from rljob_operator import kinds
from rljob_operator.cluster import ApiError, Client
from rljob_operator.kinds import Kind
from rljob_operator.settings import Capability, Integrations

logger = logging.getLogger(__name__)
_NO_RIGHT, _NOT_THERE = 403, 404


@dataclasses.dataclass(frozen=True, slots=True)
class Served:
    """API groups, without those that the settings or our rights leave out; and the optional kinds among them."""

    groups: frozenset[str] = frozenset()
    optional: tuple[Kind, ...] = ()


async def discover(client: Client, integrations: Integrations, *, namespaces: Sequence[str | None]) -> Served:
    """Ask the API server. Raises ApiError where it does not answer."""
    groups = await client.groups()
    wanted: dict[Kind, Capability] = {
        kinds.SCALED_OBJECT: integrations.keda,
        kinds.POD_MONITOR: integrations.pod_monitor,
    }
    usable, unusable = list[Kind](), set[str]()
    for kind, capability in wanted.items():
        if capability != "false" and kind.group in groups and await _may_list(client, kind, namespaces):
            usable.append(kind)
        else:
            unusable.add(kind.group)
    return Served(groups - unusable, tuple(usable))


async def _may_list(client: Client, kind: Kind, namespaces: Sequence[str | None]) -> bool:
    """Return whether our rights cover a kind in any namespace: an API may be younger than the installation of its
    roles, and the first namespace may have been deleted.
    """
    refused: ApiError | None = None
    for namespace in namespaces:
        try:
            await client.list(kind, namespace, selector=kinds.MANAGED, metadata_only=True)
        except ApiError as error:
            if error.status not in (_NO_RIGHT, _NOT_THERE):
                raise
            refused = error
        else:
            return True
    logger.warning("%s is not used: %s; install the chart again to have its rights", kind.plural, refused)
    return False
