import dataclasses
import json
import pathlib
import struct

import pytest

from rljob_api import enums, errors, types
from rljob_testing import local_weights
from rljob_testing.clock import FakeClock
from rljob_workers.rollout.sync import staging
from rljob_workers.weights import delta, frames, image, initial, pieces
from rljob_workers.weights import shelf as shelves


def write_model(folder: pathlib.Path) -> pathlib.Path:
    tensors = {"model.embed_tokens.weight": bytes(range(256)) * 4, "model.norm.weight": b"abcdefgh" * 32}
    header, position = {}, 0
    for name, data in tensors.items():
        header[name] = {"dtype": "BF16", "shape": [len(data) // 2], "data_offsets": [position, position + len(data)]}
        position += len(data)
    text = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + b"".join(tensors.values()))
    return folder


@pytest.fixture
def store(tmp_path: pathlib.Path) -> local_weights.LocalWeights:
    _, manifest, _ = local_weights.initial_version(write_model(tmp_path), "job", "bfloat16")
    return local_weights.LocalWeights(initial_state_hash=manifest.state_hash)


@pytest.fixture
def stager(tmp_path: pathlib.Path, store: local_weights.LocalWeights) -> staging.Stager:
    return staging.Stager(
        first=initial.of_model_files(tmp_path, "bfloat16"), job="job", puller=store, clock=FakeClock()
    )


class Line:
    """What a trainer publishes: each version turns the first byte of each tensor up by its number."""

    def __init__(self, store: local_weights.LocalWeights, stager: staging.Stager) -> None:
        self.store, self.layout = store, stager.layout
        self.images = {0: bytes(stager.buffer.view)}
        self.manifests = {0: stager.initial}

    def publish(self, *, whole: bool = False, changes: bool = True) -> int:
        version = max(self.images) + 1
        before = self.manifests[version - 1]
        data = bytearray(self.images[version - 1])
        for tensor in self.layout.tensors:
            data[tensor.offset] = (data[tensor.offset] + version) % 256
        digests = image.digests(memoryview(data), self.layout)
        coded = delta.encode(self.layout, memoryview(self.images[version - 1]), memoryview(data)).data
        assert coded is not None
        artifacts = [self.store.upload(memoryview(coded), enums.Encoding.DELTA)] if changes else []
        if whole:
            artifacts.append(self.store.upload(memoryview(data), enums.Encoding.WHOLE))
        manifest = dataclasses.replace(
            before,
            version=types.VersionId(version),
            step=version,
            attempt=1,
            digests=digests,
            state_hash=image.state_hash(self.layout, digests),
            kind=enums.VersionKind.ANCHOR if whole else enums.VersionKind.DELTA,
            base=version - 1 if changes else types.NO_VERSION,
            base_state_hash=before.state_hash if changes else "",
            artifacts=tuple(artifacts),
        )
        if not whole:
            described = pieces.describe_image(memoryview(data), manifest.state_hash, piece_bytes=256)
            manifest = dataclasses.replace(manifest, image=described)
        self.store.publish(manifest, None)
        self.images[version], self.manifests[version] = bytes(data), manifest
        return version

    def replace(self, version: int, **changes: object) -> None:
        """Make the registry say something else of a version."""
        self.store.versions[version] = dataclasses.replace(self.store.versions[version], **changes)  # type: ignore[arg-type]


@pytest.fixture
def line(store: local_weights.LocalWeights, stager: staging.Stager) -> Line:
    return Line(store, stager)


def pulled(store: local_weights.LocalWeights) -> list[str]:
    """Return the encodings of what was fetched since the last question."""
    encodings = [str(artifact.encoding) for artifact in store.pulled]
    store.pulled.clear()
    return encodings


def stage(stager: staging.Stager, version: int) -> staging.Staged:
    return stager.stage(types.VersionId(version))


@pytest.mark.covers("weights 2")
def test_version_0_is_the_hash_of_the_model_files(stager: staging.Stager, tmp_path: pathlib.Path) -> None:
    _, manifest, data = local_weights.initial_version(tmp_path, "job", "bfloat16")
    assert stager.initial.state_hash == manifest.state_hash
    assert bytes(stager.buffer.view) == bytes(data)
    assert stager.buffer.clean == 0


def test_a_pulled_version_is_verified_and_marked_clean(stager: staging.Stager, line: Line) -> None:
    line.publish(whole=True, changes=False)
    staged = stage(stager, 1)
    assert (staged.manifest.step, staged.num_bytes, staged.delta_bytes) == (1, stager.layout.image_bytes, 0)
    assert bytes(stager.buffer.view) == line.images[1]
    assert stager.buffer.clean == 1


def test_the_version_in_the_buffer_is_not_fetched_again(
    stager: staging.Stager, line: Line, store: local_weights.LocalWeights
) -> None:
    line.publish(whole=True)
    stage(stager, 1)
    pulled(store)
    again = stage(stager, 1)
    assert (pulled(store), again.num_bytes, again.delta_bytes, again.manifest.version) == ([], 0, 0, 1)


@pytest.mark.covers("weights 7")
def test_versions_that_were_skipped_are_applied_one_after_the_other_and_verified_once(
    stager: staging.Stager, line: Line, store: local_weights.LocalWeights
) -> None:
    for _ in range(3):
        line.publish(whole=True)
    staged = stage(stager, 3)
    sizes = [artifact.num_bytes for artifact in store.pulled]
    assert pulled(store) == ["delta-1"] * 3
    assert (staged.num_bytes, staged.delta_bytes) == (sum(sizes), sum(sizes))
    assert (bytes(stager.buffer.view), stager.buffer.clean) == (line.images[3], 3)


@pytest.mark.covers("weights 7", "weights 8-13")
def test_a_buffer_without_a_version_takes_the_newest_whole_image_and_the_changes_since(
    stager: staging.Stager, line: Line, store: local_weights.LocalWeights
) -> None:
    line.publish(whole=True, changes=False)
    for _ in range(2):
        line.publish()
    stager.buffer.mark_dirty()
    staged = stage(stager, 3)
    # Fetched before it, but the whole image comes first.
    assert sorted(pulled(store)) == ["delta-1", "delta-1", "raw"]
    assert staged.num_bytes - staged.delta_bytes == stager.layout.image_bytes
    assert bytes(stager.buffer.view) == line.images[3]


def test_a_buffer_without_a_version_begins_with_the_model_files_where_that_is_shorter(
    stager: staging.Stager, line: Line, store: local_weights.LocalWeights
) -> None:
    line.publish()
    stage(stager, 1)
    stager.buffer.mark_dirty()
    stage(stager, 1)
    assert pulled(store) == ["delta-1"] * 2
    assert bytes(stager.buffer.view) == line.images[1]


@pytest.mark.covers("weights W-2", "weights 8-5")
def test_changes_against_other_bits_are_refused_before_a_byte_is_written(
    stager: staging.Stager, line: Line, store: local_weights.LocalWeights
) -> None:
    line.publish()
    line.replace(1, base_state_hash="other")
    before = bytes(stager.buffer.view)
    with pytest.raises(errors.WeightsError, match="version 1 changes version 0 with state hash other, but what"):
        stage(stager, 1)
    assert (pulled(store), bytes(stager.buffer.view), stager.buffer.clean) == ([], before, 0)


@pytest.mark.covers("weights 8-5")
def test_a_chain_whose_links_do_not_follow_each_other_is_refused(
    stager: staging.Stager, line: Line, store: local_weights.LocalWeights
) -> None:
    line.publish()
    line.publish()
    line.replace(2, base_state_hash=line.manifests[0].state_hash)
    with pytest.raises(errors.WeightsError, match="version 2 changes version 1 with state hash"):
        stage(stager, 2)
    assert (pulled(store), stager.buffer.clean) == ([], 0)


@pytest.mark.parametrize("encoding", [enums.Encoding.WHOLE, enums.Encoding.DELTA])
@pytest.mark.covers("weights W-14", "weights 8-4")
def test_a_damaged_artifact_is_never_staged_and_another_way_is_taken(
    stager: staging.Stager, line: Line, store: local_weights.LocalWeights, encoding: enums.Encoding
) -> None:
    line.publish(whole=True)
    if encoding is enums.Encoding.WHOLE:
        line.publish(changes=False, whole=True)
        line.publish(whole=True)
        stager.buffer.mark_dirty()
    newest = store.head
    damaged = store.artifact(newest, encoding)
    assert damaged is not None
    store.damage(damaged.artifact_id, place=3)
    with pytest.raises(errors.DigestError):
        stage(stager, newest)
    assert (stager.buffer.clean, damaged.artifact_id in store.artifacts) == (
        None if encoding is enums.Encoding.WHOLE else 0, True,
    )  # fmt: skip
    stage(stager, newest)
    assert damaged.artifact_id not in store.artifacts
    assert bytes(stager.buffer.view) == line.images[newest]


@pytest.mark.covers("weights 8-3")
def test_changes_that_break_off_leave_the_buffer_as_it_was(
    stager: staging.Stager, line: Line, store: local_weights.LocalWeights
) -> None:
    line.publish()
    line.publish()
    last = store.artifact(2, enums.Encoding.DELTA)
    assert last is not None
    store.damage(last.artifact_id, place=0)
    with pytest.raises(errors.DigestError):
        stage(stager, 2)
    assert (bytes(stager.buffer.view), stager.buffer.clean) == (line.images[0], 0)


@pytest.mark.covers("weights W-2", "weights 8-6")
def test_changes_that_give_other_bits_than_the_manifest_says_leave_no_version(
    stager: staging.Stager, line: Line, store: local_weights.LocalWeights
) -> None:
    """As if the trainer's memory had flipped a bit: artifact and name agree, the version does not."""
    line.publish(whole=True)
    line.publish()
    others = delta.encode(stager.layout, memoryview(line.images[1]), memoryview(line.images[0])).data
    assert others is not None
    line.replace(2, artifacts=(store.upload(memoryview(others), enums.Encoding.DELTA),))
    with pytest.raises(errors.DigestError, match=r"model\.embed_tokens\.weight of version 2"):
        stage(stager, 2)
    assert stager.buffer.clean is None


def test_changes_that_are_no_changes_leave_no_version(
    stager: staging.Stager, line: Line, store: local_weights.LocalWeights
) -> None:
    line.publish()
    line.replace(1, artifacts=(store.upload(memoryview(b"nonsense"), enums.Encoding.DELTA),))
    with pytest.raises(errors.WireError, match="not a delta"):
        stage(stager, 1)
    assert stager.buffer.clean is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layout_id": "other"}, "another layout"),
        ({"artifacts": ()}, "names 0 artifacts"),
        (
            {"artifacts": (types.Artifact(artifact_id="a1", encoding=enums.Encoding.WHOLE, num_bytes=8),)},
            r"has 8 bytes \(raw\) for 1280",
        ),
        (
            {"artifacts": (pieces.describe_image(memoryview(bytes(1280)), "of another version"),)},
            r"has 1280 bytes \(image\) for 1280",
        ),
        (
            {"artifacts": (types.Artifact(artifact_id="a1", encoding=enums.Encoding.DELTA, num_bytes=641),)},
            r"has 641 bytes \(delta-1\) for 1280",
        ),
    ],
)
def test_a_manifest_that_does_not_fit_is_refused_before_a_byte_is_written(
    stager: staging.Stager,
    line: Line,
    store: local_weights.LocalWeights,
    monkeypatch: pytest.MonkeyPatch,
    changes: dict[str, object],
    message: str,
) -> None:
    line.publish(whole=True)
    manifest = dataclasses.replace(line.manifests[1], **changes)  # type: ignore[arg-type]
    monkeypatch.setattr(store, "plan", lambda **_: types.VersionPlan(chain=(manifest,), sources=()))
    with pytest.raises(errors.WeightsError, match=message):
        stage(stager, 1)
    assert (pulled(store), stager.buffer.clean) == ([], 0)


def test_version_0_can_be_had_again_from_the_files(stager: staging.Stager, line: Line) -> None:
    line.publish()
    stage(stager, 1)
    assert stage(stager, 0).manifest.version == 0
    assert bytes(stager.buffer.view) == line.images[0]


def test_another_process_maps_the_same_bytes(stager: staging.Stager) -> None:
    assert pathlib.Path(stager.buffer.path).read_bytes() == bytes(stager.buffer.view)


# What others are served from


@pytest.fixture
def serving(tmp_path: pathlib.Path, store: local_weights.LocalWeights, stager: staging.Stager) -> staging.Stager:
    """A stager of a rollout that serves others; the store hands what it brings to its shelf, as the puller does."""
    shelf = shelves.Shelf(most_bytes=10_000)
    store.shelf = shelf
    first = initial.of_model_files(tmp_path, "bfloat16")
    return staging.Stager(first=first, job="job", puller=store, clock=FakeClock(), shelf=shelf)


def artifact_ids(store: local_weights.LocalWeights, *wanted: tuple[int, enums.Encoding]) -> list[str]:
    found = [store.artifact(version, encoding) for version, encoding in wanted]
    return [artifact.artifact_id for artifact in found if artifact is not None]


WHOLE, DELTA = enums.Encoding.WHOLE, enums.Encoding.DELTA


@pytest.mark.covers("weights 7")
def test_an_image_that_came_whole_is_served_until_the_next_version_is_written_over_it(
    serving: staging.Stager, line: Line, store: local_weights.LocalWeights
) -> None:
    line.publish(whole=True, changes=False)
    stage(serving, 1)
    assert list(store.held()) == artifact_ids(store, (1, WHOLE))
    line.publish()
    stage(serving, 2)
    assert list(store.held()) == [line.manifests[2].state_hash, *artifact_ids(store, (2, DELTA))]


@pytest.mark.covers("weights 7")
def test_changes_stay_to_be_served_after_they_were_applied(
    serving: staging.Stager, line: Line, store: local_weights.LocalWeights
) -> None:
    for _ in range(3):
        line.publish()
    stage(serving, 2)
    stage(serving, 3)
    changes = artifact_ids(store, (3, DELTA), (2, DELTA), (1, DELTA))
    assert list(store.held()) == [line.manifests[3].state_hash, *changes]
    assert bytes(serving.buffer.view) == line.images[3]


def test_an_image_with_changes_on_top_is_served_as_that_of_its_own_version(
    serving: staging.Stager, line: Line, store: local_weights.LocalWeights
) -> None:
    line.publish(whole=True, changes=False)
    line.publish()
    stage(serving, 2)
    (name, *_) = store.held()
    with store.shelf.stream(name) as holding:
        assert bytes(frames.unpack(store.shelf.frame(holding, 0, 1280))[2]) == line.images[2]


@pytest.fixture
def late(stager: staging.Stager, line: Line, store: local_weights.LocalWeights) -> staging.Stager:
    """A rollout that has nothing; another one holds version 2, which is no anchor."""
    line.publish(whole=True, changes=False)
    line.publish()
    store.on_rollouts[line.manifests[2].state_hash] = line.images[2]
    stager.buffer.mark_dirty()
    return stager


@pytest.mark.covers("weights 7", "weights 8-13")
def test_who_comes_late_takes_the_image_that_another_rollout_holds(
    late: staging.Stager, line: Line, store: local_weights.LocalWeights
) -> None:
    staged = stage(late, 2)
    assert pulled(store) == ["image"]
    assert (staged.num_bytes, staged.delta_bytes) == (late.layout.image_bytes, 0)
    assert (bytes(late.buffer.view), late.buffer.clean) == (line.images[2], 2)
    line.publish()
    stage(late, 3)
    assert pulled(store) == ["delta-1"]


@pytest.mark.covers("weights W-2", "weights W-14")
def test_an_image_of_another_rollout_that_is_not_the_version_is_no_version_and_what_is_stored_comes_instead(
    late: staging.Stager, line: Line, store: local_weights.LocalWeights
) -> None:
    """As if the publisher had described other bytes than it hashed: every piece is right, a tensor is not."""
    store.on_rollouts = {line.manifests[2].state_hash: line.images[1]}
    with pytest.raises(errors.DigestError, match="of version 2 does not match its digest"):
        stage(late, 2)
    assert (pulled(store), late.buffer.clean) == (["image"], None)
    stage(late, 2)
    assert sorted(pulled(store)) == ["delta-1", "raw"]
    assert bytes(late.buffer.view) == line.images[2]


@pytest.mark.covers("weights 8-3")
def test_who_could_not_have_an_image_of_another_rollout_takes_what_is_stored(
    late: staging.Stager, line: Line, store: local_weights.LocalWeights, monkeypatch: pytest.MonkeyPatch
) -> None:
    def moved(*_: object) -> None:
        raise errors.MovedError("artifact is not held here")

    with monkeypatch.context() as patched:
        patched.setattr(store, "pull", moved)
        with pytest.raises(errors.MovedError):
            stage(late, 2)
    assert late.buffer.clean is None
    stage(late, 2)
    assert sorted(pulled(store)) == ["delta-1", "raw"]
    assert bytes(late.buffer.view) == line.images[2]


def test_an_image_that_changes_have_led_to_is_served_as_the_one_that_was_published(
    serving: staging.Stager, line: Line, store: local_weights.LocalWeights
) -> None:
    line.publish()
    line.publish(whole=True)
    stage(serving, 2)
    assert list(store.held()) == artifact_ids(store, (2, WHOLE), (2, DELTA), (1, DELTA))
    (name, *_) = store.held()
    with store.shelf.stream(name) as holding:
        assert bytes(frames.unpack(store.shelf.frame(holding, 0, 1280))[2]) == line.images[2]
    line.publish()
    stage(serving, 3)
    changes = artifact_ids(store, (3, DELTA), (2, DELTA), (1, DELTA))
    assert list(store.held()) == [line.manifests[3].state_hash, *changes]


def test_version_0_is_no_artifact_and_is_not_served(
    serving: staging.Stager, line: Line, store: local_weights.LocalWeights
) -> None:
    line.publish(whole=True)
    stage(serving, 1)
    stage(serving, 0)
    assert list(store.held()) == artifact_ids(store, (1, DELTA))


def test_a_stream_of_an_image_that_is_overwritten_ends_with_moved_and_without_a_wrong_byte(
    serving: staging.Stager, line: Line, store: local_weights.LocalWeights
) -> None:
    line.publish(whole=True, changes=False)
    stage(serving, 1)
    line.publish()
    (name,) = artifact_ids(store, (1, WHOLE))
    store.shelf.grace_s = 0.0
    with store.shelf.stream(name) as holding:
        served = bytes(frames.unpack(store.shelf.frame(holding, 0, 100))[2])
        stage(serving, 2)
        with pytest.raises(errors.MovedError):
            store.shelf.frame(holding, 100, 200)
    assert served == line.images[1][:100]
