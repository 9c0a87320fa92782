"""The coordinator's tasks, wired. Nothing here decides anything: policies are pure, transitions are the ledger's.

      rollouts                             ledger thread (SQLite)                            trainer ranks
  LeaseGroups  --> Dispatch.lease  ----->  fill, lease: QUEUED > LEASED
  Heartbeat    --> Dispatch.heartbeat -->  renew; which version to load
  SubmitGroup  --> Dispatch.submit ----->  accept: LEASED > SUBMITTED (or dropped)
                                           choose, freeze: SUBMITTED > PACKED <-- Training.fetch <-- FetchBatch(k)
                                           commit_step: PACKED > TRAINED      <-- Training       <-- CommitStep(k)
                                           publish: version k, evaluation due <-- Publishing     <-- Publish
  Pull <-------- weight store process <--- artifacts --------------------------------------------- Upload

Who waits for what: a lease waits for capacity (freed by commits and publishes), for prompts, or for its worker to load
the version floor; a fetch waits for B submitted groups and for the step before; a publish waits for no one. Every wait
ends when the ledger changes (`changes.py`) or its caller's time is up.

`Housekeeper` below does what no call asks for: it expires leases, opens and finishes evaluations, retires versions,
copies history lines to the file and keeps the metrics current. If it dies, the process ends; a ledger that cannot
commit does not end it, for a new process would not be able to either.
"""

import asyncio
import json
import logging
import math
import pathlib
from collections.abc import Mapping, Sequence

from rljob_api import enums, errors, learning, types
from rljob_workers.coordinator import context
from rljob_workers.coordinator.ledger import (
    best_steps,
    database,
    evaluations,
    groups,
    leases,
    queries,
    retention,
    versions,
)
from rljob_workers.coordinator.reporting import divergence, evaluation, history, infra_share, metrics, status
from rljob_workers.coordinator.weights import registry
from rljob_workers.runtime import atomic

logger = logging.getLogger(__name__)
_TICK_S = 0.5
_BURST_S = 0.1
_LATE_EVALUATION_S = 30.0
# Lines of the history are forgotten once they are on the disk, which is made sure of now and then.
_DURABLE_S = 60.0
_MOST_SLICES = 8
# Pods of a Deployment have names that never come again.
_FORGET_S = 3600.0
# Less than the 2 s that the operator waits for a status: the answer is to name the ledger, not to come too late.
STATUS_S = 1.0


class Housekeeper:
    """The background work of one coordinator."""

    def __init__(
        self, parts: context.CoordinatorContext, publisher: registry.Publishing, file: history.HistoryFile
    ) -> None:
        self._context, self._publisher, self._history = parts, publisher, file
        self._meter = metrics.Metering(parts.metrics)
        self._progress, self._progress_at = -1, parts.clock.now()
        self._facts: queries.Facts | None = None
        self._results: Sequence[types.EvaluationResult] = ()
        self._num_evaluations = 0
        self._failure_logged = False
        self._durable_at, self._durable_seq = 0.0, 0
        self._began = parts.clock.now()
        self._infra, self._infra_share, self._failing_role = infra_share.InfraShare(), 0.0, ""
        self._at_progress: Mapping[str, int] = {}
        self._diverged = False

    async def run(self) -> None:
        """Work on every change and at least every half second, until cancelled."""
        while True:
            mark = self._context.changes.mark
            await self._try_tick()
            await self._context.changes.wait(mark, _TICK_S)
            # Bursts of submissions are one round of work.
            await self._context.clock.sleep(_BURST_S)

    async def _try_tick(self) -> None:
        try:
            await self.tick()
        except errors.UnavailableError as error:
            if not self._failure_logged:
                logger.error("background work waits: %s", error, extra={"error_class": error.name})
            self._failure_logged = True
        else:
            self._failure_logged = False

    async def tick(self) -> None:
        """Do everything that is due now. Raises DataError where the data are such that the run cannot continue."""
        now = self._context.clock.now()
        await self._context.ledger.run(leases.expire, now=now)
        await self._evaluate(now)
        await self._publisher.prune()
        await self.write_history()
        await self._forget(now)
        await self._let_go(now)
        await self.refresh()
        await self._expect_prompts()

    async def _expect_prompts(self) -> None:
        """Raise DataError where each prompt was found unusable: they would be leased without end, and none trained."""
        orders = (
            (enums.GroupKind.TRAIN, "prompts", self._context.order),
            (enums.GroupKind.EXAMPLE, "examples", self._context.examples),
        )
        for kind, what, order in orders:
            num_unusable = await self._context.ledger.run(groups.num_unusable, kind)
            if order is not None and 0 < num_unusable >= order.num_prompts:
                raise errors.DataError(
                    f"none of the {num_unusable} {what} of data.train can be used: each was left out as too long or"
                    " invalid; raise maxPromptTokens or fix the records"
                )

    async def write_history(self) -> None:
        """Copy new history lines to the file."""
        lines = await self._context.ledger.run(queries.history_after, self._history.last_seq)
        for _, line in lines:
            _log(line)
        await asyncio.to_thread(self._history.append, lines)

    async def _forget(self, now: float) -> None:
        """Forget rollouts that were silent so long that they are gone; one that comes back registers again."""
        gone = [pod.token for pod in self._context.pods.silent(before=now - _FORGET_S) if self._began < now - _FORGET_S]
        if gone:
            await self._context.ledger.run(leases.close_sessions, gone, now=now)
            self._context.pods.forget(gone)

    async def _let_go(self, now: float) -> None:
        """Prune a few slices; other calls of the ledger come in between."""
        if now - self._durable_at >= _DURABLE_S:
            self._durable_at = now
            self._durable_seq = await asyncio.to_thread(self._history.make_durable)
        for _ in range(_MOST_SLICES):
            if not await self._context.ledger.run(retention.prune, history_seq=self._durable_seq, now=now):
                return

    async def refresh(self) -> types.RunStatus:
        """Take a snapshot, bring the metrics up to it, and return the status that it makes."""
        serving = {pod.serving_version for pod in self._context.pods.all(enums.Role.ROLLOUT)}
        facts = await self._context.ledger.run(queries.snapshot, serving)
        if facts.counters.get("evaluations", 0) != self._num_evaluations:
            self._results = await self._context.ledger.run(evaluations.results)
            self._num_evaluations = facts.counters.get("evaluations", 0)
        total = status.progress(facts.counters)
        if total != self._progress:
            self._progress, self._progress_at, self._at_progress = total, self._context.clock.now(), facts.counters
        await self._watch_learning(facts)
        self._facts = facts
        self._failing_role = infra_share.failing_role(self._at_progress, facts.counters)
        self._infra_share = self._infra.look(facts.counters, now=self._context.clock.monotonic())
        view = self._view(facts)
        now = status.status(view)
        self._meter.update(view, now, ledger_bytes=self._context.ledger.num_bytes)
        return now

    async def _watch_learning(self, facts: queries.Facts) -> None:
        """Keep the best steps; name a run that loses what it had, once each time, and end it if asked to."""
        if (best := divergence.better(facts)) is not None:
            await self._context.ledger.run(best_steps.keep, best)
        concern = divergence.concern(self._context.config.spec, facts)
        if concern is not None and not self._diverged:
            logger.warning("the run diverges: %s", concern.message, extra={"event": "diverged"})
            if self._context.config.spec.failure_policy.on_divergence == "Fail":
                await self._context.ledger.run(groups.end_run, f"the run diverges: {concern.message}")
        self._diverged = concern is not None

    async def current(self) -> types.RunStatus:
        """Return the status now; from the last snapshot, with reason LedgerStuck, if the ledger does not answer or
        cannot commit.
        """
        try:
            now = await asyncio.wait_for(self.refresh(), STATUS_S)
            return status.stuck(now) if self._context.ledger.is_stuck else now
        except (TimeoutError, errors.UnavailableError):
            if self._facts is None:
                raise
            return status.stuck(status.status(self._view(self._facts)))

    def _view(self, facts: queries.Facts) -> status.View:
        return status.View(
            config=self._context.config,
            facts=facts,
            pods=self._context.pods.all(),
            results=self._results,
            now=self._context.clock.now(),
            started_at=self._context.started_at,
            last_progress_at=self._progress_at,
            infra_share=self._infra_share,
            failing_role=self._failing_role,
            evaluators=self._context.pods.evaluators,
            storage_problem=self._context.storage_problem,
        )

    async def _evaluate(self, now: float) -> None:
        running = await self._context.ledger.run(self._due, now)
        if running is None:
            return
        if running.total == 0:
            suites = list(self._context.suites.values())
            refs = evaluation.refs(suites, step=running.step)
            sizes = {suite.source.name: suite.samples_per_prompt for suite in suites}
            await self._context.ledger.run(
                evaluations.open_evaluation, step=running.step, refs=refs, sizes=sizes, now=now
            )
        elif running.finished == running.total:
            await self._finish_evaluation(running, now)

    def _due(self, ledger: database.Ledger, now: float) -> evaluations.Running | None:
        """Return the evaluation under way; begin the final one where the last step published no version of its own."""
        end = queries.completion(ledger)
        late = end.final_checkpoint_at is not None and now - end.final_checkpoint_at > _LATE_EVALUATION_S
        if self._context.suites and late and (end.newest_evaluated or 0) < end.last_step:
            versions.begin_evaluation(ledger, step=end.last_step, version=versions.head(ledger).version, now=now)
        return evaluations.running_evaluation(ledger)

    async def _finish_evaluation(self, running: evaluations.Running, now: float) -> None:
        items = await self._context.ledger.read(lambda database: evaluations.items_of(database, running.step))
        results = await asyncio.to_thread(self._score, running, items, now)
        await self._context.ledger.run(
            evaluations.finish_evaluation,
            step=running.step,
            results=results,
            metrics=evaluation.metrics(results),
            now=now,
        )

    def _score(
        self, running: evaluations.Running, items: Sequence[evaluations.Item], now: float
    ) -> dict[str, dict[str, object]]:
        """Score each suite and write its responses; written again if the process dies before the ledger knows."""
        folder = pathlib.Path(self._context.config.state_dir) / "eval_results"
        folder.mkdir(exist_ok=True)
        results: dict[str, dict[str, object]] = {}
        for name, suite in self._context.suites.items():
            chosen = [item for item in items if item.suite == name]
            results[name] = evaluation.suite_result(chosen, elapsed_s=now - running.started_at)
            lines = evaluation.responses(
                suite, chosen, version=running.version, generator=self._context.config.job.name
            )
            atomic.write_text(folder / f"{running.step}_{name}.json", json.dumps(lines, ensure_ascii=False))
        scores = {
            "step": running.step,
            "version": running.version,
            "metrics": evaluation.metrics(results),
            "missing": {name: result["missing"] for name, result in results.items() if result["missing"]},
        }
        atomic.write_text(folder / f"{running.step}.json", json.dumps(scores, ensure_ascii=False))
        return results


def _log(line: str) -> None:
    event = json.loads(line)
    if event["kind"] == "step" and event.get("phase") == enums.TrainingPhase.SFT:
        logger.info(
            "supervised step %d: loss %.4f, %d examples, %d tokens", event["step"],
            event["stats"].get(enums.StepStat.LOSS, math.nan), event["rows"], event["tokens"],
            extra={"event": "step", "step": event["step"]},
        )  # fmt: skip
    elif event["kind"] == "step":
        logger.info(
            "step %d: reward %.3f, %d tokens, ages %s", event["step"], learning.reward_of(event)[0], event["tokens"],
            event["staleness"], extra={"event": "step", "step": event["step"]},
        )  # fmt: skip
    elif event["kind"] == "evaluation":
        logger.info(
            "evaluated %s at step %d: accuracy %.3f", event["suite"], event["step"], event["accuracy"],
            extra={"event": "evaluation", "step": event["step"], "version": event["version"]},
        )  # fmt: skip
    elif event["kind"] == "evaluation_incomplete":
        logger.warning(
            "evaluation of %s at step %d has no result: %d items missing", event["suite"], event["step"],
            event["missing"], extra={"event": "evaluation_incomplete", "step": event["step"]},
        )  # fmt: skip
