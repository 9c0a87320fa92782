"""Items in, verdicts out, in order: which judges an item needs, and one verdict from their scores."""

import asyncio
import time
from collections.abc import Mapping, Sequence

import rljob_api
from rljob_api import enums, errors, process_config, types
from rljob_workers.judge import verdicts
from rljob_workers.rpc import verify_service
from rljob_workers.runtime import metrics as metrics_module


class Judging:
    """The judge without its wire."""

    def __init__(
        self,
        *,
        rewards: Sequence[process_config.GraderConfig],
        judges: Sequence[verdicts.Judge],
        metrics: metrics_module.Metrics,
        max_waiting: int,
        loaded: asyncio.Event | None = None,
    ) -> None:
        """`judges` are in the order of `rewards`; rewards of an evaluation suite judge that suite alone. loaded: before
        it is set nothing is asked, and no deadline of a question begins: a model that is being loaded is no failure.
        """
        self._rewards, self._judges, self._metrics, self._loaded = rewards, judges, metrics, loaded
        self._max_waiting, self._num_waiting = max_waiting, 0

    async def verify(self, items: Sequence[types.VerifyItem]) -> list[types.Verdict]:
        """Return one verdict per item, in order.

        Raises RecordError if a record cannot be judged, and OverloadedError if too many items wait; then nothing was
        asked.
        """
        for item in items:
            for index in process_config.graders_of(self._rewards, item.suite):
                self._check(item, index)
        if self._num_waiting + len(items) > self._max_waiting:
            raise verify_service.OverloadedError(f"{self._num_waiting} answers wait for a verdict already")
        self._wait_for(len(items))
        try:
            if self._loaded is not None:
                await self._loaded.wait()
            return await self._verdicts(items)
        finally:
            self._wait_for(-len(items))

    def _wait_for(self, more: int) -> None:
        self._num_waiting += more
        self._metrics.gauge("rljob_judge_waiting").set(self._num_waiting)

    def _check(self, item: types.VerifyItem, index: int) -> None:
        try:
            self._judges[index].check(item)
        except errors.RecordError as error:
            name = self._rewards[index].name
            raise errors.RecordError(f"sample {item.sample_id}, reward {name!r}: {error}") from error

    async def _verdicts(self, items: Sequence[types.VerifyItem]) -> list[types.Verdict]:
        began = time.perf_counter()
        places: dict[int, list[int]] = {}
        for place, item in enumerate(items):
            for index in process_config.graders_of(self._rewards, item.suite):
                places.setdefault(index, []).append(place)
        questions = [self._judges[index].scores([items[place] for place in own]) for index, own in places.items()]
        scores: list[dict[int, verdicts.Score]] = [{} for _ in items]
        for (index, own), of_reward in zip(places.items(), await asyncio.gather(*questions), strict=True):
            for place, score in zip(own, of_reward, strict=True):
                scores[place][index] = score
                result = "verdict" if isinstance(score, float) else "unavailable"
                self._metrics.counter("rljob_judge_verdicts_total").inc(reward=self._rewards[index].name, result=result)
        wall_s = time.perf_counter() - began
        return [self._verdict(item, own, wall_s) for item, own in zip(items, scores, strict=True)]

    def _verdict(self, item: types.VerifyItem, scores: Mapping[int, verdicts.Score], wall_s: float) -> types.Verdict:
        """Return the weighted sum. If one judge is not available there is no reward at all."""
        rewards = {index: self._rewards[index] for index in scores}
        missing = [f"{rewards[index].name}: {score}" for index, score in scores.items() if not isinstance(score, float)]
        parts = {rewards[index].name: score for index, score in scores.items() if isinstance(score, float)}
        total = sum(reward.weight * parts.get(reward.name, 0.0) for reward in rewards.values())
        reason, outcome = _outcome(total, missing=bool(missing), blank=not item.completion.strip())
        return types.Verdict(
            reward=None if missing else total,
            reason=reason,
            outcome=outcome,
            formatted=not missing,
            truncated=item.truncated,
            detail=f"{enums.JUDGE_UNAVAILABLE}: {'; '.join(missing)}"[:512] if missing else "",
            parts={} if missing else parts,
            grader="+".join(f"{reward.type}/{reward.mode}" for reward in rewards.values()),
            wall_s=wall_s,
            attempt=item.attempt,
            grader_version=rljob_api.__version__,
        )


def _outcome(total: float, *, missing: bool, blank: bool) -> tuple[enums.VerdictReason, enums.VerifyOutcome]:
    if missing:
        return enums.VerdictReason.INFRA_FAILURE, enums.VerifyOutcome.INFRA_ERROR
    if total > 0:
        return enums.VerdictReason.OK, enums.VerifyOutcome.PASS
    return enums.VerdictReason.NO_ANSWER if blank else enums.VerdictReason.WRONG, enums.VerifyOutcome.FAIL
