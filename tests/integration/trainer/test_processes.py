"""`rljob-trainer` as operator and local runner start it: real processes, DeepSpeed, gRPC, and a fake coordinator. But
where the start of the program is in question, they are forks of a process that has imported torch and DeepSpeed.
"""

import collections
import dataclasses
import json
import os
import pathlib
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence

import pytest
import torch
from safetensors.torch import load_file

from rljob_api import enums, process_config, types
from rljob_api.manifest.algorithm import CriticSpec, NormalizeSpec
from rljob_api.manifest.loss import LossSpec
from rljob_testing import charts, fake_coordinator, local_weights, minio
from rljob_testing import trainer_makers as makers
from rljob_testing.nursery import Child, Nursery
from rljob_testing.sections import section, with_spec
from rljob_workers.trainer import stop
from rljob_workers.weights import image, initial

pytestmark = pytest.mark.timeout(400)
_END_S = 180.0


def steps(count: int, *, parts: int = 1) -> list[tuple[types.BatchHeader, list[types.MicroBatch]]]:
    """Return batches of 4 groups of 3 rows in `parts` micro-batches."""
    made = []
    for step in range(1, count + 1):
        groups = makers.make_rows(groups=4, size=3, seed=step, step=step - 1)
        packs = [makers.pack(groups[part::parts], shared=True) for part in range(parts)]
        made.append((makers.make_header(step=step, minibatches=[makers.minibatch_of(groups)]), packs))
    return made


def per_rank(
    batches: Sequence[tuple[types.BatchHeader, list[types.MicroBatch]]], ranks: int
) -> list[tuple[types.BatchHeader, fake_coordinator.Parts]]:
    return fake_coordinator.split_ranks(dict(enumerate(batches)), ranks)


def with_preparation(config: process_config.TrainerConfig) -> process_config.TrainerConfig:
    """Return the config with all that sees the whole step: KL to the first weights, a critic, whitening, M2PO's cut."""
    changes = makers.make_returns(
        gamma=0.9, lambda_="0.8", bootstrap_truncated=True, normalize=section(NormalizeSpec, mean="Group", std="Batch")
    )
    loss = section(
        LossSpec, constant_denominator=8.0, kl_coef=0.1, kl_estimator="K1", kl_placement="Reward", m2_threshold=3.0
    )
    changed = with_spec(config, changes, loss=loss, critic=section(CriticSpec, learning_rate=1e-2))
    return changed.model_copy(update={"reference": config.model})


@dataclasses.dataclass
class Trainer:
    """A started trainer: a fork that has imported what it needs, or the program."""

    process: "Child | subprocess.Popen[bytes]"
    config: process_config.TrainerConfig
    log: pathlib.Path

    def ask_to_stop(self) -> None:
        os.kill(self.process.pid, signal.SIGTERM)

    def end(self) -> int:
        """Wait for it and return its exit code; its output is shown if the test fails."""
        try:
            return self.process.hear()["code"] if isinstance(self.process, Child) else self.process.wait(_END_S)
        finally:
            print(self.log.read_text()[-12000:])

    def kill(self) -> None:
        self.process.kill()
        if not isinstance(self.process, Child):
            self.process.wait()


Start = Callable[..., Trainer]


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    made = Nursery("rljob_testing.warm_trainer")
    yield made
    made.close()


@pytest.fixture
def start(
    tmp_path: pathlib.Path, tiny_models: dict[str, pathlib.Path], free_ports: list[int], nursery: Nursery
) -> Iterator[Start]:
    running: list[Trainer] = []

    def started(
        coordinator: fake_coordinator.FakeCoordinator,
        *,
        dtype: str = "float32",
        stage: int = 0,
        ranks: int = 1,
        attempt: int = 1,
        checkpoint_every: int = 0,
        folder: str = "run",
        prepared: bool = False,
        fork_from: str = "",
        changes: Mapping[str, object] | None = None,
        environment: Mapping[str, str] | None = None,
        rendezvous_port: int | None = None,
        is_program: bool = False,
    ) -> Trainer:
        home = tmp_path / folder
        home.mkdir(exist_ok=True)
        config = makers.make_trainer_config(
            home,
            model_dir=tiny_models[dtype],
            dtype=dtype,
            processes_per_node=ranks,
            zero_stage=stage,
            coordinator_address=coordinator.address,
            store_address=coordinator.address,
            rendezvous_port=free_ports.pop() if rendezvous_port is None else rendezvous_port,
            health_port=free_ports.pop(),
            attempt=attempt,
            fork_from=fork_from,
            resume_from={"uri": fork_from} if fork_from else None,
            keep_last=1,
            changes={"checkpoint.everySteps": checkpoint_every or 1000, **(changes or {})},
        )
        config = with_preparation(config) if prepared else config
        path = home / f"trainer-{config.health_port}.json"
        path.write_text(config.model_dump_json())
        log = path.with_suffix(".log")
        process: Child | subprocess.Popen[bytes]
        if is_program:
            command = [sys.executable, "-m", "rljob_workers.trainer", "--config", str(path)]
            variables = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **(environment or {})}
            with log.open("ab") as output:
                process = subprocess.Popen(command, stdout=output, stderr=output, env=variables)
        else:
            process = nursery.start(log, str(path), json.dumps(dict(environment or {})), limit_s=_END_S)
        running.append(Trainer(process, config, log))
        return running[-1]

    yield started
    for trainer in running:
        trainer.kill()


@pytest.fixture
def coordinate() -> Iterator[Callable[..., fake_coordinator.FakeCoordinator]]:
    made: list[fake_coordinator.FakeCoordinator] = []

    def coordinator(
        batches: list[tuple[types.BatchHeader, fake_coordinator.Parts]], *, hold_at: int | None = None, head: int = 0
    ) -> fake_coordinator.FakeCoordinator:
        made.append(fake_coordinator.FakeCoordinator(batches=batches, hold_at=hold_at, head=head))
        return made[-1]

    yield coordinator
    for one in made:
        one.close()


Coordinate = Callable[..., fake_coordinator.FakeCoordinator]


def test_zero_0_2_and_3_on_two_ranks_give_the_same_weights(
    start: Start, coordinate: Coordinate, tiny_models: dict[str, pathlib.Path]
) -> None:
    final: dict[int, dict[str, torch.Tensor]] = {}
    for stage in (0, 2, 3):
        # Three micro-batches for two ranks: the second rank runs an idle one in each step.
        coordinator = coordinate(per_rank(steps(3, parts=3), 2))
        # With one update a step the policy that it starts from is the training forward itself.
        changes = {"algorithm.loss.proximal": "Recompute", "maxSteps": 3, "trainer.optimizer.averageSteps": 2}
        trainer = start(
            coordinator,
            dtype="bfloat16",
            stage=stage,
            ranks=2,
            folder=f"zero{stage}",
            changes=changes,
            is_program=stage == 3,
        )
        assert trainer.end() == enums.ExitCode.OK
        final[stage] = load_file(pathlib.Path(trainer.config.export_dir) / "model.safetensors")
        _check_versions(coordinator, tiny_models["bfloat16"], "bfloat16")
        _check_stats(coordinator)
    for stage in (2, 3):
        for name, expected in final[0].items():
            # bf16 values are 2^-8 of themselves apart: on average they agree far better than that.
            spacing = float(expected.float().abs().mean()) / 256
            apart = float((final[stage][name].float() - expected.float()).abs().mean())
            assert apart <= 0.1 * spacing, f"ZeRO-{stage}: {name}"


def test_what_is_prepared_from_the_whole_step_does_not_depend_on_the_ranks(
    start: Start, coordinate: Coordinate
) -> None:
    final: dict[int, dict[str, torch.Tensor]] = {}
    stats: dict[int, dict[int, dict[str, float]]] = {}
    for ranks, stage in ((1, 0), (2, 3)):
        coordinator = coordinate(per_rank(steps(2, parts=3), ranks))
        trainer = start(coordinator, stage=stage, ranks=ranks, folder=f"ranks{ranks}", prepared=True)
        assert trainer.end() == enums.ExitCode.OK
        final[ranks] = load_file(pathlib.Path(trainer.config.export_dir) / "model.safetensors")
        stats[ranks] = {step: dict(coordinator.stats[step]) for step in (1, 2)}
    for step in (1, 2):
        for stat in (
            "policy/loss", "policy/ref_kl", "behavior/masked_ratio", "optim/grad_norm", "critic/loss",
            "critic/grad_norm", "critic/explained_variance", "adv/std", "adv/max", "groups/zero_adv",
        ):  # fmt: skip
            assert stats[2][step][stat] == pytest.approx(stats[1][step][stat], rel=1e-3, abs=1e-6), stat
    assert 0.0 < stats[1][1]["behavior/masked_ratio"] < 1.0
    # Before anything was learned all values are 0, and explain nothing.
    assert stats[1][1]["critic/explained_variance"] == pytest.approx(0.0, abs=1e-9)
    assert stats[1][2]["critic/explained_variance"] != 0.0
    # The first step starts from the reference itself.
    assert stats[1][1]["policy/ref_kl"] == pytest.approx(0.0, abs=1e-6)
    assert stats[1][2]["policy/ref_kl"] != 0.0
    for name, expected in final[1].items():
        torch.testing.assert_close(final[2][name], expected, rtol=1e-3, atol=2e-5, msg=name)


def _check_versions(coordinator: fake_coordinator.FakeCoordinator, model_dir: pathlib.Path, dtype: str) -> None:
    layout, version, _ = local_weights.initial_version(model_dir, "job", dtype)
    assert coordinator.initial_hashes == [version.state_hash]
    # Nothing is published before the first step: the trainer's own weights are those of the model files.
    events = ["register resume 0"]
    for step in (1, 2, 3):
        events += [f"step {step}", f"version {step} of step {step}"]
    # Publishing continues behind the next step; only the order of versions, and after their commit, is promised.
    assert collections.Counter(coordinator.events) == collections.Counter([*events, "checkpoint 3 final"])
    assert [found.step for found in coordinator.versions] == [1, 2, 3]
    assert coordinator.layout == layout
    for found in coordinator.versions:
        image.verify(memoryview(coordinator.image(found.version)), layout, found)


def _beginning(coordinator: fake_coordinator.FakeCoordinator) -> tuple[str, str]:
    """Return the first event, and the first version (sent behind the first step, whose groups are here already)."""
    return coordinator.events[0], next(event for event in coordinator.events if event.startswith("version "))


def _check_stats(coordinator: fake_coordinator.FakeCoordinator) -> None:
    for step in (1, 2, 3):
        rows = makers.make_rows(groups=4, size=3, seed=step)
        tokens = sum(len(row.targets) for group in rows for row in group)
        stats = coordinator.stats[step]
        assert stats["batch/tokens"] == stats["mismatch/tokens"] == tokens
        assert stats["batch/rows"] == 12
        # The gap between engine and trainer, reported with every step.
        assert stats["mismatch/abs_diff"] > 0.0
        assert stats["policy/ratio_mean"] == pytest.approx(1.0)
        assert stats["optim/grad_norm"] > 0.0


@pytest.mark.covers("algorithms 10")
@pytest.mark.parametrize("averaged", [None, 3], ids=["last weights", "mean of the last three"])
def test_a_run_that_was_stopped_and_went_on_ends_with_the_weights_of_one_that_was_not(
    averaged: int | None, start: Start, coordinate: Coordinate
) -> None:
    changes: dict[str, object] = {"maxSteps": 4, "trainer.optimizer.averageSteps": averaged}
    straight = coordinate(per_rank(steps(4), 1))
    assert start(straight, folder="straight", prepared=True, changes=changes).end() == enums.ExitCode.OK

    before = coordinate(per_rank(steps(4), 1), hold_at=3)
    trainer = start(before, prepared=True, changes=changes)
    assert before.wait_for("step 2")
    trainer.ask_to_stop()
    assert trainer.end() == enums.ExitCode.STOPPED_ON_REQUEST
    assert before.events[-1] == "checkpoint 2"

    after = coordinate(per_rank(steps(4), 1), head=2)
    resumed = start(after, attempt=2, checkpoint_every=3, prepared=True, changes=changes)
    assert resumed.end() == enums.ExitCode.OK
    # The loaded state becomes a version of its own before any other; ids continue.
    assert _beginning(after) == ("register resume 2", "version 3 of step 2")
    assert [found.version for found in after.versions] == [3, 4, 5]
    assert after.image(3) == before.image(2)
    assert after.image(5) == straight.image(4)
    for stat in ("policy/loss", "critic/loss", "critic/explained_variance"):
        assert after.stats[4][stat] == straight.stats[4][stat], stat
    kept = sorted(path.name for path in pathlib.Path(resumed.config.checkpoint_dir).glob("step-*"))
    assert kept == ["step-000000004"]


ADAPTED: Mapping[str, object] = {"model.lora": {"rank": 4}, "algorithm.loss.klCoef": "0.1"}


def adapter_in(trainer: Trainer) -> dict[str, torch.Tensor]:
    """Return the exported adapter."""
    return load_file(pathlib.Path(trainer.config.export_dir) / "adapter" / "adapter_model.safetensors")


def test_an_adapter_is_the_same_on_two_ranks_whatever_is_sharded_and_its_versions_hold_nothing_else(
    start: Start, coordinate: Coordinate, tiny_models: dict[str, pathlib.Path]
) -> None:
    final: dict[int, dict[str, torch.Tensor]] = {}
    stats: dict[int, dict[str, float]] = {}
    for stage in (2, 3):
        # Three micro-batches for two ranks: the second rank runs an idle one, and scores it without the adapter.
        coordinator = coordinate(per_rank(steps(3, parts=3), 2))
        trainer = start(coordinator, stage=stage, ranks=2, folder=f"adapted{stage}", changes=ADAPTED)
        assert trainer.end() == enums.ExitCode.OK
        final[stage], stats[stage] = adapter_in(trainer), dict(coordinator.stats[3])
        first = initial.of_job(trainer.config.spec, tiny_models["float32"])
        version_0 = first.manifest("job")
        assert coordinator.initial_hashes == [version_0.state_hash]
        assert coordinator.layout == first.layout
        assert [found.step for found in coordinator.versions] == [1, 2, 3], "nothing before the first step"
        newest = coordinator.versions[-1]
        image.verify(memoryview(coordinator.image(newest.version)), first.layout, newest)
        assert coordinator.stats[1]["policy/ref_kl"] == pytest.approx(0.0, abs=1e-6)
        assert stats[stage]["policy/ref_kl"] > 1e-6, "the model without the adapter is the reference"
        merged = load_file(pathlib.Path(trainer.config.export_dir) / "model.safetensors")
        base = load_file(tiny_models["float32"] / "model.safetensors")
        assert {name for name, weight in base.items() if not torch.equal(weight, merged[name])} == {
            name.removeprefix("base_model.model.").replace("lora_A.", "") for name in final[stage] if ".lora_A." in name
        }
    assert stats[3]["policy/ref_kl"] == pytest.approx(stats[2]["policy/ref_kl"], rel=1e-3, abs=1e-6)
    for name, expected in final[2].items():
        torch.testing.assert_close(final[3][name], expected, rtol=1e-3, atol=2e-5, msg=name)


@pytest.mark.parametrize("keeps_moments", [True, False])
def test_a_run_of_an_adapter_that_was_stopped_continues_from_the_adapter_alone(
    start: Start, coordinate: Coordinate, tiny_models: dict[str, pathlib.Path], keeps_moments: bool
) -> None:
    changes = {**ADAPTED, "checkpoint.saveOptimizer": keeps_moments}
    straight = coordinate(per_rank(steps(4), 1))
    assert start(straight, folder="straight", changes=changes).end() == enums.ExitCode.OK
    before = coordinate(per_rank(steps(4), 1), hold_at=3)
    trainer = start(before, changes=changes)
    assert before.wait_for("step 2")
    trainer.ask_to_stop()
    assert trainer.end() == enums.ExitCode.STOPPED_ON_REQUEST
    if not keeps_moments:
        files = {path.name for path in pathlib.Path(trainer.config.checkpoint_dir).rglob("weights/*")}
        assert files >= {"adapter_config.json", "adapter_model.safetensors"}
        assert "model.safetensors" not in files
    after = coordinate(per_rank(steps(4), 1), head=2)
    assert start(after, attempt=2, changes=changes).end() == enums.ExitCode.OK
    assert _beginning(after)[0] == "register resume 2"
    assert after.image(3) == before.image(2)
    assert (after.image(5) == straight.image(4)) is keeps_moments


def test_an_adapter_is_not_continued_in_another_measure(start: Start, coordinate: Coordinate) -> None:
    before = coordinate(per_rank(steps(2), 1))
    assert start(before, changes=ADAPTED).end() == enums.ExitCode.OK
    changed = start(coordinate([], head=2), attempt=2, changes={**ADAPTED, "model.lora": {"rank": 4, "alpha": 4}})
    assert changed.end() == enums.ExitCode.CONFIGURATION


def test_two_ranks_go_on_from_an_object_store_on_a_node_that_has_nothing(
    start: Start, coordinate: Coordinate, tmp_path: pathlib.Path
) -> None:
    charts.program_or_skip("minio")
    server = minio.Minio(tmp_path / "minio")
    server.start()
    try:
        uri = server.make_bucket("runs")
        stored = {
            "changes": {
                "storage.type": "Persistent",
                "storage.checkpoints": {"uri": f"{uri}/here"},
                "storage.s3": {"endpoint": server.endpoint},
            },
            "environment": server.keys,
            "ranks": 2,
            "stage": 2,
            # Arrow's threads, which a client of S3 needs, do not survive a fork.
            "is_program": True,
        }
        straight = coordinate(per_rank(steps(3), 2))
        assert start(straight, folder="straight", ranks=2, stage=2).end() == enums.ExitCode.OK

        before = coordinate(per_rank(steps(3), 2), hold_at=3)
        trainer = start(before, folder="first", checkpoint_every=1, **stored)
        assert before.wait_for("step 2")
        trainer.ask_to_stop()
        assert trainer.end() == enums.ExitCode.STOPPED_ON_REQUEST
        assert before.events[-1] == "checkpoint 2"

        after = coordinate(per_rank(steps(3), 2), head=2)
        assert start(after, folder="another", attempt=2, **stored).end() == enums.ExitCode.OK
        assert _beginning(after)[0] == "register resume 2"
        assert after.image(4) == straight.image(3)
        there = tmp_path / "minio" / "data" / "runs" / "here" / "uid"
        assert {path.name for path in (there / "export").iterdir()} >= {"model.safetensors", "COMPLETE.json"}
        assert [path.name for path in (there / "checkpoints").glob("step-*")] == ["step-000000003-000002"]
    finally:
        server.stop()


def test_two_nodes_stop_together_when_one_is_asked_to_and_continue_with_the_parts_of_both(
    start: Start, coordinate: Coordinate, free_ports: list[int]
) -> None:
    batches = per_rank(steps(3, parts=2), 2)
    straight = coordinate(batches)
    assert start(straight, folder="straight", ranks=2, stage=3).end() == enums.ExitCode.OK

    def two_nodes(coordinator: fake_coordinator.FakeCoordinator, *, attempt: int) -> list[Trainer]:
        port = free_ports.pop()
        return [
            start(
                coordinator,
                attempt=attempt,
                stage=3,
                changes={"trainer.nodes": 2},
                environment={"RLJOB_NODE_RANK": str(node)},
                rendezvous_port=port,
            )
            for node in (0, 1)
        ]

    before = coordinate(batches, hold_at=3)
    first = two_nodes(before, attempt=1)
    assert before.wait_for("step 2")
    # As the eviction of its pod does.
    first[1].ask_to_stop()
    assert [node.end() for node in first] == [enums.ExitCode.STOPPED_ON_REQUEST] * 2
    assert before.events[-1] == "checkpoint 2"

    after = coordinate(batches, head=2)
    assert [node.end() for node in two_nodes(after, attempt=2)] == [enums.ExitCode.OK] * 2
    assert _beginning(after)[0] == "register resume 2"
    assert after.image(4) == straight.image(3)


def test_a_start_without_checkpoint_in_a_run_with_versions_publishes_its_state_first(
    start: Start, coordinate: Coordinate
) -> None:
    coordinator = coordinate(per_rank(steps(1), 1), head=5)
    assert start(coordinator, attempt=2).end() == enums.ExitCode.OK
    assert _beginning(coordinator) == ("register resume 0", "version 6 of step 0")
    assert [found.version for found in coordinator.versions] == [6, 7]


def test_a_fork_begins_at_step_0_with_the_weights_of_the_other_run_and_goes_on_from_its_own_checkpoint(
    start: Start, coordinate: Coordinate
) -> None:
    other = coordinate(per_rank(steps(2), 1))
    first = start(other, folder="other")
    assert first.end() == enums.ExitCode.OK
    fork = str(pathlib.Path(first.config.checkpoint_dir).parent)

    begun = coordinate(per_rank(steps(2), 1), hold_at=2)
    trainer = start(begun, fork_from=fork)
    assert begun.wait_for("step 1")
    trainer.ask_to_stop()
    assert trainer.end() == enums.ExitCode.STOPPED_ON_REQUEST
    assert _beginning(begun) == ("register resume 0", "version 1 of step 0")
    assert begun.image(1) == other.image(2)

    again = coordinate(per_rank(steps(2), 1), head=2)
    assert start(again, attempt=2, fork_from=fork).end() == enums.ExitCode.OK
    assert _beginning(again) == ("register resume 1", "version 3 of step 1")
    assert again.image(3) == begun.image(2)


def test_ranks_die_with_the_program_that_started_them(start: Start, coordinate: Coordinate) -> None:
    coordinator = coordinate(per_rank(steps(1), 1), hold_at=1)
    trainer = start(coordinator, is_program=True)
    assert coordinator.wait_for("register resume 0")
    (rank,) = stop.children(trainer.process.pid)
    descriptor = os.pidfd_open(rank)
    try:
        trainer.kill()
        # Readable as soon as the process has ended; it is not our child, so it cannot be waited for.
        assert _ends(descriptor, timeout_s=60.0)
    finally:
        os.close(descriptor)


def _ends(descriptor: int, *, timeout_s: float) -> bool:
    return bool(select.select([descriptor], [], [], timeout_s)[0])
