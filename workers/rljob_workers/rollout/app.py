"""Puts a rollout process together: model, image, engine, receiver, worker, probes; and takes it apart again."""

import asyncio
import contextlib
import dataclasses
import functools
import logging
import multiprocessing
import os
import signal
import uuid
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import NoReturn

from rljob_api import enums, process_config, types
from rljob_workers.models import builtin, families, vision
from rljob_workers.rollout import (
    dumps,
    filters,
    grading,
    group,
    reporting,
    request_gate,
    tokenizer,
    wait_accounting,
    worker,
)
from rljob_workers.rollout.engines import base
from rljob_workers.rollout.episodes import registry as workflows
from rljob_workers.rollout.episodes import shell_tool, tool_use
from rljob_workers.rollout.gateway import garbage, sessions
from rljob_workers.rollout.sync import receiver as weights
from rljob_workers.rollout.sync import selftest, staging
from rljob_workers.rollout.tool_servers import sessions as tool_sessions
from rljob_workers.rpc import environment, verify, work
from rljob_workers.runtime import clock as clocks
from rljob_workers.runtime import health
from rljob_workers.runtime import metrics as metrics_module
from rljob_workers.weights import deadlines, initial, safetensors_file
from rljob_workers.weights.backends import base as weight_backends
from rljob_workers.weights.backends import peer_server

logger = logging.getLogger(__name__)

VERIFY_CALL_EXTRA_S = 30.0
# Of the image's bytes, what is kept of changes to serve other rollouts: those of ten versions at 1 % each.
KEPT_FOR_PEERS = 0.125
# Any words of which every tokenizer makes some tokens.
_SELFTEST_TEXT = "Seven plus five is twelve, and twelve is half of twenty-four: " * 8


def serve(config: process_config.RolloutConfig) -> None:
    """Run until drained. Raises the error that ended the process otherwise."""
    registration = base.find(config.spec.rollout.engine.type, adapted=config.spec.model.lora is not None)
    # Before the engine's library is imported, which reads them.
    os.environ.update(registration.environment(config.num_threads))
    with _ended_by_signals():
        registration.prepare()
    garbage.Survivors().watch()
    probes = reporting.Readiness(max_lag_steps=config.spec.async_.max_off_policy_steps)
    metrics = metrics_module.Metrics(role=enums.Role.ROLLOUT, job=config.job)
    with asyncio.Runner() as runner:
        stop = StopRequest(runner.get_loop())
        server = health.HealthServer(
            host=config.health_host,
            port=config.health_port,
            metrics=metrics,
            ready=lambda: probes.ready,
            alive=lambda: probes.alive,
            on_stop=stop.by_hook,
            token_file=health.stop_token_file(config),
        )
        # Before a model is loaded: probes are answered and a stop is heard meanwhile.
        server.start()
        try:
            runner.run(_serve(config, registration, probes, metrics, stop))
        except BaseExceptionGroup as group:
            raise _first(group) from group
        finally:
            server.close()


@contextlib.contextmanager
def _ended_by_signals() -> Iterator[None]:
    """While it lasts, a signal to stop ends the process as `_stopped_while_starting` does."""
    numbers = (signal.SIGTERM, signal.SIGINT)
    before = {number: signal.signal(number, lambda *_: _stopped_while_starting()) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _stopped_while_starting() -> NoReturn:
    logger.info("stopped while starting; nothing was leased", extra={"event": "exit"})
    # A thread that imports vllm cannot be stopped, and an orderly exit would wait for it, half a minute or more.
    for child in multiprocessing.active_children():
        child.kill()
    logging.shutdown()
    os._exit(int(enums.ExitCode.OK))


class StopRequest:
    """A request to drain, from any thread or a signal, before or after the worker exists.

    A pod's preStop hook asks by POST /stop and waits. Where the pod's grace is over before the drain is (a spot node's
    notice, an eviction with a grace of its own), the kubelet ends the hook, sends SIGTERM, and kills two seconds later:
    SIGTERM after POST /stop says that the time is up.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.requested, self.out_of_time = asyncio.Event(), asyncio.Event()
        self._by_hook = False

    def by_hook(self) -> None:
        """Drain; called on any thread."""
        self._by_hook = True
        self._loop.call_soon_threadsafe(self.requested.set)

    def by_signal(self, number: signal.Signals) -> None:
        """Drain, or hand everything back if a hook has asked for the drain before; called in the loop."""
        self.requested.set()
        if self._by_hook and number is signal.SIGTERM:
            self.out_of_time.set()

    async def drain(self, rollout: worker.RolloutWorker) -> None:
        """Wait for the request, and hand it to the worker."""
        await self.requested.wait()
        logger.info("draining")
        rollout.drain()
        await self.out_of_time.wait()
        logger.info("the pod's grace is over before the drain is: handing leases back", extra={"event": "out_of_time"})
        rollout.hand_back()


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    for error in group.exceptions:
        return _first(error) if isinstance(error, BaseExceptionGroup) else error
    raise AssertionError("an exception group has members")


async def _serve(
    config: process_config.RolloutConfig,
    registration: base.Registration,
    probes: reporting.Readiness,
    metrics: metrics_module.Metrics,
    stop: StopRequest,
) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.by_signal, number)
    clock = clocks.SystemClock()
    attempts = attempts_of(config, clock)
    # Before what takes minutes: a gateway without a key is refused.
    gateway = _gateway(config, attempts)
    places = places_of(config, clock)
    puller = weight_backends.find(config.spec.weight_sync.transport).puller(config)
    prepared = await _unless_stopped(_prepare(config, registration, puller, clock), stop)
    transport = work.WorkClient(address=config.coordinator_address, tls=config.tls)
    grading_client = functools.partial(
        verify.GradingClient,
        tls=config.tls,
        max_attempts=config.spec.failure_policy.max_infra_attempts_per_prompt,
        clock=clock,
    )
    verifiers = grading_client(
        addresses=config.verifier_addresses, timeout_s=config.verify_timeout_s + VERIFY_CALL_EXTRA_S
    )
    judge: verify.GradingClient | None = None
    if config.judge_address:
        limit_s = config.judge_timeout_s + VERIFY_CALL_EXTRA_S
        judge = grading_client(addresses=[config.judge_address], timeout_s=limit_s, role=enums.Role.JUDGE)
    try:
        registration.expose_metrics(metrics.registry)
        puller.image_bytes = prepared.stager.layout.image_bytes
        rollout = make_worker(
            config, prepared, transport, verifiers, puller, probes, metrics, clock, attempts, judge, places
        )
        async with contextlib.AsyncExitStack() as serving:
            if config.peers is not None and config.peers.address:
                puller.shelf.most_bytes = int(KEPT_FOR_PEERS * prepared.stager.layout.image_bytes)
                await serving.enter_async_context(peer_server.PeerServer(config, puller.shelf, puller.transfers))
            if gateway is not None:
                await serving.enter_async_context(gateway)
            draining = asyncio.ensure_future(stop.drain(rollout))
            await rollout.run()
            draining.cancel()
    finally:
        puller.close()
        await transport.close()
        await verifiers.close()
        if judge is not None:
            await judge.close()
        if places is not None:
            await places.close()
        await prepared.engine.close()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """What takes long: files, image, tokenizer, engine, servers of tools. model_bytes: of the files that an engine
    loads. picture_tokens: None for a model of texts. listings: None without servers.
    """

    model_bytes: int
    picture_tokens: vision.PictureTokens | None = None
    stager: staging.Stager
    tokens: tokenizer.PromptTokenizer
    engine: base.Engine
    listings: tool_sessions.Listings | None = None


async def _prepare(
    config: process_config.RolloutConfig,
    registration: base.Registration,
    puller: weight_backends.PlanningPuller,
    clock: clocks.Clock,
) -> Prepared:
    # First: one that is named wrongly is refused before a model is loaded.
    listings = await listings_of(config, clock)
    model = await asyncio.to_thread(builtin.ensure_model, config.model)
    logger.info("loading %s", config.model.name, extra={"event": "loading"})
    stager = await asyncio.to_thread(
        lambda: staging.Stager(
            first=initial.of_job(config.spec, model),
            job=config.job.name,
            puller=puller,
            clock=clock,
            shelf=puller.shelf,
        )
    )
    tokens = await asyncio.to_thread(load_tokenizer, config, model)
    engine = registration.make(_settings(config, model, stager))
    began = clock.monotonic()
    await engine.start()
    await selftest.check(
        engine,
        layout=stager.layout,
        version=stager.initial.version,
        prompt=tokens.encode(_SELFTEST_TEXT),
        longest=config.spec.rollout.engine.max_model_len,
        field="spec.model.name",
        name=config.model.name,
    )
    logger.info("the engine was ready", extra={"event": "loaded", "seconds": round(clock.monotonic() - began, 3)})
    model_bytes = safetensors_file.num_bytes(model)
    return Prepared(
        model_bytes=model_bytes,
        picture_tokens=vision.tokens_of(families.read(model)),
        stager=stager,
        tokens=tokens,
        engine=engine,
        listings=listings,
    )


async def _unless_stopped(preparing: Coroutine[object, object, Prepared], stop: StopRequest) -> Prepared:
    """Return what was prepared; if a stop is requested first, end the process here and now."""
    preparation = asyncio.ensure_future(preparing)
    stop_requested = asyncio.ensure_future(stop.requested.wait())
    await asyncio.wait({preparation, stop_requested}, return_when=asyncio.FIRST_COMPLETED)
    if preparation.done():
        stop_requested.cancel()
        return preparation.result()
    _stopped_while_starting()


def _settings(config: process_config.RolloutConfig, model: Path, stager: staging.Stager) -> base.Settings:
    return base.Settings(
        model=model,
        engine=config.spec.rollout.engine,
        lora=config.spec.model.lora,
        kv_cache_bytes=config.kv_cache_bytes,
        trust_remote_code=config.spec.model.trust_remote_code,
        image_path=stager.buffer.path,
        image_bytes=stager.layout.image_bytes,
        progress_path=stager.buffer.progress_path,
        loaded_bytes=stager.buffer.loaded_bytes,
    )


def make_worker(
    config: process_config.RolloutConfig,
    prepared: Prepared,
    transport: work.WorkTransport,
    verifiers: verify.Grading,
    puller: weight_backends.PlanningPuller,
    probes: reporting.Readiness,
    metrics: metrics_module.Metrics,
    clock: clocks.Clock,
    attempts: sessions.Sessions | None = None,
    judge: verify.Grading | None = None,
    places: shell_tool.Places | None = None,
) -> worker.RolloutWorker:
    """Put a rollout around what was prepared; it talks to `transport`, `verifiers`, `judge` and `puller`, offers
    `attempts` to agents outside, and lets episodes work in `places`.
    """
    stager, tokens, engine = prepared.stager, prepared.tokens, prepared.engine
    slots = wait_accounting.SlotWaits(num_slots=config.max_groups_in_flight, clock=clock)
    gate = request_gate.RequestGate(engine)
    receiver = weights.WeightReceiver(
        engine=engine,
        gate=gate,
        stager=stager,
        options=weights.UpdateOptions(
            in_flight=config.spec.async_.in_flight_weight_updates,
            recompute=config.spec.weight_sync.kv_cache == "Recompute",
            pause_deadline_s=deadlines.pause_deadline_s(stager.layout.image_bytes),
            restart_deadline_s=deadlines.restart_deadline_s(prepared.model_bytes),
        ),
        clock=clock,
        on_pause=slots.paused,
    )
    runner = group.GroupRunner(
        generator=gate,
        flow=flow_of(config, config.spec.data.template, tokens, attempts, places, prepared.listings),
        flow_by_suite=flows_of_suites(config, tokens, attempts, places, prepared.listings),
        verifiers=verifiers,
        receiver=receiver,
        max_attempts=config.spec.failure_policy.max_infra_attempts_per_prompt,
        clock=clock,
        metrics=metrics,
        sources=filters.Sources(config.spec.data.train, config.spec.evaluation.suites),
        example_tokens=tokens,
        predicate=filters.load_predicate(config.spec.data.filter_groups.predicate or "", file=config.user_code),
        judge=None if judge is None else grading.Judge(client=judge, graded_with=grading.judged_suites(config.spec)),
        picture_tokens=prepared.picture_tokens,
    )

    def on_session(token: str) -> None:
        puller.session = token

    def offer() -> types.WeightOffer:
        address = "" if config.peers is None else config.peers.address
        return types.WeightOffer(address=address, artifact_ids=puller.shelf.whole() if address else ())

    return worker.RolloutWorker(
        worker.WorkerOptions(
            pod=config.pod,
            boot_id=uuid.uuid4().hex,
            initial_state_hash=stager.initial.state_hash,
            max_groups=config.max_groups_in_flight,
            drain_s=float(config.spec.rollout.drain_seconds),
        ),
        worker.WorkerParts(
            transport=transport,
            runner=runner,
            receiver=receiver,
            waits=slots,
            report=reporting.Reporting(
                engine=engine,
                receiver=receiver,
                slots=slots,
                probes=probes,
                metrics=metrics,
                transfers=puller.transfers,
                clock=clock,
            ),
            dumper=dumps.Dumper(
                dumps.options_of(config.spec.observability, config.dump_dir),
                tokens,
                on_failure=lambda: metrics.counter("rljob_trajectory_dump_failures_total").inc(),
            ),
            clock=clock,
            on_session=on_session,
            offer=offer,
        ),
    )


def load_tokenizer(config: process_config.RolloutConfig, model: Path) -> tokenizer.PromptTokenizer:
    """Return the tokenizer that the config names, by default the model's. Raises ManifestError."""
    folder = builtin.ensure_tokenizer(config.model, config.spec.model.tokenizer, model)
    return tokenizer.PromptTokenizer(
        folder,
        template=config.spec.data.template,
        code=config.user_code,
        trust_remote_code=config.spec.model.trust_remote_code,
        picture_tokens=vision.tokens_of(families.read(model)),
    )


def flows_of_suites(
    config: process_config.RolloutConfig,
    tokens: tokenizer.PromptTokenizer,
    attempts: sessions.Sessions | None,
    places: shell_tool.Places | None,
    listings: tool_sessions.Listings | None = None,
) -> dict[str, group.Flow]:
    """Return the flow of each suite with a template of its own. Raises ManifestError."""
    template_by_suite = {suite.name: suite.template for suite in config.spec.evaluation.suites if suite.template}
    return {
        suite: flow_of(
            config,
            template,
            tokens.with_template(
                template, code=config.user_code, field=f"spec.evaluation.suites: template of '{suite}'"
            ),
            attempts,
            places,
            listings,
        )
        for suite, template in template_by_suite.items()
    }


def attempts_of(config: process_config.RolloutConfig, clock: clocks.Clock) -> sessions.Sessions | None:
    """Return where agents outside take their attempts, None where none come."""
    gateway = config.spec.rollout.gateway
    if gateway is None:
        return None
    limits = sessions.Limits(
        most=gateway.max_sessions, idle_s=float(gateway.idle_seconds), session_s=float(gateway.session_seconds)
    )
    return sessions.Sessions(limits, clock)


def places_of(config: process_config.RolloutConfig, clock: clocks.Clock) -> environment.Environments | None:
    """Return where episodes claim places with a shell, None where none has one. Nothing is connected yet."""
    if not config.environment_addresses:
        return None
    return environment.Environments(names=config.environment_addresses, tls=config.tls, clock=clock)


async def listings_of(
    config: process_config.RolloutConfig, clock: clocks.Clock, *, wait_s: float | None = None
) -> tool_sessions.Listings | None:
    """Return the tools of the job's servers, None without one; each is waited for `wait_s`, by default as long as for a
    place. Raises UnavailableError and ManifestError.
    """
    servers = config.spec.workflow.tool_servers
    if not servers:
        return None
    options = workflows.options_of(config.spec.workflow.type, config.spec.workflow.config)
    assert isinstance(options, tool_use.ToolUseConfig), "no other workflow has servers"
    # The client, which no other workflow needs.
    from rljob_workers.rollout.tool_servers import connection

    patience_s = options.wait_seconds if wait_s is None else wait_s
    return await tool_sessions.listings_of(servers, connection.opened, wait_s=patience_s, clock=clock)


def _gateway(
    config: process_config.RolloutConfig, attempts: sessions.Sessions | None
) -> contextlib.AbstractAsyncContextManager[object] | None:
    if config.gateway is None or attempts is None:
        return None
    # An HTTP server, which no other workflow needs.
    from rljob_workers.rollout.gateway import network

    return network.Gateway(config.gateway, attempts, network.key_of(os.environ), config.tls)


def flow_of(
    config: process_config.RolloutConfig,
    template: str,
    tokens: tokenizer.PromptTokenizer,
    attempts: sessions.Sessions | None,
    places: shell_tool.Places | None,
    listings: tool_sessions.Listings | None = None,
) -> group.Flow:
    """Return how prompts of one template become episodes of the workflow. Raises ManifestError."""
    collector = workflows.make_collector(
        workflow=config.spec.workflow.type,
        config=config.spec.workflow.config,
        tokens=tokens,
        template=template,
        max_model_len=config.spec.rollout.engine.max_model_len,
        code=config.user_code,
        attempts=attempts,
        places=places,
        listings=listings,
    )
    between = None
    if attempts is not None:
        between = enums.WaitReason.AGENTS
    elif places is not None:
        between = enums.WaitReason.ENVIRONMENT
    return group.Flow(tokens=tokens, collector=collector, between=between)
