"""Models and data from an object store, kept on this machine. The store is a folder (obstore's LocalStore)."""

import concurrent.futures
import json
import pathlib

import pytest

from rljob_api import errors, process_config
from rljob_api.manifest.storage import S3Spec
from rljob_testing import stored_checkpoints as made
from rljob_testing.sections import make_spec
from rljob_workers.data import records
from rljob_workers.models import builtin
from rljob_workers.objects import cache, files
from rljob_workers.trainer.state import exporting

S3 = S3Spec()


@pytest.fixture
def store(tmp_path: pathlib.Path) -> pathlib.Path:
    folder = tmp_path / "store"
    (folder / "model").mkdir(parents=True)
    (folder / "model" / "config.json").write_text("{}")
    (folder / "model" / "model.safetensors").write_bytes(b"weights")
    (folder / "questions.jsonl").write_text('{"prompt": "1+1", "answer": "2"}\n')
    return folder


def test_a_folder_is_fetched_once(store: pathlib.Path, tmp_path: pathlib.Path) -> None:
    first = cache.folder(f"file://{store}/model", S3, tmp_path / "cache")
    assert sorted(path.name for path in first.iterdir()) == ["config.json", "model.safetensors"]
    marked = first / "marked"
    marked.touch()
    assert cache.folder(f"file://{store}/model/", S3, tmp_path / "cache") == first
    assert marked.exists()


def test_what_changes_in_the_store_is_fetched_again(store: pathlib.Path, tmp_path: pathlib.Path) -> None:
    first = cache.folder(f"file://{store}/model", S3, tmp_path / "cache")
    (store / "model" / "model.safetensors").write_bytes(b"other weights")
    second = cache.folder(f"file://{store}/model", S3, tmp_path / "cache")
    assert second != first
    assert (second / "model.safetensors").read_bytes() == b"other weights"
    assert (first / "model.safetensors").read_bytes() == b"weights"


def test_processes_that_start_together_fetch_once(
    store: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetched, fetch = list[str](), files.fetch

    def counted(*arguments: object) -> int:
        fetched.append(str(arguments[1]))
        return fetch(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(files, "fetch", counted)
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        asked = [pool.submit(cache.folder, f"file://{store}/model", S3, tmp_path / "cache") for _ in range(4)]
        assert len({each.result(30) for each in asked}) == 1
    assert sorted(fetched) == ["config.json", "model.safetensors"]


def test_an_exported_model_with_other_bytes_than_were_exported_is_refused(
    store: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    target = made.open_folder(f"file://{tmp_path}/out").below("export")
    exporting.send(store / "model", target)
    assert json.loads((target.read("COMPLETE.json") or b"").decode()).keys() == {"config.json", "model.safetensors"}
    fetched = cache.folder(target.uri, S3, tmp_path / "cache")
    assert (fetched / "model.safetensors").read_bytes() == b"weights"
    target.write("model.safetensors", b"wei\0hts")
    with pytest.raises(errors.DataError, match=f"{target.uri}/model.safetensors holds other bytes"):
        cache.folder(target.uri, S3, tmp_path / "cache")


def test_an_export_takes_the_place_of_an_earlier_one(store: pathlib.Path, tmp_path: pathlib.Path) -> None:
    target = made.open_folder(f"file://{tmp_path}/out").below("export")
    exporting.send(store / "model", target)
    (store / "model" / "config.json").rename(store / "model" / "generation_config.json")
    exporting.send(store / "model", target)
    keys = [entry.key for entry in target.entries()]
    assert keys == ["COMPLETE.json", "generation_config.json", "model.safetensors"]


def test_a_model_is_loaded_from_a_store(store: pathlib.Path, tmp_path: pathlib.Path) -> None:
    place = process_config.ModelFiles(
        name=f"file://{store}/model", path=f"file://{store}/model", cache_dir=str(tmp_path / "cache")
    )
    assert (builtin.ensure_model(place) / "model.safetensors").read_bytes() == b"weights"
    nowhere = place.model_copy(update={"name": f"file://{store}/none", "path": f"file://{store}/none"})
    with pytest.raises(errors.ManifestError, match="spec.model.name is 'file://.*none', but there is nothing at"):
        builtin.ensure_model(nowhere)


def test_data_are_read_from_a_store(store: pathlib.Path, tmp_path: pathlib.Path) -> None:
    spec = make_spec({"data.train": [{"name": "train", "uri": f"file://{store}/questions.jsonl"}]})
    (source,) = records.on_this_machine(spec, tmp_path / "cache").data.train
    loaded = records.load_source(source)
    assert [record.columns["answer"] for record in loaded.records] == ["2"]


def test_data_that_are_not_there_are_named(store: pathlib.Path, tmp_path: pathlib.Path) -> None:
    spec = make_spec({"data.train": [{"name": "train", "uri": f"file://{store}/none.jsonl"}]})
    with pytest.raises(errors.DataError, match="source 'train': there is nothing at file://.*/none.jsonl"):
        records.on_this_machine(spec, tmp_path / "cache")
