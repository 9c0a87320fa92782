"""What each transport of weights owes, whichever it is; then transports by name, and files in a shared folder."""

import json
import os
import pathlib
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence

import blake3
import pytest

from rljob_api import enums, errors, resolve, types
from rljob_api.manifest.trainer import WeightTransport
from rljob_api.validation.load import load_manifest
from rljob_testing import examples, weight_fleet
from rljob_workers.coordinator.weights import store
from rljob_workers.weights.backends import base, broadcaster, file_store, gloo_store, grpc_store

DATA = os.urandom(1 << 20)
ARTIFACT = types.Artifact(
    artifact_id=blake3.blake3(DATA).hexdigest(), encoding=enums.Encoding.WHOLE, num_bytes=len(DATA)
)
NOWHERE = "127.0.0.1:1"


def resolved(run_dir: pathlib.Path, transport: str) -> resolve.ResolvedJob:
    job = load_manifest((examples.EXAMPLES / "addition-cpu.yaml").read_text())
    spec = job.spec.model_copy(update={"weight_sync": job.spec.weight_sync.model_copy(update={"transport": transport})})
    job = job.model_copy(update={"spec": spec})
    placement = resolve.local_placement(
        job, uid="u", run_dir=str(run_dir), base_dir=str(examples.EXAMPLES), cache_dir="/c", num_cores=2,
        ports=range(1, 1 + resolve.num_local_ports(job)),
    )  # fmt: skip
    return resolve.resolve(job, placement)


class Way:
    """Both ends of a transport around one store, whose artifacts are files in `folder`."""

    folder: pathlib.Path
    publisher: base.RegisteringPublisher
    puller: base.PlanningPuller
    sources: Sequence[types.WeightSource] = ()

    def pull(self, artifact: types.Artifact = ARTIFACT, *, spare: int = 0) -> bytes:
        into = bytearray(len(DATA) + spare)
        self.puller.pull(artifact, self.sources, memoryview(into))
        return bytes(into)

    def only_store(self) -> None:
        """Let what is pulled next come from the store."""

    def break_off(self) -> None:
        """Let nobody reach the store."""

    def close(self) -> None:
        self.publisher.close()
        self.puller.close()


class FileWay(Way):
    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = store.ArtifactStore(folder).folder
        self.publisher = file_store.FilePublisher(folder=folder, control_address=NOWHERE, tls=None)
        self.puller = file_store.FilePuller(folder=folder, control_address=NOWHERE, tls=None)

    def break_off(self) -> None:
        self.folder.rename(self.folder.with_name("elsewhere"))


class GrpcWay(Way):
    def __init__(self, folder: pathlib.Path) -> None:
        self.folder, self._fleet = folder, weight_fleet.Fleet(folder)
        control, address = self._fleet.control, self._fleet.store
        self.publisher = grpc_store.WeightPublisher(control_address=control, store_address=address, tls=None)
        self.puller = grpc_store.WeightPuller(control_address=control, tls=None)
        self.sources = (types.WeightSource(address=address, kind=enums.SourceKind.STORE),)

    def break_off(self) -> None:
        self._fleet.stop("store")

    def close(self) -> None:
        super().close()
        self._fleet.close()


class GlooWay(GrpcWay):
    """With one rollout, which is in the group."""

    def __init__(self, folder: pathlib.Path) -> None:
        super().__init__(folder)
        super(GrpcWay, self).close()
        self._to_rollouts = broadcaster.Broadcaster(host=weight_fleet.LOOPBACK)
        self.publisher = gloo_store.GlooPublisher(
            control_address=self._fleet.control,
            store_address=self._fleet.store,
            tls=None,
            to_rollouts=self._to_rollouts,
        )
        self._following = weight_fleet.follower(self._fleet, self._to_rollouts, "rollout-0", most_bytes=len(DATA))
        self.puller = self._following

    def only_store(self) -> None:
        weight_fleet.until(lambda: not self._to_rollouts.is_sending)
        assert self._following.inbox is not None
        assert self._following.inbox.take(ARTIFACT, memoryview(bytearray(len(DATA))))


WAYS: Mapping[str, Callable[[pathlib.Path], Way]] = {"grpc": GrpcWay, "file": FileWay, "gloo": GlooWay}


@pytest.fixture(params=typing.get_args(WeightTransport))
def way(request: pytest.FixtureRequest, tmp_path: pathlib.Path) -> Iterator[Way]:
    """Each transport in turn."""
    made = WAYS[request.param](tmp_path / "weights")
    yield made
    made.close()


@pytest.mark.parametrize("transport", typing.get_args(WeightTransport))
def test_each_transport_of_the_manifest_has_both_ends(transport: str, tmp_path: pathlib.Path) -> None:
    job, backend = resolved(tmp_path, transport), base.find(transport)
    publisher, puller = backend.publisher(job.trainer), backend.puller(job.rollouts[0])
    assert (publisher.session, puller.session) == ("", "")
    publisher.close()
    puller.close()


def test_files_of_a_local_run_are_those_of_the_coordinators_store(tmp_path: pathlib.Path) -> None:
    job = resolved(tmp_path, "file")
    artifacts = store.ArtifactStore(pathlib.Path(job.coordinator.weights_dir))
    backend = base.find(job.trainer.spec.weight_sync.transport)
    publisher, puller = backend.publisher(job.trainer), backend.puller(job.rollouts[0])
    assert publisher.upload(memoryview(DATA), enums.Encoding.WHOLE) == ARTIFACT
    # What the registry asks before it accepts a version, and before it plans one.
    assert artifacts.num_bytes(ARTIFACT.artifact_id) == len(DATA)
    into = bytearray(len(DATA) + 3)
    puller.pull(ARTIFACT, [], memoryview(into))
    assert into == DATA + bytes(3)
    artifacts.remove(ARTIFACT.artifact_id)
    with pytest.raises(errors.WeightsError, match="expects to be shared with the trainer"):
        puller.pull(ARTIFACT, [], memoryview(into))
    publisher.close()
    puller.close()


def test_what_is_uploaded_is_named_by_its_bytes_and_pulled_without_touching_what_follows(way: Way) -> None:
    artifact = way.publisher.upload(memoryview(DATA), enums.Encoding.WHOLE)
    assert (artifact.artifact_id, artifact.encoding, artifact.num_bytes) == (
        ARTIFACT.artifact_id, ARTIFACT.encoding, ARTIFACT.num_bytes
    )  # fmt: skip
    assert way.pull(artifact, spare=3) == DATA + bytes(3)
    assert sum(way.puller.transfers.fetched_bytes.values()) == len(DATA)


def test_bytes_that_are_there_already_and_damaged_are_written_again(way: Way) -> None:
    (way.folder / ARTIFACT.artifact_id).write_bytes(DATA[:-1] + b"\0")
    way.publisher.upload(memoryview(DATA), enums.Encoding.WHOLE)
    assert way.pull() == DATA
    assert [path.name for path in way.folder.iterdir()] == [ARTIFACT.artifact_id]


@pytest.mark.parametrize("damaged", [DATA[:-1] + bytes([DATA[-1] ^ 1]), bytes([DATA[0] ^ 0x80]) + DATA[1:]])
@pytest.mark.covers("weights W-14", "weights 8-4")
def test_bytes_that_are_not_the_artifacts_are_refused_as_damaged(damaged: bytes, way: Way) -> None:
    artifact = way.publisher.upload(memoryview(DATA), enums.Encoding.WHOLE)
    way.only_store()
    (way.folder / ARTIFACT.artifact_id).write_bytes(damaged)
    with pytest.raises(errors.DigestError):
        way.pull(artifact)


def test_an_artifact_that_is_not_there_is_worth_another_plan(way: Way) -> None:
    with pytest.raises(errors.WeightsError, match=ARTIFACT.artifact_id):
        way.pull()


def test_an_image_that_is_too_small_is_refused(way: Way) -> None:
    with pytest.raises(errors.WeightsError, match="does not fit"):
        way.puller.pull(ARTIFACT, way.sources, memoryview(bytearray(len(DATA) - 1)))


def test_an_artifact_named_like_a_path_is_refused(way: Way) -> None:
    named = types.Artifact(artifact_id="../ledger", encoding=enums.Encoding.WHOLE, num_bytes=1)
    with pytest.raises(errors.WeightsError, match="invalid artifact ID"):
        way.pull(named)


def test_a_store_that_is_not_there_is_tried_again_later(way: Way) -> None:
    way.break_off()
    with pytest.raises(errors.UnavailableError) as refused:
        way.publisher.upload(memoryview(DATA), enums.Encoding.WHOLE)
    assert refused.value.retry is errors.Retry.LATER


# Files


@pytest.mark.parametrize("damaged", [DATA[:-1], b""])
def test_a_file_that_is_too_short_is_refused_as_damaged(damaged: bytes, tmp_path: pathlib.Path) -> None:
    way = FileWay(tmp_path / "weights")
    (way.folder / ARTIFACT.artifact_id).write_bytes(damaged)
    with pytest.raises(errors.DigestError):
        way.pull()
    way.close()


def test_a_file_that_a_starting_coordinator_removed_leaves_nothing_and_is_written_again(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    way, sync = FileWay(tmp_path / "weights"), os.fsync

    def restarted(descriptor: int) -> None:
        store.ArtifactStore(way.folder).remove_orphans([])
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", restarted)
    with pytest.raises(errors.UnavailableError):
        way.publisher.upload(memoryview(DATA), enums.Encoding.WHOLE)
    assert list(way.folder.iterdir()) == []
    monkeypatch.setattr(os, "fsync", sync)
    assert way.publisher.upload(memoryview(DATA), enums.Encoding.WHOLE) == ARTIFACT
    way.close()


def test_a_manifest_with_another_transport_is_refused() -> None:
    manifest = {
        "apiVersion": "rljob.dev/v1alpha1",
        "kind": "RLJob",
        "metadata": {"name": "job"},
        "spec": {
            "maxSteps": 1,
            "model": {"name": "builtin:smollm2-135m-instruct"},
            "data": {"train": [{"name": "sums", "path": "sums.jsonl"}]},
            "verifier": {"rewards": [{"name": "right", "type": "exact"}]},
            "weightSync": {"transport": "nccl"},
        },
    }
    with pytest.raises(errors.ManifestError, match="weightSync.transport"):
        load_manifest(json.dumps(manifest))
