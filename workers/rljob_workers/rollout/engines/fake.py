"""An engine without a model: deterministic, on CPU, in no time but the one that it is asked to take. Shipped.

For tests, and for users who try a workflow without weights. It keeps the real engine's contract: every token carries
the label that was committed when it was sampled, pausing freezes requests, a load must be verified before a commit.
"""

import asyncio
import dataclasses
import heapq
import itertools
from collections.abc import Mapping, Sequence

from rljob_api import errors, types
from rljob_workers.rollout import generation
from rljob_workers.runtime import clock as clocks

EOS = 2
_FIRST_TOKEN, _NUM_TOKENS = 3, 97


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Behavior:
    """token_s: seconds per token. latency_s: seconds per engine call by name. faults: what call n of a name raises.

    A fault of None is a call that succeeds; calls beyond the list succeed. "hang" never returns. A load has load_parts
    parts of load_part_s each, which are seen as progress. slots: requests that decode at once, 0 for any number; of
    those that wait, the one of the lowest `priority` is next.
    """

    token_s: float = 0.0
    latency_s: Mapping[str, float] = dataclasses.field(default_factory=dict)
    faults: Mapping[str, Sequence[str | None]] = dataclasses.field(default_factory=dict)
    load_parts: int = 0
    load_part_s: float = 0.0
    slots: int = 0


class FakeEngine:
    """Samples tokens from a hash of seed and position; `events` lists every call in order."""

    def __init__(
        self, *, clock: clocks.Clock, behavior: Behavior | None = None, events: list[str] | None = None
    ) -> None:
        """`events` may be shared with other fakes, so that a test asserts one order."""
        self._clock, self._behavior = clock, behavior or Behavior()
        self.events: list[str] = [] if events is None else events
        self._calls: dict[str, int] = {}
        self._label: int | None = None
        self._whole = self._alive = True
        self._going = asyncio.Event()
        self._going.set()
        self._running: dict[str, asyncio.Event] = {}
        self._num_decoding = 0
        # Those that wait for a slot: priority, order of arrival, and what is set once it is theirs.
        self._queue: list[tuple[int, int, asyncio.Event]] = []
        self._arrivals = itertools.count()
        self._interrupted: set[str] = set()
        self._generated = self._prompted = self._loaded = 0

    async def start(self) -> None:
        await self._call("start")
        self._alive = self._whole = True

    async def generate(
        self, request: generation.GenerationRequest, *, version: types.VersionId
    ) -> generation.GenerationResult:
        """Sample until EOS or the budget ends."""
        if not self._alive:
            raise errors.EngineError("the engine process is dead")
        self.events.append(f"generate salt {version}")
        assert request.rid not in self._running, "request ids are unique"
        aborted = self._running[request.rid] = asyncio.Event()
        ids: list[int] = []
        versions: list[int] = []
        at_s = [self._clock.monotonic()]
        slot = asyncio.Event()
        try:
            await self._turn(request.priority, slot, aborted)
            while len(ids) < request.sampling.max_tokens and (not ids or ids[-1] != EOS):
                if ids and request.on_tokens is not None:
                    request.on_tokens(tuple(ids))
                await self._step(aborted)
                if request.rid in self._interrupted:
                    break
                if aborted.is_set():
                    raise errors.EngineError("aborted")
                ids.append(self._token(request, len(ids)))
                versions.append(self._asserted())
                at_s.append(self._clock.monotonic())
        finally:
            self._give_back(slot)
            del self._running[request.rid]
            interrupted = request.rid in self._interrupted
            self._interrupted.discard(request.rid)
        self._prompted += len(request.input_ids)
        return generation.GenerationResult(
            output_ids=tuple(ids),
            logprobs=tuple(-0.25 - (token % 7) / 8 for token in ids),
            versions=tuple(versions),
            stop_reason=generation.INTERRUPT if interrupted else "stop" if ids[-1] == EOS else "length",
            latency_s=self._clock.monotonic() - at_s[0],
            ttft_s=at_s[1] - at_s[0] if ids else 0.0,
            itl_s=generation.gaps_s(at_s[1:]),
        )

    def num_running(self) -> int:
        return len(self._running)

    def num_generated(self) -> int:
        return self._generated

    def num_prompt_tokens(self) -> int:
        return self._prompted

    def alive(self) -> bool:
        """Return False after `die`."""
        return self._alive

    def die(self) -> None:
        self.events.append("died")
        self._alive = False
        self._abort()

    async def pause(self, *, clear_cache: bool) -> None:
        await self._call("pause", "and clear" if clear_cache else "")
        self._going.clear()

    async def resume(self) -> None:
        """Continue; asserts that the weights are whole."""
        await self._call("resume")
        assert self._whole, "resumed on mixed weights"
        self._going.set()

    async def load(self, layout: types.Layout) -> None:
        """Be a mixture until verified."""
        assert not self._going.is_set(), "loaded while generating"
        self._whole = False
        await self._call("load", f"{len(layout.tensors)} tensors")
        for _ in range(self._behavior.load_parts):
            await self._clock.sleep(self._behavior.load_part_s)
            self._loaded += 1

    def loaded_bytes(self) -> int:
        return self._loaded

    async def verify(self) -> None:
        await self._call("verify")
        self._whole = True

    async def commit(self, version: types.VersionId) -> None:
        await self._call("commit", str(version))
        assert self._whole, "labelled mixed weights"
        self._label = version

    async def repair(self) -> None:
        await self._call("repair")

    async def abort_all(self) -> None:
        await self._call("abort_all")
        self._interrupted |= set(self._running)
        self._abort()

    async def restart(self) -> None:
        """Be a new process with initial weights and no label."""
        self._abort()
        await self._call("restart")
        self._alive = self._whole = True
        self._label = None
        self._going.set()

    async def close(self) -> None:
        await self._call("close")

    async def _call(self, name: str, detail: str = "") -> None:
        self.events.append(f"{name} {detail}".strip())
        number = self._calls.get(name, 0)
        self._calls[name] = number + 1
        faults = self._behavior.faults.get(name, ())
        fault = faults[number] if number < len(faults) else None
        await self._clock.sleep(self._behavior.latency_s.get(name, 0.0))
        if fault == "hang":
            await asyncio.Event().wait()
        if fault is not None:
            raise errors.EngineError(fault)

    async def _turn(self, priority: int, slot: asyncio.Event, aborted: asyncio.Event) -> None:
        """Return once a slot is this request's, or it is aborted."""
        heapq.heappush(self._queue, (priority, next(self._arrivals), slot))
        self._hand_out()
        while not slot.is_set() and not aborted.is_set():
            await _either(slot, aborted)

    def _hand_out(self) -> None:
        while self._queue and (not self._behavior.slots or self._num_decoding < self._behavior.slots):
            self._num_decoding += 1
            heapq.heappop(self._queue)[2].set()

    def _give_back(self, slot: asyncio.Event) -> None:
        if slot.is_set():
            self._num_decoding -= 1
        else:
            self._queue = [waiting for waiting in self._queue if waiting[2] is not slot]
            heapq.heapify(self._queue)
        self._hand_out()

    async def _step(self, aborted: asyncio.Event) -> None:
        await self._clock.sleep(self._behavior.token_s)
        while not self._going.is_set() and not aborted.is_set():
            await _either(self._going, aborted)

    def _abort(self) -> None:
        for aborted in self._running.values():
            aborted.set()

    def _token(self, request: generation.GenerationRequest, index: int) -> int:
        self._generated += 1
        drawn = generation.derived_seed(request.seed, index) % (_NUM_TOKENS + 1)
        may_end = index >= request.sampling.min_tokens and not request.sampling.ignore_eos
        return EOS if drawn == 0 and may_end else _FIRST_TOKEN + drawn % _NUM_TOKENS

    def _asserted(self) -> int:
        if self._label is None:
            raise errors.EngineError("no version label is set")
        return self._label


async def _either(*events: asyncio.Event) -> None:
    """Return once one of the events is set."""
    waiters = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(waiters, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for waiter in waiters:
            waiter.cancel()
