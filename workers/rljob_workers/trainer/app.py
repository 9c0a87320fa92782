"""Puts a rank together: model, engine, checkpoint, session, publisher, loop.

The order matters. The checkpoint is loaded before Register, which says the step that the run continues from. Version 0
is what the model files hold: if the trainer's own weights differ from it, or the registry has versions of an earlier
start, the loaded state is published before the first fetch, so that no rollout samples from weights no one trains.
"""

import contextlib
import dataclasses
import datetime
import logging
import pathlib
import threading
import uuid
import warnings
from collections.abc import Iterator
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist

from rljob_api import enums, errors, process_config, types
from rljob_workers.models import builtin
from rljob_workers.rpc import train as batches
from rljob_workers.runtime import clock as clocks
from rljob_workers.runtime import metrics as metrics_module
from rljob_workers.runtime import retry
from rljob_workers.trainer import batch_source, critic, learner, loop, metering
from rljob_workers.trainer.algorithms import entropy, policy_losses
from rljob_workers.trainer.engine import deepspeed, schedule
from rljob_workers.trainer.model import adapters, reference, selftest
from rljob_workers.trainer.state import (
    adapter_folder,
    anchoring,
    checkpoint,
    export,
    exporting,
    keeping,
    publish,
    remote,
    restoring,
    saving,
    uploading,
    warm_start,
)
from rljob_workers.weights import deadlines, image, initial, safetensors_file
from rljob_workers.weights.backends import base as weight_backends

logger = logging.getLogger(__name__)
T = TypeVar("T")

# How long an unreachable coordinator is asked again: its restart on another node, with its volume, fits in.
_RECONNECT_TIMEOUT_S = 600.0
# Weights, masters and moments, docs/storage.md.
_CHECKPOINT_BYTES_PER_PARAM = 14
# Pods of one trainer may start minutes apart: images are pulled, nodes are made.
_MEET_TIMEOUT_S = 900.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Loaded:
    """A model on this rank, in the state from which training continues.

    resumed: where that state comes from; uri: where it is in an object store, empty if it is not; is_fork: from another
    run's checkpoint, whose steps do not count here.
    """

    engine: deepspeed.Engine
    exporter: export.ImageExporter
    model_dir: pathlib.Path
    resumed: checkpoint.Checkpoint | None
    uri: str
    is_fork: bool
    initial_state_hash: str
    teacher: reference.FrozenModel | None
    reference: reference.FrozenModel | reference.WithoutAdapter | None
    frozen_hashes: checkpoint.FrozenHashes
    critic: deepspeed.CriticEngine | None

    @property
    def own(self) -> checkpoint.Checkpoint | None:
        return None if self.is_fork else self.resumed

    @property
    def step(self) -> int:
        return self.own.progress.step if self.own else 0


def train_device(config: process_config.TrainerConfig, local_rank: int) -> torch.device:
    """Return where this rank computes; auto takes CUDA where there is one."""
    wants_cuda = config.device == "cuda" or (config.device == "auto" and torch.cuda.is_available())
    return torch.device("cuda", local_rank) if wants_cuda else torch.device("cpu")


def run_rank(
    config: process_config.TrainerConfig,
    *,
    registry: metrics_module.Metrics,
    stop: threading.Event,
    registered: threading.Event,
    rank: int,
    local_rank: int,
) -> int:
    """Train until the coordinator says stop or finished; return the exit code. rank: among all; local_rank: here."""
    # Before anything is loaded: a custom loss that cannot be used ends the trainer at once.
    policy_losses.find(config.spec.algorithm.loss)
    if config.num_threads:
        torch.set_num_threads(config.num_threads)
    torch.manual_seed(config.spec.seed)
    # DeepSpeed calls collectives by their older names, at every step.
    warnings.filterwarnings("ignore", category=FutureWarning, module="torch.distributed")
    device = train_device(config, local_rank)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    model_dir = builtin.ensure_model(config.model)
    # On disk in the files' format; twice that where they are narrower than what is published.
    num_bytes = 2 * safetensors_file.num_bytes(model_dir)
    _meet(
        "nccl" if device.type == "cuda" else "gloo",
        config,
        rank,
        timeout_s=deadlines.collective_deadline_s(num_bytes),
    )
    group = _Group(local_rank)
    loaded = _load(config, model_dir, device, group)
    code = _run(config, loaded, registry, stop, registered, group)
    # All ranks are ended as soon as one ends with a code of its own: wait until every one is through.
    loaded.engine.barrier()
    dist.destroy_process_group()
    return code


def _meet(backend: str, config: process_config.TrainerConfig, rank: int, *, timeout_s: float) -> None:
    """Make the process group of all ranks. timeout_s: of its collectives, which do not wait for pods that start later.

    Raises errors.UnavailableError if not all ranks come.
    """
    ranks = config.spec.trainer.world_size
    host, port = config.rendezvous_host, config.rendezvous_port
    try:
        # All have come once it is made.
        store = cast(Any, dist).TCPStore(  # its stub does not say that it is exported
            host, port, ranks, is_master=rank == 0, timeout=datetime.timedelta(seconds=_MEET_TIMEOUT_S)
        )
    except (dist.DistError, RuntimeError) as error:
        raise errors.UnavailableError(f"{ranks} ranks did not meet at {host}:{port}: {error}") from error
    timeout = datetime.timedelta(seconds=timeout_s)
    dist.init_process_group(backend, store=store, rank=rank, world_size=ranks, timeout=timeout)


class _Group:
    """The ranks, before there is an engine."""

    def __init__(self, local_rank: int) -> None:
        self.rank, self.local_rank = dist.get_rank(), local_rank

    def gather(self, value: T) -> list[T]:
        """Return the value of each rank, in order; all ranks call it."""
        values: list[T | None] = [None] * dist.get_world_size()
        dist.all_gather_object(values, value)
        return cast(list[T], values)


def _load(
    config: process_config.TrainerConfig, model_dir: pathlib.Path, device: torch.device, group: _Group
) -> _Loaded:
    # On every rank: the layout says what each gathers and, of an adapter, what it begins with.
    first = initial.of_job(config.spec, model_dir)
    base = first.layout.base
    initial.check_alike(group.gather(first.layout.layout_id), name=config.model.name)
    newest = restoring.newest(checkpoint.store_of(config), remote.checkpoints_of(config), group)
    resumed = newest.checkpoint
    frozen_hashes = _frozen_hashes(config) if dist.get_rank() == 0 else checkpoint.NO_FROZEN
    if config.teacher is not None and frozen_hashes.teacher:
        logger.info(
            "the teacher is %s, whose tensors have the hash %s", config.teacher.name, frozen_hashes.teacher,
            extra={"event": "teacher"},
        )  # fmt: skip
    is_fork = resumed is None and config.spec.resume_from is not None
    if resumed is not None:
        checkpoint.check_same_run(resumed, config, frozen=frozen_hashes, base=base)
    elif config.spec.resume_from is not None:
        resumed = warm_start.find(config.fork_from, config.spec.resume_from.step)
        warm_start.check_same_model(resumed, config, base=base)
        logger.info("forked from step %d of %s", resumed.progress.step, resumed.path, extra={"event": "fork"})
    built = _build(config, model_dir, resumed, first, device)
    initial_hash = ""
    if built.rank == 0:
        # Of version 0, which every process of the run makes alike, whatever this one resumes from.
        initial_hash = _state_hash(config, first)
    _check_files(config, built, first.layout)
    place = deepspeed.place_frozen(config, device)
    frozen = reference.load(config, device, place=place)
    teacher = reference.load_teacher(config, model_dir, device, place=place)
    _test_models(config, built, frozen, teacher, device)
    return _Loaded(
        engine=built,
        exporter=export.of_job(config.spec, first.layout, visit=built.visit, writes=built.rank == 0),
        model_dir=model_dir,
        resumed=resumed,
        uri=newest.uri,
        is_fork=is_fork,
        initial_state_hash=initial_hash,
        reference=reference.of_job(config.spec, frozen, built),
        teacher=teacher,
        frozen_hashes=frozen_hashes,
        critic=_build_critic(config, model_dir, resumed, device),
    )


def _frozen_hashes(config: process_config.TrainerConfig) -> checkpoint.FrozenHashes:
    """Return which models the frozen ones are, whatever their names say."""

    def of(files: process_config.ModelFiles | None) -> str:
        if files is None:
            return ""
        return _state_hash(config, initial.of_model_files(builtin.ensure_model(files), config.spec.model.dtype))

    return checkpoint.FrozenHashes(reference=of(config.reference), teacher=of(config.teacher))


def _state_hash(config: process_config.TrainerConfig, first: initial.Initial) -> str:
    return first.manifest(config.job.name).state_hash


def _check_files(config: process_config.TrainerConfig, built: deepspeed.Engine, layout: types.Layout) -> None:
    """Raise ManifestError where files and model differ: what is published would lack tensors, or have too many."""
    try:
        built.check_files(layout)
    except errors.WeightsError as error:
        raise errors.ManifestError(f"spec.model.name is {config.model.name!r}, but {error}") from error


def _test_models(
    config: process_config.TrainerConfig,
    built: deepspeed.Engine,
    frozen: reference.FrozenModel | None,
    teacher: reference.FrozenModel | None,
    device: torch.device,
) -> None:
    """Prove that packing is exact for the policy, the reference and the teacher. A critic is the policy's decoder."""
    named: list[tuple[selftest.Model, str, str]] = [(built, "spec.model.name", config.model.name)]
    if frozen is not None and config.reference is not None:
        named.append((frozen, "spec.model.reference.name", config.reference.name))
    if teacher is not None and config.teacher is not None:
        named.append((teacher, "spec.teacher.model", config.teacher.name))
    for model, field, name in named:
        selftest.check(
            model,
            built,
            device=device,
            longest=config.spec.rollout.engine.max_model_len,
            field=field,
            name=name,
            clock=clocks.SystemClock(),
        )


def _build_critic(
    config: process_config.TrainerConfig,
    model_dir: pathlib.Path,
    resumed: checkpoint.Checkpoint | None,
    device: torch.device,
) -> deepspeed.CriticEngine | None:
    if config.spec.algorithm.critic is None:
        return None
    state = saving.critic_folder(resumed)
    if resumed is not None and state is None:
        logger.warning("the checkpoint of step %d has no critic; a new one is initialized", resumed.progress.step)
    with _quiet():
        built = deepspeed.CriticEngine(config, model_dir, device)
        if state is not None:
            built.load(state)
    return built


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """DeepSpeed logs to the root logger about compilers and libraries that it looks for and does not need."""
    logging.disable(logging.INFO)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)


def _build(
    config: process_config.TrainerConfig,
    model_dir: pathlib.Path,
    resumed: checkpoint.Checkpoint | None,
    first: initial.Initial,
    device: torch.device,
) -> deepspeed.Engine:
    lora, weights = config.spec.model.lora, saving.weights_folder(resumed)
    adapter = None
    if lora is not None:
        values = export.views(first.layout, first.image()) if weights is None else adapter_folder.read(weights)
        adapter = adapters.Adapter(lora=lora, layout=first.layout, values=values)
    with _quiet():
        built = deepspeed.Engine(config, model_dir if lora or not weights else weights, device, adapter=adapter)
        state = saving.state_folder(resumed)
        if state is not None:
            built.load(state)
    return built


def _run(
    config: process_config.TrainerConfig,
    loaded: _Loaded,
    registry: metrics_module.Metrics,
    stop: threading.Event,
    registered: threading.Event,
    group: _Group,
) -> int:
    clock, first = clocks.SystemClock(), loaded.engine.rank == 0
    client = batches.BatchClient(address=config.coordinator_address, tls=config.tls)
    session = _register(config, loaded, client)
    registered.set()
    transport = weight_backends.find(config.spec.weight_sync.transport).publisher(config) if first else None
    if transport is not None:
        transport.session = session.token
    publisher = publish.VersionPublisher(
        exporter=loaded.exporter,
        transport=transport,
        job=config.job.name,
        attempt=config.attempt,
        head=session.head_version,
        description=f"rljob zero{config.spec.trainer.deepspeed.zero_stage}",
        anchors=anchoring.Anchors(config.spec.weight_sync),
        clock=clock,
        reconnect_timeout_s=deadlines.reconnect_deadline_s(loaded.exporter.layout.image_bytes),
        image_piece_bytes=enums.PIECE_BYTES if config.spec.rollouts_serve_weights else 0,
    )
    if _publishes_first(loaded, session):
        publisher.publish(loaded.step)
    else:
        publisher.compare_with_image()
    meter = metering.Meter(registry, clock) if first else None
    keeper = _keeper(config, loaded, group, meter)
    loop = _loop(config, loaded, client, publisher, stop, meter, keeper, group)
    try:
        return int(loop.run())
    finally:
        if keeper is not None:
            keeper.close()
        publisher.close()
        if transport is not None:
            transport.close()
        client.close()


def _register(config: process_config.TrainerConfig, loaded: _Loaded, client: batches.BatchClient) -> types.Session:
    boot_id = uuid.uuid4().hex
    return retry.retry_sync(
        lambda: client.register(
            pod=config.pod,
            boot_id=boot_id,
            attempt=config.attempt,
            rank=loaded.engine.rank,
            resume_step=loaded.step,
            initial_state_hash=loaded.initial_state_hash,
        ),
        deadline_s=_RECONNECT_TIMEOUT_S,
        backoff=retry.Backoff(first_s=0.2, most_s=5.0),
    )


def _publishes_first(loaded: _Loaded, session: types.Session) -> bool:
    """Return, equal on all ranks, whether the loaded state must become a version before the first fetch."""
    # On all ranks: parameters are gathered from each of them, and the answer below is agreed on.
    data = loaded.exporter.export()
    needed = False
    if loaded.engine.rank == 0:
        layout = loaded.exporter.layout
        differs = image.state_hash(layout, image.digests(data, layout)) != loaded.initial_state_hash
        needed = loaded.step > 0 or session.head_version > 0 or differs or loaded.is_fork
        if differs and loaded.step == 0 and not loaded.is_fork:
            logger.warning("the trainer's first weights differ from the model files; they are published as version 1")
    return loaded.engine.largest([float(needed)])[0] > 0


def _keeper(
    config: process_config.TrainerConfig, loaded: _Loaded, group: _Group, meter: metering.Meter | None
) -> uploading.Uploader | None:
    """Return what brings checkpoints to the object store, with the one that the run continues from; None without a
    store.
    """
    store = remote.checkpoints_of(config)
    if store is None:
        return None
    spec, own = config.spec.checkpoint, loaded.own
    keeper = uploading.Uploader(
        store=store,
        node=checkpoint.store_of(config),
        ranks=loaded.engine,
        is_first_of_node=group.local_rank == 0,
        retention=uploading.Retention(keep_last=spec.keep_last, keep_every=spec.keep_every or 0),
        clock=clocks.SystemClock(),
        meter=meter,
        resumed=keeping.DurableCheckpoint(step=loaded.step, uri=loaded.uri, seconds=0.0)
        if own and loaded.uri
        else None,
    )
    if own is not None and not loaded.uri:
        # It was written, and the process ended before it was sent.
        keeper.offer(step=loaded.step, seconds=0.0)
    return keeper


def _loop(
    config: process_config.TrainerConfig,
    loaded: _Loaded,
    client: batches.BatchClient,
    publisher: publish.VersionPublisher,
    stop: threading.Event,
    meter: metering.Meter | None,
    keeper: uploading.Uploader | None,
    group: _Group,
) -> loop.StepLoop:
    clock, progress = clocks.SystemClock(), loaded.own.progress if loaded.own else None
    count, critic_count = schedule.UpdateCount(), schedule.UpdateCount()
    if progress is not None:
        count = schedule.UpdateCount(progress.updates_applied, progress.skipped_in_a_row)
        critic_count = schedule.UpdateCount(progress.critic_updates_applied, progress.critic_skipped_in_a_row)
    entropy_coef = entropy.AdaptiveCoefficient.of(
        config.spec.algorithm,
        coef=None if progress is None else progress.entropy_coef,
        entropy=None if progress is None else progress.entropy,
    )
    steps = learner.Learner(
        engine=loaded.engine,
        reference=loaded.reference,
        teacher=loaded.teacher,
        critic=None if loaded.critic is None else critic.Critic(loaded.critic, config.spec, critic_count),
        spec=config.spec,
        clock=clock,
        count=count,
        entropy_coef=entropy_coef,
        waiting=contextlib.nullcontext if meter is None else meter.waiting,
    )
    return loop.StepLoop(
        config=loop.LoopConfig(
            publish_every=config.spec.weight_sync.every_steps,
            checkpoint_every=config.spec.checkpoint.every_steps,
            export=config.spec.checkpoint.export_hugging_face,
            finish_settle_s=deadlines.last_checkpoint_deadline_s(
                _CHECKPOINT_BYTES_PER_PARAM * image.num_elements(loaded.exporter.layout)
            ),
        ),
        source=batch_source.BatchSource(
            transport=client,
            rank=loaded.engine.rank,
            world_size=loaded.engine.world_size,
            stop=stop,
            reconnect_timeout_s=_RECONNECT_TIMEOUT_S,
            supply=publisher.supply,
        ),
        learner=steps,
        publisher=publisher,
        checkpoints=saving.RankCheckpoints(
            engine=loaded.engine,
            exporter=loaded.exporter,
            config=config,
            model_dir=loaded.model_dir,
            progress=count,
            critic=loaded.critic,
            critic_progress=critic_count,
            entropy_coef=entropy_coef,
            frozen=loaded.frozen_hashes,
            before_export=publisher.flush,
            keeper=keeper,
            prepares=None if keeper is None else group.local_rank == 0,
            send_export=exporting.sender(config),
        ),
        meter=meter,
        clock=clock,
        completed=loaded.step,
    )
