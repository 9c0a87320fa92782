"""A long life of versions in processes that die: every rollout ends with the trainer's bits, whatever was killed, and
no damaged byte is ever taken. No engine loads what the rollouts stage.

The whole of it, with 200 versions, 20 restarts, 20 kills, 5 forks and tensors of every kind, takes minutes:

    RLJOB_VERSIONS=200 pytest tests/integration/rollout/test_long_life.py
"""

import os
import pathlib
import random
import time
from collections.abc import Iterator

import pytest

from rljob_testing import weight_crew
from rljob_testing.nursery import Nursery
from rljob_testing.weight_crew import KINDS, Crew
from rljob_workers.weights import image as images

VERSIONS = int(os.environ.get("RLJOB_VERSIONS", "20"))
# Of the trainer, of rollouts, of the run, and of the coordinator.
RESTARTS, KILLS, FORKS, OUTAGES = VERSIONS // 10, VERSIONS // 10, max(1, VERSIONS // 40), max(1, VERSIONS // 60)
# Whose changes are damaged, and in which dtype.
DAMAGED, DTYPES = list(KINDS), ["bfloat16", "float32"]
if VERSIONS < 200:
    DAMAGED, DTYPES = ["embedding with a tied head", "expert"], ["bfloat16"]
# A publish or an update of this model takes less.
_LONGEST_S = 0.1
# Versions until the rollouts are in the trainer's group, which they join after the first that they take.
MOST_UNTIL_BROADCAST = 200


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return weight_crew.write_model(tmp_path_factory.mktemp("life") / "model")


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    made = Nursery(*weight_crew.PROGRAM)
    yield made
    made.close()


def publish(crew: Crew, chance: random.Random, kind: str) -> dict[str, object]:
    return crew.trainer.ask(f"publish {KINDS[kind][0]} {chance.randrange(1, 40)} {chance.randrange(1 << 30)}")


def restart_in_mid_publish(crew: Crew, chance: random.Random) -> None:
    crew.trainer.say(f"publish {KINDS['expert'][0]} 30 {chance.randrange(1 << 30)}")
    time.sleep(chance.uniform(0, _LONGEST_S))
    crew.trainer.kill()
    crew.start_trainer()


def kill_in_mid_update(crew: Crew, number: int, version: int, chance: random.Random) -> None:
    crew.rollouts[number].say(f"stage {version}")
    time.sleep(chance.uniform(0, _LONGEST_S))
    crew.rollouts[number].kill()
    crew.rollouts[number] = crew.start_rollout(number)


@pytest.mark.covers("weights W-1", "weights W-4", "weights W-6", "weights W-7", "weights 8-6", "weights 14")
@pytest.mark.timeout(300 + 10 * VERSIONS)
def test_all_have_the_trainers_bits_after_processes_were_killed_and_runs_forked(
    nursery: Nursery, model: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    chance = random.Random(7)
    restarts, kills, forks, outages = (
        set(chance.sample(range(2, VERSIONS), count)) for count in (RESTARTS, KILLS, FORKS, OUTAGES)
    )
    told: dict[int, str] = {}
    with Crew(tmp_path / "run", nursery=nursery, model=model, dtype="bfloat16", rollouts=3) as crew:
        for number in range(VERSIONS):
            if number in outages:
                crew.restart_coordinator()
            if number in restarts:
                restart_in_mid_publish(crew, chance)
            published = publish(crew, chance, chance.choice(sorted(KINDS)))
            version = int(str(published["published"]))
            told[version] = str(published["sha256"])
            if number in kills:
                kill_in_mid_update(crew, chance.randrange(3), version, chance)
            # Some are slow, and skip versions.
            crew.follow([one for one in crew.rollouts if chance.random() < 0.7], version)
            for image in (one.ask("digest") for one in crew.rollouts):
                assert not image["version"] or image["sha256"] == told[image["version"]]
            if number in forks:
                fork(crew, tmp_path / f"fork-{number}", nursery=nursery, model=model, chance=chance)
        crew.follow(crew.rollouts, version)
        assert [one.ask("digest") for one in crew.rollouts] == [{"version": version, "sha256": told[version]}] * 3
    # Each attempt has published, and every version is one that the trainer was told of or died with.
    assert VERSIONS <= version <= VERSIONS + RESTARTS


@pytest.mark.covers("weights W-4", "weights W-6", "weights 10")
def test_all_have_the_trainers_bits_where_it_broadcasts_and_processes_are_killed(
    nursery: Nursery, model: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    chance = random.Random(7)
    with Crew(tmp_path / "run", nursery=nursery, model=model, dtype="bfloat16", rollouts=2, transport="gloo") as crew:

        def follow_one() -> dict[str, int]:
            """Have all follow the next version; return what the last of them has fetched since its start."""
            published = publish(crew, chance, chance.choice(sorted(KINDS)))
            crew.follow(crew.rollouts, int(str(published["published"])))
            assert {one.ask("digest")["sha256"] for one in crew.rollouts} == {published["sha256"]}
            return dict(crew.rollouts[-1].ask("transfers")["fetched"])

        def follow_until_one_is_broadcast() -> None:
            before = follow_one().get("trainer", 0)
            for _ in range(MOST_UNTIL_BROADCAST):
                if follow_one().get("trainer", 0) > before:
                    return
            raise AssertionError("no version came by broadcast")

        follow_until_one_is_broadcast()
        restart_in_mid_publish(crew, chance)
        follow_until_one_is_broadcast()
        kill_in_mid_update(crew, 0, int(str(publish(crew, chance, "expert")["published"])), chance)
        follow_until_one_is_broadcast()
        crew.restart_coordinator()
        follow_until_one_is_broadcast()


def fork(crew: Crew, folder: pathlib.Path, *, nursery: Nursery, model: pathlib.Path, chance: random.Random) -> None:
    """Begin another run with what the trainer has now, and have its rollout follow two versions of that one."""
    with Crew(
        folder, nursery=nursery, model=model, dtype="bfloat16", rollouts=1, begins_with=crew.checkpoint
    ) as forked:
        for _ in range(2):
            published = publish(forked, chance, "expert")
            forked.follow(forked.rollouts, int(str(published["published"])))
            assert forked.rollouts[0].ask("digest")["sha256"] == published["sha256"]


@pytest.fixture(scope="module", params=DTYPES)
def crew(
    request: pytest.FixtureRequest, nursery: Nursery, model: pathlib.Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Crew]:
    folder = tmp_path_factory.mktemp("damage") / "run"
    with Crew(folder, nursery=nursery, model=model, dtype=request.param, rollouts=2) as started:
        publish(started, random.Random(7), "norm")
        started.follow(started.rollouts, 1)
        yield started


@pytest.mark.covers("weights 7", "weights 8-13")
def test_who_starts_between_anchors_takes_every_byte_from_other_rollouts(crew: Crew, model: pathlib.Path) -> None:
    chance = random.Random(7)
    # The next attempt begins with an anchor without changes: no way leads past it from the model's files.
    crew.trainer.kill()
    crew.start_trainer()
    for _ in range(3):
        published = publish(crew, chance, "embedding with a tied head")
        crew.follow(crew.rollouts, int(str(published["published"])))
    for one in crew.rollouts:
        one.ask("beat")
    late = crew.start_rollout(2)
    assert crew.follow([late], int(str(published["published"]))) == []
    assert late.ask("digest") == {"version": published["published"], "sha256": published["sha256"]}
    assert late.ask("transfers")["fetched"] == {"peer": images.layout_from_safetensors(model, crew.dtype).image_bytes}
    late.kill()


@pytest.mark.parametrize("kind", DAMAGED)
@pytest.mark.covers("weights W-14", "weights 8-4", "weights 14")
def test_a_link_that_damages_the_changes_of_a_tensor_is_noticed_on_both_sides_of_the_store(
    crew: Crew, kind: str
) -> None:
    before = crew.link.damaged
    # The trainer's upload, then what each rollout fetches.
    crew.link.damage(1)
    published = publish(crew, random.Random(f"{kind} on the link"), kind)
    assert crew.link.damaged == before + 1
    # One of them may be quick enough to have it from the other one.
    crew.link.damage(2)
    crew.follow(crew.rollouts, int(str(published["published"])))
    crew.link.damage(0)
    assert crew.link.damaged > before + 1
    assert [one.ask("digest") for one in crew.rollouts] == [
        {"version": published["published"], "sha256": published["sha256"]}
    ] * 2


@pytest.mark.parametrize("kind", DAMAGED)
@pytest.mark.covers("weights W-14", "weights 8-4", "weights 14")
def test_changes_of_a_tensor_that_the_store_damaged_are_never_taken_and_come_again_whole(crew: Crew, kind: str) -> None:
    there = set(crew.weights.iterdir())
    published = publish(crew, random.Random(f"{kind} in the store"), kind)
    for path in set(crew.weights.iterdir()) - there:
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 0x10
        path.write_bytes(data)
    failures = crew.follow(crew.rollouts, int(str(published["published"])))
    assert any(failure.startswith("DigestError") for failure in failures)
    assert [one.ask("digest") for one in crew.rollouts] == [
        {"version": published["published"], "sha256": published["sha256"]}
    ] * 2
