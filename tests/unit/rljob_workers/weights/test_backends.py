"""Transports of weights by name, and files in a folder that processes share."""

import json
import os
import pathlib
import typing

import blake3
import pytest

from rljob_api import enums, errors, resolve, types
from rljob_api.manifest.trainer import WeightTransport
from rljob_api.validation.load import load_manifest
from rljob_testing import examples
from rljob_workers.coordinator.weights import store
from rljob_workers.weights.backends import base, file_store

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


@pytest.fixture
def folder(tmp_path: pathlib.Path) -> pathlib.Path:
    return store.ArtifactStore(tmp_path / "weights").folder


@pytest.fixture
def publisher(folder: pathlib.Path) -> typing.Iterator[file_store.FilePublisher]:
    publisher = file_store.FilePublisher(folder=folder, control_address=NOWHERE, tls=None)
    yield publisher
    publisher.close()


@pytest.fixture
def puller(folder: pathlib.Path) -> typing.Iterator[file_store.FilePuller]:
    puller = file_store.FilePuller(folder=folder, control_address=NOWHERE, tls=None)
    yield puller
    puller.close()


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


def test_bytes_that_are_there_already_are_written_again(
    folder: pathlib.Path, publisher: file_store.FilePublisher, puller: file_store.FilePuller
) -> None:
    (folder / ARTIFACT.artifact_id).write_bytes(DATA[:-1] + b"\0")
    assert publisher.upload(memoryview(DATA), enums.Encoding.WHOLE) == ARTIFACT
    puller.pull(ARTIFACT, [], memoryview(bytearray(len(DATA))))
    assert [path.name for path in folder.iterdir()] == [ARTIFACT.artifact_id]


@pytest.mark.parametrize("damaged", [DATA[:-1], DATA[:-1] + bytes([DATA[-1] ^ 1]), b""])
def test_bytes_that_are_not_the_artifacts_are_refused(
    damaged: bytes, folder: pathlib.Path, puller: file_store.FilePuller
) -> None:
    (folder / ARTIFACT.artifact_id).write_bytes(damaged)
    with pytest.raises(errors.DigestError):
        puller.pull(ARTIFACT, [], memoryview(bytearray(len(DATA))))


def test_an_image_that_is_too_small_is_refused(
    publisher: file_store.FilePublisher, puller: file_store.FilePuller
) -> None:
    publisher.upload(memoryview(DATA), enums.Encoding.WHOLE)
    with pytest.raises(errors.WeightsError, match="does not fit"):
        puller.pull(ARTIFACT, [], memoryview(bytearray(len(DATA) - 1)))


def test_an_artifact_named_like_a_path_is_refused(puller: file_store.FilePuller) -> None:
    named = types.Artifact(artifact_id="../ledger", encoding=enums.Encoding.WHOLE, num_bytes=1)
    with pytest.raises(errors.WeightsError, match="invalid artifact ID"):
        puller.pull(named, [], memoryview(bytearray(1)))


def test_a_folder_that_is_not_there_is_tried_again(folder: pathlib.Path, publisher: file_store.FilePublisher) -> None:
    folder.rmdir()
    with pytest.raises(errors.UnavailableError, match="cannot be written to") as refused:
        publisher.upload(memoryview(DATA), enums.Encoding.WHOLE)
    assert refused.value.retry is errors.Retry.LATER


def test_a_file_that_a_starting_coordinator_removed_leaves_nothing_and_is_written_again(
    folder: pathlib.Path, publisher: file_store.FilePublisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    sync = os.fsync

    def restarted(descriptor: int) -> None:
        store.ArtifactStore(folder).remove_orphans([])
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", restarted)
    with pytest.raises(errors.UnavailableError):
        publisher.upload(memoryview(DATA), enums.Encoding.WHOLE)
    assert list(folder.iterdir()) == []
    monkeypatch.setattr(os, "fsync", sync)
    assert publisher.upload(memoryview(DATA), enums.Encoding.WHOLE) == ARTIFACT


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
