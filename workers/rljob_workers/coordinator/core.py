"""What the conversations of the coordinator share: config, clock, ledger, data, and the processes it has heard of."""

import dataclasses

from rljob_api import errors, roles, types
from rljob_workers.coordinator import changes, evaluation, ledger, pods, tasks, weight_store
from rljob_workers.data import records
from rljob_workers.runtime import clock as clocks
from rljob_workers.runtime import metrics as metrics_module


@dataclasses.dataclass(kw_only=True)
class Core:
    """One coordinator's parts. `sources` are training sources, `suites` evaluation suites, by name.

    `config` is the one in force: `config_watch.py` alone puts another in its place, whole, so read it when it is used.
    """

    config: roles.CoordinatorConfig
    clock: clocks.Clock
    ledger: ledger.LedgerThread
    changes: changes.Changes
    pods: pods.Pods
    metrics: metrics_module.Metrics
    order: tasks.TaskOrder
    sources: dict[str, records.LoadedSource]
    suites: dict[str, evaluation.Suite]
    artifacts: weight_store.ArtifactStore
    started_at: float

    def record(self, ref: tasks.PromptRef, *, evaluating: bool) -> types.PromptRecord:
        """Return the record of a prompt. Raises DataError if the data no longer hold it."""
        if evaluating:
            suite = self.suites.get(ref.source)
            source = None if suite is None else suite.source
        else:
            source = self.sources.get(ref.source)
        if source is None or ref.index >= len(source.records):
            raise errors.DataError(f"prompt {ref.prompt_id!r} of source {ref.source!r} is no longer there")
        return dataclasses.replace(source.records[ref.index], epoch=ref.epoch)
