"""Batches are built here, once each, ahead of the trainer and apart from the calls that ask for them.

    groups submitted --> choose (ledger) --> build (a thread) --> stage (ledger, part by part) --> freeze (ledger)
                            |                                                                       |
                            +---- step k + 1 while the trainer is at step k ------------------------+

What a batch is made of is decided as soon as its groups are there and stays decided: it is recorded, with its bytes,
before anyone gets it. One step ahead is built at most, and only where that makes no group too old that is still under
way. A call that ends, or a trainer that dies, ends no build. A build that fails would fail again: it is reported, ends
the run and is restarted for other groups only.
"""

import asyncio
import dataclasses
import logging
from collections.abc import Callable, Iterator, Mapping

from rljob_api import errors, process_config
from rljob_api.wire import codec
from rljob_workers.coordinator import context
from rljob_workers.coordinator.batching import packing, samples
from rljob_workers.coordinator.ledger import checkpoints, database, examples, groups, steps
from rljob_workers.runtime import redaction

logger = logging.getLogger(__name__)
# Of one transaction: the ledger's thread serves everyone else in between.
STAGED_BYTES = 4 << 20
BEING_BUILT = "the next batch to be built"
_LOOK_S = 30.0
_LEAST_WAIT_S = 10.0

# Hears of each batch that was recorded.
OnRecorded = Callable[[steps.Choice, samples.Assembled, Mapping[str, object]], None]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """A batch that is not recorded yet: what the ledger records of it, its rows, and its micro-batches by rank."""

    frozen: steps.FrozenStep
    assembled: samples.Assembled
    packed: packing.Packed


def build(choice: steps.Choice, config: process_config.CoordinatorConfig) -> Built:
    """Return the batch of a choice with payloads. Pure."""
    spec, algorithm = config.spec, config.spec.algorithm
    shape = packing.Shape(
        seed=spec.seed,
        minibatches=algorithm.minibatches,
        epochs=algorithm.epochs,
        world_size=spec.trainer.world_size,
        max_tokens=spec.trainer.max_tokens_per_micro_batch,
        keep_zero_advantage=algorithm.trains_zero_advantage or choice.taught,
        keep_masked=algorithm.trains_masked,
        observes_skipped=True,
        oldest_step=choice.oldest_trained_step,
    )
    if choice.supervised:
        assembled, sampled = samples.assemble_examples(choice), {}
        # An epoch of examples is one of the data, and a step of them one update.
        shape = dataclasses.replace(shape, minibatches=1, epochs=1)
    else:
        assembled = samples.assemble(choice, algorithm)
        sampled = {
            "actor/sampling_max_tokens": config.sampling.max_tokens,
            "actor/sampling_temperature": config.sampling.temperature,
        }
    packed = packing.pack(assembled.samples, step=choice.step, shape=shape)
    frozen = steps.FrozenStep(
        step=choice.step,
        group_ids=assembled.group_ids,
        world_size=spec.trainer.world_size,
        minibatches=packed.minibatches,
        summary=assembled.summary
        | sampled
        | {
            "packed_tokens": {
                "computed": packed.computed_tokens,
                "unique": packed.unique_tokens,
                "rows": packed.row_tokens,
            }
        },
        zero_advantage_groups=assembled.zero_advantage_groups,
    )
    return Built(frozen=frozen, assembled=assembled, packed=packed)


def slices(packed: packing.Packed, *, most_bytes: int = STAGED_BYTES) -> Iterator[list[steps.Part]]:
    """Yield the encoded micro-batches of all ranks, some at a time."""
    some: list[steps.Part] = []
    for rank, micro_batches in enumerate(packed.micro_batches):
        for seq, micro_batch in enumerate(micro_batches):
            data = codec.encode_micro_batch(micro_batch)
            if some and sum(len(part.data) for part in some) + len(data) > most_bytes:
                yield some
                some = []
            some.append(steps.Part(rank=rank, seq=seq, data=data))
    yield some


class Builder:
    """The one that builds. Its task outlives every call."""

    def __init__(self, parts: context.CoordinatorContext, on_recorded: OnRecorded) -> None:
        """Nothing is built before `run` or `needed`."""
        self._context, self._on_recorded = parts, on_recorded
        self._task: asyncio.Task[str] | None = None
        self._broken: tuple[tuple[str, ...], str] = ((), "")
        self._missing: tuple[str, ...] = ()

    async def run(self) -> None:
        """Build whatever can be, on every change, until cancelled."""
        while True:
            mark = self._context.changes.mark
            try:
                # Shielded: ranks wait for the same task (`needed`).
                while not await asyncio.shield(self._soon()):
                    pass
            except errors.UnavailableError as error:
                logger.warning("the next batch waits: %s", error, extra={"error_class": error.name})
            await self._context.changes.wait(mark, _LOOK_S)

    async def needed(self, wait_s: float) -> str:
        """Build the next batch, or wait for who does; return why it is not there, empty if the ledger has moved on."""
        task = self._soon()
        # A caller grants tens of seconds beyond its wait: most builds are done by then.
        await asyncio.wait({task}, timeout=max(wait_s, _LEAST_WAIT_S))
        return task.result() if task.done() else BEING_BUILT

    def _soon(self) -> asyncio.Task[str]:
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._next(), name="build")
            # Its error reaches every waiter; where there is none, the next look meets it again.
            self._task.add_done_callback(lambda task: task.cancelled() or task.exception())
        return self._task

    async def _next(self) -> str:
        """Record the next batch if it can be. Returns why not yet; empty: it is recorded, or the ledger moved on."""
        choice = await self._context.ledger.run(self._choose)
        if choice.candidates is None:
            return "" if choice.no_more else choice.wait_reason
        chosen = tuple(candidate.group_id for candidate in choice.candidates)
        # The same groups would break it again: nothing is built before others are chosen.
        if chosen == self._broken[0]:
            return self._broken[1]
        try:
            whole = await self._context.ledger.read(lambda database: steps.with_payloads(database, choice))
            if whole is None:
                # Withdrawn since it was chosen; chosen again, it is not that.
                if chosen != self._missing:
                    self._missing = chosen
                    return ""
                raise errors.LedgerError("a submitted group has no payload")
            built = await asyncio.to_thread(build, whole, self._context.config)
        except errors.UnavailableError:
            raise
        except Exception as error:  # noqa: BLE001  # boundary: whatever the groups are, the coordinator goes on
            return await self._report(choice.step, chosen, error)
        return await self._record(choice, built)

    def _choose(self, ledger: database.Ledger) -> steps.Choice:
        if examples.are_due(ledger):
            return examples.choose(ledger)
        choice = steps.choose(ledger, more_prompts=not self._context.order.ended(groups.cursor(ledger)))
        if choice.no_more:
            checkpoints.end_data(ledger, step=choice.step)
        return choice

    async def _report(self, step: int, chosen: tuple[str, ...], error: Exception) -> str:
        why = f"the batch of step {step} cannot be built: {redaction.describe(error)}"
        redaction.log(logger, f"building the batch of step {step}", error, keys={"step": step})
        self._broken = (chosen, why)
        await self._context.ledger.run(groups.end_run, why)
        return why

    async def _record(self, choice: steps.Choice, built: Built) -> str:
        parts = slices(built.packed)
        fresh = True
        while some := await asyncio.to_thread(next, parts, None):
            if not await self._context.ledger.run(_stage(choice.step, some, fresh=fresh)):
                return ""
            fresh = False
        now = self._context.clock.now()
        if await self._context.ledger.run(steps.freeze, built.frozen, now=now):
            self._on_recorded(choice, built.assembled, built.frozen.summary)
        return ""


def _stage(step: int, parts: list[steps.Part], *, fresh: bool) -> Callable[[database.Ledger], bool]:
    return lambda ledger: steps.stage(ledger, step=step, parts=parts, fresh=fresh)
