"""Which optional APIs this operator may use: served by the cluster, allowed by the settings, and open to its rights."""

import dataclasses
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rljob_operator.kube import kinds
from rljob_operator.kube.client import ApiError, Client
from rljob_operator.kube.kinds import Kind
from rljob_operator.settings import Capability, GangScheduler, Integrations

logger = logging.getLogger(__name__)
_NO_RIGHT, _NOT_THERE = 403, 404


@dataclasses.dataclass(frozen=True, slots=True)
class ServedApis:
    """API groups and their versions, without those that the settings or our rights leave out; and the optional kinds
    among them.
    """

    groups: frozenset[str] = frozenset()
    optional: tuple[Kind, ...] = ()


async def discover(
    client: Client, integrations: Integrations, *, namespaces: Sequence[str | None], gang: GangScheduler = "none"
) -> ServedApis:
    """Ask the API server. Raises ApiError where it does not answer."""
    groups = await client.groups()
    capabilities: dict[Kind, Capability] = {
        kinds.SCALED_OBJECT: integrations.keda,
        kinds.POD_MONITOR: integrations.pod_monitor,
        kinds.QUEUED: integrations.kueue,
        **{kind: "auto" if scheduler == gang else "false" for scheduler, kind in kinds.POD_GROUPS.items()},
    }
    usable, unusable = list[Kind](), set[str]()
    for kind, capability in capabilities.items():
        if capability != "false" and kind.api_version in groups and await _may_list(client, kind, namespaces):
            usable.append(kind)
        else:
            unusable |= {kind.group, kind.api_version}
    return ServedApis(groups - unusable, tuple(usable))


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
    logger.warning("%s is not used: %s; upgrade the chart's release to get its permissions", kind.plural, refused)
    return False


Schema = Mapping[str, Any]
_MOST_NAMED = 3


# A field that the served definition lacks is dropped from each write without an error: a status would never be what was
# written.
def schema_problem(served: Schema | None, expected: Schema) -> str:
    """Return why the served definition does not do, as one sentence; empty if it does. None: none is served."""
    if served is None:
        return "no RLJob is served: apply the CustomResourceDefinition of this version"
    missing = [
        path for part in ("spec", "status") for path in _missing(_part(served, part), _part(expected, part), part)
    ]
    if not missing:
        return ""
    more = f" and {len(missing) - _MOST_NAMED} more" if len(missing) > _MOST_NAMED else ""
    named = ", ".join(missing[:_MOST_NAMED])
    return f"the RLJob that is served lacks {named}{more}: apply the CustomResourceDefinition of this version"


def _part(schema: Schema, name: str) -> Schema:
    part: Schema = (schema.get("properties") or {}).get(name) or {}
    return part


def _missing(served: Schema, expected: Schema, path: str) -> Iterator[str]:
    """Yield the paths of what `served` would drop, the outermost ones alone."""
    if served.get("x-kubernetes-preserve-unknown-fields"):
        return
    served_properties = served.get("properties") or {}
    for name, schema in sorted((expected.get("properties") or {}).items()):
        if name in served_properties:
            yield from _missing(served_properties[name], schema, f"{path}.{name}")
        else:
            yield f"{path}.{name}"
    for key, mark in (("items", "[]"), ("additionalProperties", "{}")):
        if isinstance(expected.get(key), Mapping) and isinstance(served.get(key), Mapping):
            yield from _missing(served[key], expected[key], path + mark)
