"""Opening the state directory: for the first time, or again after a restart or crash. What must be unchanged is
compared.
"""

import contextlib
import dataclasses
import fcntl
import logging
import pathlib
from typing import IO

from rljob_api import enums, errors, process_config
from rljob_workers.coordinator.ledger import checkpoints, database, groups, leases, sessions, versions
from rljob_workers.coordinator.policy import prompts
from rljob_workers.coordinator.reporting import evaluation, history, processes
from rljob_workers.coordinator.weights import store
from rljob_workers.data import records

logger = logging.getLogger(__name__)
LEDGER = "ledger.sqlite"
_FROZEN = "use another run or state directory, or restore the old value"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Data:
    """All loaded sources. indexes: of prompts; examples: of those of the supervised steps."""

    sources: dict[str, records.LoadedSource]
    suites: dict[str, evaluation.Suite]
    indexes: tuple[prompts.SourceIndex, ...]
    examples: tuple[prompts.SourceIndex, ...] = ()
    digest: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class State:
    """An opened state directory. `lock` keeps a second coordinator out as long as it is open."""

    ledger: database.Ledger
    path: pathlib.Path
    artifacts: store.ArtifactStore
    history: history.HistoryFile
    pods: processes.Pods
    lock: IO[str]


def load_data(config: process_config.CoordinatorConfig) -> Data:
    """Load and validate all sources. Raises DataError with every problem."""
    spec = records.on_this_machine(config.spec, pathlib.Path(config.cache_dir))
    sources = {source.name: records.load_source(source) for source in spec.data.train}
    suites = {
        suite.name: evaluation.Suite(
            source=records.load_source(suite), samples_per_prompt=config.spec.evaluation.samples_per_prompt
        )
        for suite in spec.evaluation.suites
    }
    indexes, examples = (
        tuple(
            prompts.SourceIndex(name=name, prompt_ids=sources[name].prompt_ids, weight=sources[name].weight)
            for name in (source.name for source in chosen)
        )
        for chosen in (spec.data.prompt_sources, spec.data.example_sources)
    )
    data = Data(
        sources=sources,
        suites=suites,
        indexes=indexes,
        examples=examples,
        digest=prompts.digest((*indexes, *examples)),
    )
    order_of(data, config)
    sft_steps(data, config)
    return data


def order_of(
    data: Data, config: process_config.CoordinatorConfig, *, version: int = prompts.VERSION
) -> prompts.TaskOrder:
    """Return the order of the prompts; `version` is the one that the ledger was made with. Raises DataError without a
    prompt.
    """
    spec = config.spec
    return prompts.TaskOrder(
        data.indexes, seed=spec.seed, shuffle=spec.data.shuffle, epochs=spec.data.epochs or 0, version=version
    )


def examples_of(data: Data, config: process_config.CoordinatorConfig) -> prompts.TaskOrder | None:
    """Return the order of the examples, which has no end; None without any. Raises DataError if there is no example."""
    spec = config.spec
    if spec.sft is None or config.evaluates_only:
        return None
    return prompts.TaskOrder(data.examples, seed=prompts.derive("sft", spec.seed), shuffle=spec.data.shuffle)


def sft_steps(data: Data, config: process_config.CoordinatorConfig) -> int:
    """Return how many steps are supervised. Raises ManifestError for more than the run has."""
    sft, order = config.spec.sft, examples_of(data, config)
    if sft is None or order is None:
        return 0
    count = sft.num_steps(order.epoch_size)
    if count > config.spec.max_steps:
        raise errors.ManifestError(
            f"spec.sft.epochs is {sft.epochs}, which over {order.epoch_size} examples makes {count} steps of"
            f" {sft.examples_per_step}, but spec.maxSteps {config.spec.max_steps} counts them too: raise it to these"
            " and the steps of RL"
        )
    return count


def open_state(config: process_config.CoordinatorConfig, *, data_digest: str, now: float, sft_steps: int = 0) -> State:
    """Open the state directory. Raises ManifestError if it belongs to another job or was made with frozen fields
    changed, UnavailableError if another coordinator uses it.
    """
    folder = pathlib.Path(config.state_dir)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / LEDGER
    with contextlib.ExitStack() as undo:
        # The lock first: a second coordinator must not even open the ledger.
        lock = undo.enter_context(_lock(folder / "lock"))
        # Asked before the ledger is opened, which makes the file.
        again = path.exists()
        ledger = undo.enter_context(contextlib.closing(database.Ledger(path, config, now=now)))
        with ledger.transaction():
            sessions.bind(ledger, _identity(config, data_digest, sft_steps), remedy=_FROZEN)
            ledger.sft_steps = sft_steps
            _rebuild(ledger, config, again=again, now=now)
        artifacts = store.ArtifactStore(pathlib.Path(config.weights_dir))
        _remove_orphans(artifacts, ledger)
        state = State(
            ledger=ledger,
            path=path,
            artifacts=artifacts,
            history=history.HistoryFile(folder / history.FILE_NAME),
            pods=_known_pods(ledger),
            lock=lock,
        )
        undo.pop_all()
    return state


def _remove_orphans(artifacts: store.ArtifactStore, ledger: database.Ledger) -> None:
    referenced = {artifact for version in versions.stored_versions(ledger) for artifact in version.artifact_ids}
    orphans = artifacts.remove_orphans(referenced)
    if orphans:
        logger.info("removed %d orphaned artifacts", len(orphans))


def _lock(path: pathlib.Path) -> IO[str]:
    lock = path.open("w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        lock.close()
        raise errors.UnavailableError(f"another coordinator uses the state directory {path.parent}") from error
    return lock


def _identity(config: process_config.CoordinatorConfig, data_digest: str, sft_steps: int) -> dict[str, str]:
    sft = config.spec.sft
    supervised = {} if sft is None else {
        "supervised steps (spec.sft)": str(sft_steps),
        "spec.sft.examplesPerStep": str(sft.examples_per_step),
    }  # fmt: skip
    return supervised | {
        "job uid": config.job.uid,
        "spec.seed": str(config.spec.seed),
        "spec.algorithm.promptsPerStep": str(config.spec.algorithm.prompts_per_step),
        "spec.algorithm.groupSize": str(config.spec.algorithm.group_size),
        "digest of spec.data.train": data_digest,
    }


def _rebuild(ledger: database.Ledger, config: process_config.CoordinatorConfig, *, again: bool, now: float) -> None:
    """Leases get one more period: their workers live on and renew. Counters need nothing: they are counted, not
    stored.
    """
    groups.take_over(ledger, config, now=now)
    if again:
        checkpoints.go_on_after_end(ledger)
        leases.extend_all(ledger, now=now)
        ledger.note({"kind": "restart", "at": now, "role": enums.Role.COORDINATOR, "step": groups.committed(ledger)})
    # The first version of a fork is evaluated when it is published.
    if (
        evaluation.due_before_training(config.spec.evaluation)
        and groups.committed(ledger) == 0
        and not config.first_version
    ):
        versions.begin_evaluation(ledger, step=0, version=0, now=now)


def _known_pods(ledger: database.Ledger) -> processes.Pods:
    pods = processes.Pods()
    for row in sessions.open_sessions(ledger):
        pods.add(
            processes.Pod(
                token=row["token"],
                role=enums.Role(row["role"]),
                pod=row["pod"],
                attempt=row["attempt"],
                rank=row["rank"],
                last_seen=row["opened_at"],
            )
        )
    return pods
