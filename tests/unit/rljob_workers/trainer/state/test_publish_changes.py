"""Versions as changes: what is sent whole and when, and that a store which loses things gets them again."""

import pytest

from rljob_api import enums, errors, types
from rljob_testing import publishing_trainer
from rljob_workers.weights import delta, image, pieces

WHOLE, DELTA = enums.Encoding.WHOLE, enums.Encoding.DELTA
LAYOUT = image.make_layout(
    [("model.embed_tokens.weight", "bfloat16", (64, 64)), ("model.norm.weight", "bfloat16", (64,))]
)


def trainer_of(**settings: object) -> publishing_trainer.PublishingTrainer:
    return publishing_trainer.PublishingTrainer(LAYOUT, **settings)


@pytest.mark.covers("weights 4", "weights 13")
def test_of_so_many_versions_in_a_row_one_is_whole_and_all_have_changes() -> None:
    trainer = trainer_of(anchor_every=3)
    for _ in range(8):
        trainer.change(20)
        trainer.publish()
    whole = [version for version in range(1, 9) if WHOLE in trainer.encodings(version)]
    assert whole == [1, 4, 7]
    assert all(DELTA in trainer.encodings(version) for version in range(1, 9))
    assert trainer.store.versions[4].fallback_reason == "weightSync.anchorEvery is 3"
    assert [trainer.store.versions[version].kind for version in (4, 5)] == ["anchor", "delta"]


@pytest.mark.covers("weights 3", "weights 5")
def test_changes_name_their_base_twice_and_give_the_image_that_the_manifest_describes() -> None:
    trainer = trainer_of()
    for _ in range(2):
        trainer.change(20)
        trainer.publish()
    first, second = trainer.store.versions[1], trainer.store.versions[2]
    assert (second.base, second.base_state_hash, second.parent) == (1, first.state_hash, 1)
    changes = trainer.store.artifact(2, DELTA)
    assert changes is not None
    patched = bytearray(trainer.images[1])
    delta.apply(LAYOUT, memoryview(patched), memoryview(trainer.store.artifacts[changes.artifact_id]))
    assert patched == trainer.images[2]
    image.verify(memoryview(patched), LAYOUT, second)


@pytest.mark.covers("weights 2")
def test_a_step_that_was_skipped_still_publishes_and_sends_next_to_nothing() -> None:
    trainer = trainer_of()
    trainer.publish()
    version = trainer.publish()
    assert (version.version, version.changed, version.kind) == (2, 0, "delta")
    assert sum(artifact.num_bytes for artifact in version.artifacts) < 100


@pytest.mark.covers("weights 2", "weights W-8")
def test_a_trainer_that_starts_again_begins_with_a_whole_image_and_no_changes() -> None:
    trainer = trainer_of()
    trainer.change(20)
    trainer.publish()
    trainer.restart()
    version = trainer.publish()
    assert (version.version, version.attempt, version.base, trainer.encodings(2)) == (2, 2, types.NO_VERSION, [WHOLE])
    trainer.change(20)
    assert trainer.publish().base == 2


@pytest.mark.covers("weights 4")
def test_a_step_that_changes_everything_is_sent_whole_by_itself() -> None:
    trainer = trainer_of()
    trainer.publish()
    trainer.change(64 * 64)
    version = trainer.publish()
    assert (trainer.encodings(2), version.base) == ([WHOLE], types.NO_VERSION)
    assert version.fallback_reason == "98% changed"
    trainer.change(5)
    assert trainer.encodings(trainer.publish().version) == [DELTA]


@pytest.mark.covers("weights 4")
def test_changes_that_together_exceed_half_the_image_are_followed_by_a_whole_one() -> None:
    trainer = trainer_of(anchor_every=1000)
    for _ in range(12):
        trainer.change(900)
        trainer.publish()
    total = 0
    for version in range(2, 13):
        changes = trainer.store.artifact(version, DELTA)
        assert changes is not None
        total += changes.num_bytes
        is_whole = WHOLE in trainer.encodings(version)
        assert is_whole == (total > LAYOUT.image_bytes / 2)
        if is_whole:
            assert trainer.store.versions[version].fallback_reason.endswith("more than half of it")
            return
    raise AssertionError("twelve versions of 20 % changes do not exceed half an image")


@pytest.mark.covers("weights 13")
def test_without_deltas_every_version_is_whole_and_says_why() -> None:
    trainer = trainer_of(delta=False)
    for _ in range(2):
        trainer.change(20)
        version = trainer.publish()
        assert trainer.encodings(version.version) == [WHOLE]
        assert (version.changed, version.fallback_reason) == (20, "weightSync.delta is false")


@pytest.mark.covers("weights W-8")
def test_changes_whose_base_the_store_has_lost_are_sent_whole() -> None:
    trainer = trainer_of()
    for _ in range(2):
        trainer.change(20)
        trainer.publish()
    trainer.store.artifacts.clear()
    trainer.change(20)
    trainer.publish()
    assert sorted(trainer.encodings(3)) == [DELTA, WHOLE]
    assert trainer.store.versions[3].fallback_reason == "it was not taken as changes"


@pytest.mark.covers("weights 7", "weights W-8")
def test_a_version_that_was_lost_is_sent_again_under_its_id() -> None:
    trainer = trainer_of()
    for _ in range(2):
        trainer.change(20)
        trainer.publish()
    trainer.store.artifacts.clear()
    trainer.publisher.supply(2)
    trainer.publisher.flush()
    whole = trainer.store.artifact(2, WHOLE)
    assert whole is not None
    assert trainer.store.artifacts[whole.artifact_id] == trainer.images[2]
    assert trainer.store.head == 2


@pytest.mark.parametrize("version", [0, 1, 3])
def test_only_the_version_published_last_can_be_sent_again(version: int) -> None:
    trainer = trainer_of()
    for _ in range(2):
        trainer.change(20)
        trainer.publish()
    before = dict(trainer.store.artifacts)
    trainer.publisher.supply(version)
    trainer.publisher.flush()
    assert trainer.store.artifacts == before


def test_changes_that_do_not_give_the_version_back_are_never_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if a bit had flipped between coding and checking."""
    trainer = trainer_of()
    trainer.publish()

    def forgets_half(layout: types.Layout, base: memoryview, new: memoryview) -> delta.Difference:
        other, half = bytearray(new), len(new) // 2
        other[:half] = base[:half]
        return encode(layout, base, memoryview(other))

    encode = delta.encode
    trainer.change(20)
    monkeypatch.setattr(delta, "encode", forgets_half)
    version = trainer.publish()
    assert (trainer.encodings(2), version.fallback_reason) == ([WHOLE], "its changes do not give it back")
    monkeypatch.undo()
    trainer.change(20)
    assert trainer.encodings(trainer.publish().version) == [DELTA]


def test_a_version_that_the_registry_refuses_ends_the_publisher() -> None:
    trainer = trainer_of()
    trainer.publish()
    trainer.store.attempt += 1
    trainer.publisher.publish(2)
    with pytest.raises(errors.ConflictError, match="attempt 1"):
        trainer.publisher.flush()


@pytest.mark.covers("weights 3", "weights 7")
def test_a_version_that_is_no_anchor_describes_its_image_where_rollouts_serve_one_another() -> None:
    trainer = publishing_trainer.PublishingTrainer(LAYOUT, image_piece_bytes=1000, anchor_every=2)
    anchor, other = trainer.publish(), trainer.publish()
    assert (anchor.kind, anchor.image) == ("anchor", None)
    assert other.image == pieces.describe_image(memoryview(trainer.images[2]), other.state_hash, piece_bytes=1000)
    assert trainer_of().publish().image is None
