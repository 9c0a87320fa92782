"""What a job has used: the requests of its pods, for as long as they had a node. Pure.

A pod counts from when it has a node until it has ended; what a status says counts up to its `asOf`, and later times are
added to that. So nothing is counted twice, an operator that was away adds what the pods' own times say, and a pod that
came and went meanwhile is not seen: the sums are a lower bound.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence

from rljob_api import enums, types
from rljob_api.manifest.status import UsageStatus
from rljob_operator import clock
from rljob_operator.model import Pod


@dataclasses.dataclass(frozen=True, slots=True)
class Amount:
    """GPU seconds, and thousandths of a core's seconds: whole numbers, so that sums are exact."""

    gpu_s: int = 0
    cpu_milli_s: int = 0


def usage(
    before: UsageStatus | None, pods: Sequence[Pod], run: types.RunStatus | None, *, now: float
) -> UsageStatus | None:
    """Return what was used until `now`, unix seconds; None for a job that never had a pod.

    run: what the coordinator said last. A ledger that was lost counts tokens from 0: the larger number stays.
    """
    if before is None and not pods:
        return None
    since = _as_of(before)
    until = max(since, math.floor(now))
    amounts = _amounts(before)
    for pod in pods:
        seconds = _seconds(pod, since=since, until=until)
        amount = amounts.get(pod.role, Amount())
        amounts[pod.role] = Amount(amount.gpu_s + pod.gpus * seconds, amount.cpu_milli_s + pod.cpu_milli * seconds)
    tokens: Mapping[str, int] = {} if run is None else run.tokens
    total = Amount(sum(each.gpu_s for each in amounts.values()), sum(each.cpu_milli_s for each in amounts.values()))
    return UsageStatus.model_validate(
        {
            "asOf": clock.to_timestamp(until),
            **_sums(total),
            "roles": tuple({"name": str(role), **_sums(amounts[role])} for role in enums.Role if role in amounts),
            "generatedTokens": max(tokens.get("generated", 0), 0 if before is None else before.generated_tokens),
            "trainedTokens": max(tokens.get("trained", 0), 0 if before is None else before.trained_tokens),
        }
    )


def _seconds(pod: Pod, *, since: int, until: int) -> int:
    """Return how long a pod had its node, between two times."""
    begin = pod.scheduled_at or pod.started_at
    if not begin:
        return 0
    end = pod.finished_at if pod.is_terminal else until
    return max(0, min(until, math.floor(end)) - max(since, math.floor(begin)))


def _as_of(usage_: UsageStatus | None) -> int:
    return 0 if usage_ is None else int(clock.to_seconds(usage_.as_of) or 0)


def _amounts(usage_: UsageStatus | None) -> dict[enums.Role, Amount]:
    rows = () if usage_ is None else usage_.roles
    return {enums.Role(row.name): Amount(row.gpu_seconds, round(row.cpu_core_seconds * 1000)) for row in rows}


def _sums(amount: Amount) -> dict[str, object]:
    cores = f"{amount.cpu_milli_s // 1000}.{amount.cpu_milli_s % 1000:03d}"
    return {"gpuSeconds": amount.gpu_s, "cpuCoreSeconds": cores}
