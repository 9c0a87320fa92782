"""A long life of versions as changes, through restarts, rewinds, forks, kills and damage: all have the same bits."""

import pathlib
import random

import pytest
from safetensors.torch import save_file

from rljob_api import enums, errors, types
from rljob_testing import local_weights, publishing_trainer
from rljob_testing.clock import FakeClock
from rljob_workers.rollout.sync import staging
from rljob_workers.weights import image, initial

KINDS = {
    "embedding": ("model.embed_tokens.weight", (96, 32)),
    "attention": ("model.layers.0.self_attn.q_proj.weight", (32, 32)),
    "feed forward": ("model.layers.0.mlp.up_proj.weight", (64, 32)),
    "norm": ("model.norm.weight", (32,)),
    "head": ("lm_head.weight", (96, 32)),
}
LAYOUT = image.make_layout((name, "bfloat16", shape) for name, shape in KINDS.values())


class Run:
    """A trainer and rollouts around one store; `follow` is what a rollout does until it has the head."""

    def __init__(
        self, folder: pathlib.Path, *, rollouts: int = 3, fork_of: "Run | None" = None, **settings: object
    ) -> None:
        if fork_of is None:
            self.trainer = publishing_trainer.PublishingTrainer(LAYOUT, **settings)
            save_file(self.trainer.model, folder / "model.safetensors")
        else:
            # The model files are those of the other run, what it trained is where this one begins.
            initial = local_weights.initial_version(folder, "job", "bfloat16")[1].state_hash
            self.trainer = publishing_trainer.PublishingTrainer(
                LAYOUT, local_weights.LocalWeights(initial_state_hash=initial), **settings
            )
            self.trainer.load(fork_of.trainer.images[fork_of.store.head])
            self.trainer.publish()
        self._folder = folder
        self.rollouts = [self.start() for _ in range(rollouts)]

    @property
    def store(self) -> local_weights.LocalWeights:
        return self.trainer.store

    def start(self) -> staging.Stager:
        return staging.Stager(
            first=initial.of_model_files(self._folder, "bfloat16"), job="job", puller=self.store, clock=FakeClock()
        )

    def follow(self, stager: staging.Stager) -> None:
        for _ in range(6):
            try:
                stager.stage(self.store.head)
            except (errors.WeightsError, errors.WireError):
                if self.store.lost != types.NO_VERSION:
                    self.trainer.publisher.supply(self.store.lost)
                    self.trainer.publisher.flush()
                    self.store.lost = types.NO_VERSION
                continue
            assert bytes(stager.buffer.view) == self.trainer.images[self.store.head]
            return
        raise AssertionError(f"a rollout did not get version {self.store.head}")

    def serving(self) -> set[int]:
        return {stager.buffer.clean for stager in self.rollouts if stager.buffer.clean is not None}


@pytest.mark.covers("weights W-1", "weights W-4", "weights W-7", "weights 14")
def test_rollouts_have_the_trainers_bits_after_restarts_rewinds_kills_and_forks(tmp_path: pathlib.Path) -> None:
    chance = random.Random(7)
    run = Run(tmp_path, anchor_every=7)
    restarts = set(chance.sample(range(1, 200), 20))
    kills = set(chance.sample(range(1, 200), 20))
    forks = set(chance.sample(range(1, 200), 5))
    for number in range(1, 201):
        name, _ = KINDS[chance.choice(sorted(KINDS))]
        run.trainer.change(chance.randrange(0, 30), name)
        version = run.trainer.publish().version
        assert version == run.store.head
        if number in restarts:
            # Every other one goes on from an older checkpoint: what came after it is undone.
            run.trainer.restart(version=max(1, version - 3) if len(restarts) % 2 else None)
            restarts.discard(number)
            run.trainer.publish()
        if number in kills:
            run.rollouts[chance.randrange(len(run.rollouts))] = run.start()
        for stager in run.rollouts:
            # Some are slow, and skip versions.
            if chance.random() < 0.7:
                run.follow(stager)
        run.store.prune(run.serving())
        if number in forks:
            fork = Run(tmp_path, rollouts=1, fork_of=run)
            fork.trainer.change(9)
            fork.trainer.publish()
            fork.follow(fork.rollouts[0])
    for stager in run.rollouts:
        run.follow(stager)
    newest = run.store.versions[run.store.head]
    for stager in run.rollouts:
        image.verify(stager.buffer.view, LAYOUT, newest)
    fetched = [artifact.encoding for artifact in run.store.pulled]
    # Whole images are for those who have nothing, and after a restart of the trainer.
    assert fetched.count(enums.Encoding.DELTA) > 3 * fetched.count(enums.Encoding.WHOLE)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("encoding", [enums.Encoding.WHOLE, enums.Encoding.DELTA])
@pytest.mark.covers("weights W-14", "weights 8-4", "weights 14")
def test_a_damaged_link_is_passed_by_another_way_or_sent_again(
    tmp_path: pathlib.Path, kind: str, encoding: enums.Encoding
) -> None:
    run = Run(tmp_path, rollouts=2, anchor_every=4)
    for _ in range(6):
        run.trainer.change(6, KINDS[kind][0])
        run.trainer.publish()
    run.follow(run.rollouts[0])
    run.trainer.change(6, KINDS[kind][0])
    run.trainer.publish()
    # One rollout lacks only the newest changes, the other one has nothing.
    for version in range(run.store.head, 0, -1):
        damaged = run.store.artifact(version, encoding)
        if damaged is not None:
            run.store.damage(damaged.artifact_id, place=damaged.num_bytes // 2)
            break
    run.rollouts[1].buffer.mark_dirty()
    for stager in run.rollouts:
        run.follow(stager)


def test_everything_stored_may_be_lost_between_two_versions(tmp_path: pathlib.Path) -> None:
    run = Run(tmp_path)
    for number in range(20):
        run.trainer.change(6)
        run.trainer.publish()
        if number % 3 == 0:
            run.store.artifacts.clear()
        for stager in run.rollouts:
            run.follow(stager)
