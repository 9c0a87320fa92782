"""What the conversations of the coordinator share: config, clock, ledger, data, and the processes it has heard of."""

import dataclasses

from rljob_api import errors, process_config, types
from rljob_workers.coordinator import changes
from rljob_workers.coordinator.ledger import thread
from rljob_workers.coordinator.policy import prompts
from rljob_workers.coordinator.reporting import evaluation, processes
from rljob_workers.coordinator.weights import store, tracker
from rljob_workers.data import records
from rljob_workers.runtime import clock as clocks
from rljob_workers.runtime import metrics as metrics_module


@dataclasses.dataclass(kw_only=True)
class CoordinatorContext:
    """One coordinator's parts. `sources` are training sources, `suites` evaluation suites, by name. `examples`: the
    order of those of the supervised steps, None without any.

    `config` is the one in force: `config_watch.py` alone puts another in its place, whole, so read it when it is used.
    """

    config: process_config.CoordinatorConfig
    clock: clocks.Clock
    ledger: thread.LedgerThread
    changes: changes.Changes
    pods: processes.Pods
    metrics: metrics_module.Metrics
    order: prompts.TaskOrder
    sources: dict[str, records.LoadedSource]
    suites: dict[str, evaluation.Suite]
    artifacts: store.ArtifactStore
    tracker: tracker.Tracker
    started_at: float
    examples: prompts.TaskOrder | None = None
    # What the trainer last said of its object store.
    storage_problem: str = ""
    # The head, if a rollout needs it and nothing that is stored leads to it; the trainer sends it again.
    lost_version: int = types.NO_VERSION

    def record(self, ref: prompts.PromptRef, *, evaluating: bool) -> types.PromptRecord:
        """Raises DataError if the data no longer hold it."""
        if evaluating:
            suite = self.suites.get(ref.source)
            source = None if suite is None else suite.source
        else:
            source = self.sources.get(ref.source)
        if source is None or ref.index >= len(source.records):
            raise errors.DataError(f"prompt {ref.prompt_id!r} of source {ref.source!r} no longer exists")
        return dataclasses.replace(source.records[ref.index], epoch=ref.epoch)
