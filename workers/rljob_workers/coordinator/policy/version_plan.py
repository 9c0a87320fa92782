"""The shortest way to a version, in bytes: the changes since what a receiver has, or an anchor and those since. Pure.

    0 <- 1 whole <- 2 <- 3 <- 4 whole <- 5 <- 6        <- is "changes against"; an anchor may have changes too
    have 4, want 6: 5, 6      have nothing: 4 whole, 5, 6      have 2: 3, 4, 5, 6, unless 4 whole is shorter

A new attempt of the trainer begins with an anchor without changes, so no way leads through it from what was undone.
"""

import dataclasses
from collections.abc import Collection, Sequence

from rljob_api import types
from rljob_workers.coordinator.policy import version_rules


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Hop:
    """A version on the way, and which of its artifacts to fetch for it."""

    version: int
    artifact: types.Artifact


def shortest(
    lineage: Sequence[version_rules.Registered], *, have: int, stored: Collection[str]
) -> tuple[Hop, ...] | None:
    """Return the hops to `lineage[0]` in order, None if nothing that is stored leads there.

    lineage: the version, what its changes are against, and so on; have: what the receiver holds; stored: artifact ids.
    Version 0 costs nothing: every receiver has the model files.
    """
    best: tuple[Hop, ...] | None = None
    least, cost = 0, 0
    since: tuple[Hop, ...] = ()
    for version in lineage:
        if since and version.version in (have, 0):
            return since if best is None or cost < least else best
        whole, changes = version.whole, version.changes
        if whole is not None and whole.artifact_id in stored and (best is None or cost + whole.num_bytes < least):
            best, least = (Hop(version=version.version, artifact=whole), *since), cost + whole.num_bytes
        if changes is None or changes.artifact_id not in stored or (best is not None and cost >= least):
            break
        since = (Hop(version=version.version, artifact=changes), *since)
        cost += changes.num_bytes
    return best
