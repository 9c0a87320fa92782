import dataclasses
import json
import pathlib
import struct
from collections.abc import Sequence

import pytest

from rljob_api import errors, types
from rljob_testing.clock import FakeClock
from rljob_workers.rollout.sync import staging
from rljob_workers.weights import image


def write_model(folder: pathlib.Path) -> pathlib.Path:
    tensors = {"model.embed_tokens.weight": bytes(range(16)), "model.norm.weight": b"abcdefgh"}
    header, position = {}, 0
    for name, data in tensors.items():
        header[name] = {"dtype": "BF16", "shape": [len(data) // 2], "data_offsets": [position, position + len(data)]}
        position += len(data)
    text = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + b"".join(tensors.values()))
    return folder


class FakeStore:
    """Versions by id; `damage` flips a byte of what is pulled."""

    def __init__(self) -> None:
        self.manifests: dict[int, types.WeightVersion] = {}
        self.images: dict[str, bytes] = {}
        self.damage = False
        self.num_pulls = 0

    def plan(self, *, want: types.VersionId, have: int, with_layout: bool) -> types.VersionPlan:
        if want not in self.manifests:
            raise errors.WeightsError(f"version {want} is not registered")
        return types.VersionPlan(chain=(self.manifests[want],), sources=())

    def pull(self, artifact: types.Artifact, sources: Sequence[types.WeightSource], into: memoryview) -> None:
        self.num_pulls += 1
        into[: artifact.num_bytes] = self.images[artifact.artifact_id]
        if self.damage:
            into[3] ^= 1


@pytest.fixture
def store() -> FakeStore:
    return FakeStore()


@pytest.fixture
def stager(tmp_path: pathlib.Path, store: FakeStore) -> staging.Stager:
    return staging.Stager(model=write_model(tmp_path), dtype="bfloat16", job="job", puller=store, clock=FakeClock())


def publish(store: FakeStore, stager: staging.Stager, version: int, **changes: object) -> None:
    data = bytearray(stager.buffer.view)
    data[0] = version
    digests = image.digests(memoryview(data), stager.layout)
    manifest = dataclasses.replace(
        stager.initial,
        version=types.VersionId(version),
        step=version,
        digests=digests,
        state_hash=image.state_hash(stager.layout, digests),
        artifacts=(types.Artifact(artifact_id=f"a{version}", encoding="raw", num_bytes=len(data)),),
    )
    store.images[f"a{version}"] = bytes(data)
    store.manifests[version] = dataclasses.replace(manifest, **changes)  # type: ignore[arg-type]


def test_version_0_is_the_hash_of_the_model_files(stager: staging.Stager, tmp_path: pathlib.Path) -> None:
    _, manifest, data = image.initial_version(tmp_path, "job", "bfloat16")
    assert stager.initial.state_hash == manifest.state_hash
    assert bytes(stager.buffer.view) == bytes(data)
    assert stager.buffer.clean == 0


def test_a_pulled_version_is_verified_and_marked_clean(stager: staging.Stager, store: FakeStore) -> None:
    publish(store, stager, 4)
    staged = stager.stage(types.VersionId(4))
    assert (staged.manifest.step, staged.num_bytes) == (4, stager.layout.image_bytes)
    assert bytes(stager.buffer.view) == store.images["a4"]
    assert stager.buffer.clean == 4


def test_the_version_in_the_buffer_is_not_fetched_again(stager: staging.Stager, store: FakeStore) -> None:
    publish(store, stager, 4)
    stager.stage(types.VersionId(4))
    again = stager.stage(types.VersionId(4))
    assert (store.num_pulls, again.num_bytes, again.manifest.version) == (1, 0, 4)


def test_a_wrong_digest_names_the_tensor_and_leaves_the_buffer_dirty(stager: staging.Stager, store: FakeStore) -> None:
    publish(store, stager, 4)
    store.damage = True
    with pytest.raises(errors.DigestError, match=r"model\.embed_tokens\.weight of version 4"):
        stager.stage(types.VersionId(4))
    assert stager.buffer.clean is None


def test_a_dirty_buffer_is_fetched_anew(stager: staging.Stager, store: FakeStore) -> None:
    publish(store, stager, 4)
    store.damage = True
    with pytest.raises(errors.DigestError):
        stager.stage(types.VersionId(4))
    store.damage = False
    assert stager.stage(types.VersionId(4)).manifest.version == 4
    assert store.num_pulls == 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layout_id": "other"}, "another layout"),
        ({"kind": "delta"}, "not a dense anchor"),
        ({"artifacts": ()}, "not a dense anchor"),
        ({"artifacts": (types.Artifact(artifact_id="a4", encoding="raw", num_bytes=8),)}, "has 8 bytes for 128"),
    ],
)
def test_a_manifest_that_does_not_fit_is_refused_before_a_byte_is_written(
    stager: staging.Stager, store: FakeStore, changes: dict[str, object], message: str
) -> None:
    publish(store, stager, 4, **changes)
    with pytest.raises(errors.WeightsError, match=message):
        stager.stage(types.VersionId(4))
    assert (store.num_pulls, stager.buffer.clean) == (0, 0)


def test_version_0_can_be_had_again_from_the_files(stager: staging.Stager, store: FakeStore) -> None:
    before = bytes(stager.buffer.view)
    publish(store, stager, 4)
    stager.stage(types.VersionId(4))
    assert stager.stage(types.VersionId(0)).manifest.version == 0
    assert bytes(stager.buffer.view) == before


def test_another_process_maps_the_same_bytes(stager: staging.Stager) -> None:
    assert pathlib.Path(stager.buffer.path).read_bytes() == bytes(stager.buffer.view)
