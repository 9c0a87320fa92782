"""One Verify call for a whole group: members that wait for a verdict are sent together once no one else can join.

Own file: it is the only meeting point of a group's episodes. A member that fails or ends leaves, so that it does not
hold the others up; one that is tried again joins again.
"""

import asyncio
import dataclasses
from collections.abc import Mapping, Sequence

from rljob_api import enums, suites, types
from rljob_api.manifest.job import JobSpec
from rljob_api.manifest.reward_options import JUDGE
from rljob_workers.rollout import wait_accounting
from rljob_workers.rpc import verify


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Judge:
    """The judge of a job, and what it grades: by suite, "" in training, whether the verifiers do too."""

    client: verify.Grading
    graded_with: Mapping[str, bool]


def judged_suites(spec: JobSpec) -> dict[str, bool]:
    """Return the suites, "" for training, whose answers a language model judges, each with whether verifiers grade
    them too.
    """
    kinds = {
        suite: {reward.type == JUDGE for reward in suites.graded_by(spec, suite)}
        for suite in ("", *(each.name for each in spec.evaluation.suites))
    }
    return {suite: False in of_judge for suite, of_judge in kinds.items() if True in of_judge}


def merged(first: types.Verdict, second: types.Verdict) -> types.Verdict:
    """Return one verdict from a verifier's and a judge's: the sum of their rewards, and none where one has none."""
    decisive = min((first, second), key=lambda verdict: enums.VERDICT_RANK.index(verdict.reason))
    if first.reward is None or second.reward is None:
        reward, parts = None, {}
    else:
        reward, parts = first.reward + second.reward, {**first.parts, **second.parts}
    return dataclasses.replace(
        decisive,
        reward=reward,
        parts=parts,
        formatted=first.formatted and second.formatted,
        grader=f"{first.grader}+{second.grader}",
        cpu_s=first.cpu_s + second.cpu_s,
        wall_s=first.wall_s + second.wall_s,
    )


class GradingBatch:
    """Collects the items of the members that are in, and sends them when all of these wait."""

    def __init__(
        self, *, client: verify.Grading, times: wait_accounting.GroupTimes, judge: Judge | None = None
    ) -> None:
        """`times` hears how long verdicts took."""
        self._client, self._times, self._judge = client, times, judge
        self._members = 0
        self._waiting: list[tuple[types.VerifyItem, asyncio.Future[types.Verdict]]] = []
        self._calls: set[asyncio.Task[None]] = set()

    def join(self) -> None:
        """A member begins an attempt."""
        self._members += 1

    def leave(self) -> None:
        """A member's attempt is over, well or not."""
        self._members -= 1
        self._send_if_complete()

    async def verdict(self, item: types.VerifyItem) -> types.Verdict:
        """Raises what the call raised."""
        future: asyncio.Future[types.Verdict] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, future))
        self._send_if_complete()
        return await future

    def _send_if_complete(self) -> None:
        self._waiting = [(item, future) for item, future in self._waiting if not future.cancelled()]
        if not self._waiting or len(self._waiting) < self._members:
            return
        batch, self._waiting = self._waiting, []
        call = asyncio.ensure_future(self._send(batch))
        self._calls.add(call)
        call.add_done_callback(self._calls.discard)

    async def _send(self, batch: list[tuple[types.VerifyItem, "asyncio.Future[types.Verdict]"]]) -> None:
        try:
            with self._times.verifying():
                verdicts = await self._verdicts([item for item, _ in batch])
        except Exception as error:  # noqa: BLE001  # boundary: handed to each member, who waits for it
            for _, future in batch:
                if not future.done():
                    future.set_exception(error)
            return
        for (_, future), verdict in zip(batch, verdicts, strict=True):
            if not future.done():
                future.set_result(verdict)

    async def _verdicts(self, items: Sequence[types.VerifyItem]) -> list[types.Verdict]:
        """Ask the verifiers first, who refuse a record before a judge is paid for it."""
        judge, suite = self._judge, items[0].suite
        if judge is None or suite not in judge.graded_with:
            return await self._client.verify(items)
        verdicts = await self._client.verify(items) if judge.graded_with[suite] else []
        with self._times.judging():
            judged = await judge.client.verify(items)
        return [merged(*pair) for pair in zip(verdicts, judged, strict=True)] if verdicts else judged


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class MemberGrader:
    """The grader that one member's attempt sees. Each call has its own sample id, turns included.

    suite: the evaluation suite whose rewards grade it, "" in training.
    """

    batch: GradingBatch
    record: types.PromptRecord
    sample_id: str
    attempt: int
    suite: str = ""
    turns: list[int] = dataclasses.field(default_factory=list)

    async def grade(
        self,
        *,
        prompt: str,
        completion: str,
        truncated: bool,
        prompt_ids: tuple[int, ...] = (),
        completion_ids: tuple[int, ...] = (),
    ) -> types.Verdict:
        self.turns.append(len(self.turns))
        item = types.VerifyItem(
            sample_id=f"{self.sample_id}.{self.turns[-1]}",
            attempt=self.attempt,
            prompt=prompt,
            completion=completion,
            columns=self.record.columns,
            truncated=truncated,
            prompt_ids=prompt_ids,
            completion_ids=completion_ids,
            suite=self.suite,
        )
        return await self.batch.verdict(item)
