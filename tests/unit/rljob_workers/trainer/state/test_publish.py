"""Versions in order, one publish in flight, and images that equal the model files."""

import concurrent.futures
import functools
import math
import pathlib
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence

import pytest
import torch
import transformers
from safetensors.torch import load_file

from rljob_api import enums, errors, types
from rljob_api.manifest.trainer import WeightSyncSpec
from rljob_testing import local_weights, sections
from rljob_testing.clock import FakeClock
from rljob_workers.trainer.state import anchoring, export, model_folder, publish
from rljob_workers.weights import delta, image
from rljob_workers.weights.backends import base


class FakeStore:
    def __init__(self, *, failures: int = 0) -> None:
        self.events: list[str] = []
        self.versions: list[types.WeightVersion] = []
        self.layouts: list[types.Layout | None] = []
        self.images: list[bytes] = []
        self.may_upload = threading.Event()
        self.may_upload.set()
        self._failures = failures

    def upload(self, data: memoryview, encoding: enums.Encoding) -> types.Artifact:
        self.may_upload.wait(60.0)
        self.events.append("upload")
        self.images.append(bytes(data))
        return types.Artifact(artifact_id=f"a{len(self.images)}", encoding=encoding, num_bytes=len(data))

    def publish(self, version: types.WeightVersion, layout: types.Layout | None) -> types.VersionId:
        if self._failures:
            self._failures -= 1
            raise errors.UnavailableError("coordinator is restarting")
        self.events.append(f"publish {version.version} of step {version.step}")
        self.versions.append(version)
        self.layouts.append(layout)
        return version.version

    def release(self) -> None:
        self.events.append("release")


def model_of() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {
        "model.embed_tokens.weight": torch.randn(5, 3, generator=generator).bfloat16(),
        "model.layers.0.mlp.weight": torch.randn(3, 7, generator=generator).bfloat16(),
        "model.norm.weight": torch.randn(3, generator=generator).bfloat16(),
    }


def visit_of(model: dict[str, torch.Tensor]) -> export.Visit:
    def visit(names: Sequence[str], receive: Callable[[str, torch.Tensor], None]) -> None:
        for name in names:
            receive(name, model[name])

    return visit


def layout_of(model: dict[str, torch.Tensor]) -> types.Layout:
    return image.make_layout((name, "bfloat16", tuple(value.shape)) for name, value in model.items())


def exporter_of(model: dict[str, torch.Tensor], *, writes: bool = True) -> export.ImageExporter:
    return export.ImageExporter(layout=layout_of(model), visit=visit_of(model), writes=writes)


def publisher_of(
    store: base.Publisher | None,
    model: dict[str, torch.Tensor],
    *,
    head: int = 0,
    attempt: int = 3,
    reconnect_timeout_s: float = 5.0,
    exporter: export.ImageExporter | None = None,
    **settings: object,
) -> publish.VersionPublisher:
    """`settings`: of weightSync."""
    return publish.VersionPublisher(
        exporter=exporter or exporter_of(model, writes=store is not None),
        transport=store,
        job="job",
        attempt=attempt,
        head=types.VersionId(head),
        description="test",
        anchors=anchoring.Anchors(sections.section(WeightSyncSpec, **settings)),
        clock=FakeClock(),
        reconnect_timeout_s=reconnect_timeout_s,
    )


def test_versions_count_up_from_the_head_and_the_layout_goes_along_once() -> None:
    model, store = model_of(), FakeStore()
    publisher = publisher_of(store, model, head=7)
    for step in (4, 5):
        publisher.publish(step)
    publisher.flush()
    assert store.events == ["release", "upload", "publish 8 of step 4", "release", "upload", "publish 9 of step 5"]
    assert [version.parent for version in store.versions] == [7, 8]
    assert [layout is None for layout in store.layouts] == [False, True]
    assert store.versions[0].attempt == 3


def test_a_version_names_the_bytes_that_were_stored() -> None:
    model, store = model_of(), FakeStore()
    publisher = publisher_of(store, model)
    publisher.publish(1)
    publisher.flush()
    found, layout = store.versions[0], layout_of(model)
    assert found.state_hash == image.state_hash(layout, image.digests(memoryview(store.images[0]), layout))
    image.verify(memoryview(store.images[0]), layout, found)


def test_changed_elements_are_counted_against_the_last_version() -> None:
    model, store = model_of(), FakeStore()
    publisher = publisher_of(store, model)
    publisher.publish(1)
    publisher.flush()
    model["model.norm.weight"][1] += 1.0
    publisher.publish(2)
    publisher.publish(3)
    publisher.flush()
    assert [version.changed for version in store.versions] == [39, 1, 0]
    assert store.versions[1].changed_ratio == pytest.approx(1 / 39)


def test_the_first_version_is_compared_with_the_model_files_where_the_trainer_began_with_them() -> None:
    model, store = model_of(), FakeStore()
    exporter = exporter_of(model)
    publisher = publisher_of(store, model, exporter=exporter)
    exporter.export()
    publisher.compare_with_image()
    model["model.norm.weight"][1] += 1.0
    publisher.publish(1)
    publisher.flush()
    assert store.versions[0].changed == 1


def test_the_first_version_waits_for_no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = functools.cache(delta._compiled.__wrapped__)
    monkeypatch.setattr(delta, "_compiled", compiled)

    def signatures() -> list[int]:
        return [len(loop.signatures) for loop in compiled()]  # type: ignore[attr-defined]  # numba's

    model, store = model_of(), FakeStore()
    exporter = exporter_of(model)
    publisher = publisher_of(store, model, exporter=exporter)
    exporter.export()
    publisher.compare_with_image()
    publisher.flush()
    before = signatures()
    assert min(before) >= 1
    model["model.norm.weight"][1] += 1.0
    publisher.publish(1)
    publisher.flush()
    assert (store.versions[0].changed, signatures()) == (1, before)


@pytest.mark.covers("weights 5")
def test_a_second_publish_waits_for_the_first_and_never_overwrites_its_image() -> None:
    model, store = model_of(), FakeStore()
    publisher = publisher_of(store, model)
    store.may_upload.clear()
    publisher.publish(1)
    first = bytes(publisher_image(model))
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        model["model.norm.weight"].add_(1.0)
        second = pool.submit(publisher.publish, 2)
        assert not second.done()
        assert store.events == ["release"]
        store.may_upload.set()
        second.result(10.0)
    publisher.flush()
    assert store.images[0] == first
    assert store.images[1] != first


def publisher_image(model: dict[str, torch.Tensor]) -> memoryview:
    return exporter_of(model).export()


def test_an_unreachable_coordinator_gets_bytes_and_manifest_again() -> None:
    model, store = model_of(), FakeStore(failures=1)
    publisher = publisher_of(store, model)
    publisher.publish(1)
    publisher.flush()
    assert store.events == ["release", "upload", "upload", "publish 1 of step 1"]


def test_a_failed_publish_rises_at_the_next_one() -> None:
    model, store = model_of(), FakeStore(failures=9)
    publisher = publisher_of(store, model, reconnect_timeout_s=0.0)
    publisher.publish(1)
    with pytest.raises(errors.UnavailableError, match="restarting"):
        publisher.publish(2)


def test_a_rank_without_transport_takes_part_in_gathering_only() -> None:
    model, seen = model_of(), []

    def visit(names: Sequence[str], receive: Callable[[str, torch.Tensor], None]) -> None:
        seen.extend(names)
        for name in names:
            receive(name, model[name])

    exporter = export.ImageExporter(layout=layout_of(model), visit=visit, writes=False)
    assert len(exporter.export()) == 0
    assert seen == [spec.name for spec in layout_of(model).tensors]


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.covers("weights W-9")
def test_a_state_with_nan_or_inf_is_refused_by_name(bad: float) -> None:
    model = model_of()
    model["model.layers.0.mlp.weight"][1, 2] = bad
    with pytest.raises(errors.RLJobError, match=r"model\.layers\.0\.mlp\.weight holds NaN or Inf"):
        exporter_of(model).export()


def test_the_image_of_untouched_weights_has_the_hash_of_the_model_files(tiny_model: pathlib.Path) -> None:
    layout, version, _ = local_weights.initial_version(tiny_model, "job", "float32")
    tensors = load_file(tiny_model / "model.safetensors")
    exporter = export.ImageExporter(layout=layout, visit=visit_of(tensors), writes=True)
    assert image.state_hash(layout, image.digests(exporter.export(), layout)) == version.state_hash


def test_the_exported_folder_holds_weights_config_and_tokenizer(
    tiny_model: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    tensors = load_file(tiny_model / "model.safetensors")
    tensors = {name: value + 1.0 for name, value in tensors.items()}
    layout = image.layout_from_safetensors(tiny_model, "float32")
    exporter = export.ImageExporter(layout=layout, visit=visit_of(tensors), writes=True)
    target = tmp_path / "export"
    target.mkdir()
    (target / "stale").write_text("from an earlier run")
    exporter.write_export(tiny_model, target)
    names = {path.name for path in target.iterdir()}
    assert {"config.json", "tokenizer.json", "model.safetensors"} <= names
    assert "stale" not in names
    found = load_file(target / "model.safetensors")
    assert all(torch.equal(found[name], value) for name, value in tensors.items())
    assert [path.name for path in tmp_path.iterdir()] == ["export"]


def test_a_large_model_is_exported_in_several_files_that_transformers_reads_as_one(
    tiny_model: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    tensors = load_file(tiny_model / "model.safetensors")
    layout = image.layout_from_safetensors(tiny_model, "float32")
    exporter = export.ImageExporter(
        layout=layout, visit=visit_of(tensors), writes=True, most_file_bytes=layout.image_bytes // 3
    )
    exporter.write_export(tiny_model, tmp_path / "export")
    files = sorted(path.name for path in (tmp_path / "export").glob("*.safetensors"))
    assert len(files) > 1
    assert files[0] == f"model-00001-of-{len(files):05d}.safetensors"
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "export", dtype=torch.float32).state_dict()
    assert all(torch.equal(loaded[name], value) for name, value in tensors.items())
    again = image.layout_from_safetensors(tmp_path / "export", "float32")
    assert again.layout_id == layout.layout_id


@pytest.mark.parametrize(
    ("sizes", "files"),
    [
        pytest.param([4, 4, 4], [["t0", "t1"], ["t2"]], id="full files"),
        pytest.param([4, 20, 4], [["t0"], ["t1"], ["t2"]], id="a tensor above the limit has a file of its own"),
        pytest.param([1, 1, 1], [["t0", "t1", "t2"]], id="one file"),
    ],
)
def test_files_are_filled_in_image_order(sizes: list[int], files: list[list[str]]) -> None:
    layout = image.make_layout((f"t{index}", "bfloat16", (size,)) for index, size in enumerate(sizes))
    assert [[spec.name for spec in specs] for specs in model_folder.files_of(layout, most_bytes=16)] == files


def test_a_folder_is_written_with_one_tensor_in_memory(tmp_path: pathlib.Path) -> None:
    layout = image.make_layout((f"t{index}", "bfloat16", (3, index)) for index in range(1, 6))
    alive: set[int] = set()
    most_alive = 0

    def made() -> Iterator[tuple[str, torch.Tensor]]:
        nonlocal most_alive
        for number, spec in enumerate(layout.tensors):
            alive.add(number)
            most_alive = max(most_alive, len(alive))
            tensor = torch.full(spec.shape, float(number), dtype=torch.bfloat16)
            weakref.finalize(tensor, alive.discard, number)
            yield spec.name, tensor
            del tensor

    (tmp_path / "export").mkdir()
    model_folder.write(tmp_path / "export", layout, made(), model_dir=tmp_path)
    assert most_alive == 1
    found = load_file(tmp_path / "export" / "model.safetensors")
    assert {name: (tuple(tensor.shape), float(tensor.max())) for name, tensor in found.items()} == {
        spec.name: (spec.shape, float(number)) for number, spec in enumerate(layout.tensors)
    }


def test_a_folder_that_lacks_a_tensor_or_has_another_one_is_refused(tmp_path: pathlib.Path) -> None:
    layout = image.make_layout([("a", "bfloat16", (2,)), ("b", "bfloat16", (2,))])
    a, b = (torch.zeros(2, dtype=torch.bfloat16) for _ in layout.tensors)
    with pytest.raises(ValueError, match="takes 4 bytes of a next, not 4 bytes of b"):
        model_folder.write(tmp_path, layout, [("b", b), ("a", a)], model_dir=tmp_path)
