"""One Verify call for a whole group: members that wait for a verdict are sent together once no one else can join.

Own file: it is the only meeting point of a group's episodes. A member that fails or ends leaves, so that it does not
hold the others up; one that is tried again joins again.
"""

import asyncio
import dataclasses

from rljob_api import types
from rljob_workers.rollout import wait_accounting
from rljob_workers.rpc import verify


class GradingBatch:
    """Collects the items of the members that are in, and sends them when all of these wait."""

    def __init__(self, *, client: verify.Grading, times: wait_accounting.GroupTimes) -> None:
        """`times` hears how long verdicts took."""
        self._client, self._times = client, times
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
                verdicts = await self._client.verify([item for item, _ in batch])
        except Exception as error:  # noqa: BLE001  # boundary: handed to each member, who waits for it
            for _, future in batch:
                if not future.done():
                    future.set_exception(error)
            return
        for (_, future), verdict in zip(batch, verdicts, strict=True):
            if not future.done():
                future.set_result(verdict)


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
