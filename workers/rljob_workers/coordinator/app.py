"""One coordinator process from start to SIGTERM: open the state, start the store, serve, close in order."""

import asyncio
import logging
import pathlib
import signal

from rljob_api import enums, process_config
from rljob_api.validation import rules
from rljob_workers.coordinator import changes, config_watch, context, dispatch, housekeeping, resume, service, training
from rljob_workers.coordinator.ledger import thread
from rljob_workers.coordinator.reporting import metrics
from rljob_workers.coordinator.trackers import processes as tracker_processes
from rljob_workers.coordinator.weights import registry, store_process, tracker
from rljob_workers.rpc import channel
from rljob_workers.runtime import clock as clocks
from rljob_workers.runtime import health
from rljob_workers.runtime import metrics as metrics_module

logger = logging.getLogger(__name__)
_GRACE_S = 1.0


async def serve(config: process_config.CoordinatorConfig, config_path: pathlib.Path) -> int:
    """Serve until SIGTERM or POST /stop; a background task that dies ends the process with its error."""
    stopping = asyncio.Event()
    event_loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        event_loop.add_signal_handler(number, stopping.set)

    def request_stop() -> None:
        event_loop.call_soon_threadsafe(stopping.set)

    clock = clocks.SystemClock()
    metrics = metrics_module.Metrics(role=enums.Role.COORDINATOR, job=config.job)
    data = await asyncio.to_thread(resume.load_data, config)
    state = resume.open_state(
        config, data_digest=data.digest, now=clock.now(), sft_steps=resume.sft_steps(data, config)
    )
    for warning in rules.warnings(config.spec):
        logger.warning("%s", warning, extra={"event": "doubtful_setting"})
    parts = make_context(config, clock=clock, metrics=metrics, data=data, state=state)
    store = store_process.StoreProcess(
        config_path=config_path,
        host=store_process.connect_host(config.bind_host),
        port=config.store_port,
        clock=clock,
    )
    probes = health.HealthServer(
        host=config.health_host,
        port=config.health_port,
        metrics=metrics,
        ready=lambda: (store.ready, "ok" if store.ready else "the weight store is starting"),
        on_stop=request_stop,
        token_file=health.stop_token_file(config),
    )
    probes.start()
    trackers = tracker_processes.Trackers(config, config_path=config_path, clock=clock)
    trackers.start()
    try:
        await _run(parts, state, store, config_watch.ConfigWatch(parts, config_path), stopping)
    finally:
        await trackers.close(last_seq=state.history.last_seq)
        await asyncio.to_thread(parts.ledger.close)
        probes.close()
        state.lock.close()
    return int(enums.ExitCode.OK)


def make_context(
    config: process_config.CoordinatorConfig,
    *,
    clock: clocks.Clock,
    metrics: metrics_module.Metrics,
    data: resume.Data,
    state: resume.State,
) -> context.CoordinatorContext:
    """Wire the shared parts; the ledger's thread starts here."""
    changed = changes.Changes(clock, changes.of(state.ledger))
    seconds = metrics.histogram("rljob_ledger_commit_seconds")
    return context.CoordinatorContext(
        config=config,
        clock=clock,
        ledger=thread.LedgerThread(
            state.ledger,
            on_change=lambda ledger: changed.pulse_from_thread(changes.of(ledger)),
            on_commit=seconds.observe,
            path=state.path,
        ),
        changes=changed,
        pods=state.pods,
        metrics=metrics,
        order=resume.order_of(data, config, version=state.ledger.order_version()),
        examples=resume.examples_of(data, config),
        sources=data.sources,
        suites=data.suites,
        artifacts=state.artifacts,
        tracker=tracker.Tracker(store_address=config.store_address),
        started_at=float(state.ledger.meta("created_at") or clock.now()),
    )


async def _run(
    parts: context.CoordinatorContext,
    state: resume.State,
    store: store_process.StoreProcess,
    watch: config_watch.ConfigWatch,
    stopping: asyncio.Event,
) -> None:
    publisher, trainer = registry.Publishing(parts), training.Training(parts)
    housekeeper = housekeeping.Housekeeper(parts, publisher, state.history)
    control = channel.aio_server(parts.config, on_error=metrics.fenced_calls(parts.metrics))
    service.add_services(
        control,
        work=dispatch.Dispatch(parts),
        trainer=trainer,
        weights=publisher,
        status=service.StatusService(parts, housekeeper, trainer),
    )
    channel.bind(control, f"{parts.config.bind_host}:{parts.config.control_port}", parts.config.tls)
    await control.start()
    logger.info("served on port %d", parts.config.control_port, extra={"event": "ready"})
    tasks = [
        asyncio.create_task(stopping.wait(), name="stopping"),
        asyncio.create_task(housekeeper.run(), name="housekeeper"),
        asyncio.create_task(trainer.builder.run(), name="builder"),
        asyncio.create_task(store.run(), name="store"),
        asyncio.create_task(watch.run(), name="config"),
    ]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        # Calls end before the tasks that they wait for, and the history is written last, with what both have noted.
        await control.stop(_GRACE_S)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await housekeeper.write_history()
