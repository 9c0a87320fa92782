import os
import pathlib

from rljob_testing.cluster import roots

BLOB = "io.containerd.content.v1.content/blobs/sha256/00"
LAYER = "io.containerd.snapshotter.v1.overlayfs/snapshots/1/fs/bin/program"
DATABASES = ("io.containerd.metadata.v1.bolt/meta.db", "io.containerd.snapshotter.v1.overlayfs/metadata.db")


def _template(folder: pathlib.Path) -> pathlib.Path:
    for name in (BLOB, LAYER, *DATABASES):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"template's {path.name}")
    (folder / LAYER).chmod(0o755)
    return folder


def test_layers_and_blobs_of_a_clone_take_no_room_of_their_own(tmp_path: pathlib.Path) -> None:
    template, root = _template(tmp_path / "template"), tmp_path / "nodes" / "a"
    roots.clone(template, root)
    assert os.path.samefile(template / BLOB, root / BLOB)
    assert os.path.samefile(template / LAYER, root / LAYER)


def test_what_a_node_writes_to_its_databases_stays_with_it(tmp_path: pathlib.Path) -> None:
    template, roots_of_nodes = _template(tmp_path / "template"), [tmp_path / "a", tmp_path / "b"]
    for root in roots_of_nodes:
        roots.clone(template, root)
    for name in DATABASES:
        (roots_of_nodes[0] / name).write_text("a's")
        assert [(root / name).read_text() for root in (template, roots_of_nodes[1])] == [
            f"template's {pathlib.Path(name).name}"
        ] * 2


def test_clone_takes_the_place_of_what_a_cluster_before_it_left(tmp_path: pathlib.Path) -> None:
    template, root = _template(tmp_path / "template"), tmp_path / "a"
    (root / "io.containerd.snapshotter.v1.overlayfs/snapshots/7").mkdir(parents=True)
    roots.clone(template, root)
    assert not (root / "io.containerd.snapshotter.v1.overlayfs/snapshots/7").exists()


def test_clone_outlives_its_template(tmp_path: pathlib.Path) -> None:
    template, root = _template(tmp_path / "template"), tmp_path / "a"
    roots.clone(template, root)
    roots.discard(template)
    assert (root / LAYER).read_text() == "template's program"
    assert os.access(root / LAYER, os.X_OK)
