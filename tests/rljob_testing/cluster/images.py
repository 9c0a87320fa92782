"""Images for the nodes, built by buildah from the project's own Dockerfiles, without a registry.

The base image is a minimal Debian made on the spot: the Dockerfiles take any base with Python 3.11. Layers lie in the
cache folder, so that a change of our code rebuilds the layer of our code alone.
"""

import dataclasses
import hashlib
import importlib.metadata
import os
import pathlib
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from functools import partial

from rljob_testing.cluster import binaries
from rljob_testing.cluster.node import PAUSE, Node

REGISTRY = "rljob.test"
REPOSITORY = pathlib.Path(__file__).parents[3]
BUILD_S = 7200.0
SUITE = "bookworm"
PACKAGES = ("python3", "python3-venv", "ca-certificates")
BASE = f"localhost/rljob-test-base:{SUITE}"
CERTIFICATES = pathlib.Path("/etc/ssl/certs")
# What the Dockerfiles copy.
_SOURCES = ("pyproject.toml", "README.md", "LICENSE", "proto", "operator", "workers")
_PAUSE_SOURCE = "#include <unistd.h>\nint main(void) { for (;;) pause(); }\n"
# As a list: a plain string would be run by a shell, which this image lacks.
_PAUSE_CONFIG = ('--entrypoint=["/pause"]', "--user=65535:65535")


@dataclasses.dataclass(frozen=True, slots=True)
class Image:
    """An image of the product: the name by which pods ask for it, and its Dockerfile."""

    name: str
    dockerfile: str


VERSION = importlib.metadata.version("rljob")
# The chart's names below a registry that does not exist: nothing is ever pulled.
SLIM = Image(f"{REGISTRY}/rljob/rljob-slim:{VERSION}", "operator/Dockerfile")
WORKER = Image(f"{REGISTRY}/rljob/rljob-worker:{VERSION}", "workers/worker.Dockerfile")


def load(nodes: Sequence[Node], images: Sequence[Image]) -> None:
    """Bring the pause image and `images` of this checkout to the nodes. Raises OSError with the builder's last words.

    A node that already holds an image of the same sources is left alone.
    """
    _load(nodes, PAUSE, _digest([_PAUSE_SOURCE.encode(), *(option.encode() for option in _PAUSE_CONFIG)]), _build_pause)
    for image in images:
        _load(nodes, image.name, _source_digest(), partial(_build, image))


def _load(nodes: Sequence[Node], name: str, digest: str, build: Callable[[], None]) -> None:
    wanting = [node for node in nodes if not node.has_image(name, digest)]
    if not wanting:
        return
    build()
    with tempfile.TemporaryDirectory(dir=_folder()) as folder:
        archive = pathlib.Path(folder) / "image.tar"
        _buildah("push", "--quiet", _local(name), f"docker-archive:{archive}:{name}")
        for node in wanting:
            node.import_image(archive, name, digest)


def _build(image: Image) -> None:
    """Build an image of the product. A build uses the network and the package cache of the machine."""
    if not _exists(BASE):
        _build_base()
    cache = pathlib.Path(os.environ.get("UV_CACHE_DIR") or pathlib.Path.home() / ".cache" / "uv")
    cache.mkdir(parents=True, exist_ok=True)
    mounts = [f"--volume={CERTIFICATES}:{CERTIFICATES}:ro", f"--volume={cache}:/root/.cache/uv"]
    options = ["--isolation=chroot", "--network=host", "--layers", f"--build-arg=BASE_IMAGE={BASE}", *mounts]
    _buildah("build", *options, f"--file={image.dockerfile}", f"--tag={_local(image.name)}", ".")


def _build_base() -> None:
    with tempfile.TemporaryDirectory(dir=_folder()) as folder:
        tree = f"{folder}/tree"
        _run(["debootstrap", "--variant=minbase", f"--include={','.join(PACKAGES)}", SUITE, tree])
        shutil.rmtree(f"{tree}/var/cache/apt/archives", ignore_errors=True)
        _commit(BASE, tree, "/")


def _build_pause() -> None:
    """Build what holds a pod's namespaces open: a static program that sleeps."""
    with tempfile.TemporaryDirectory(dir=_folder()) as folder:
        (pathlib.Path(folder) / "pause.c").write_text(_PAUSE_SOURCE)
        _run(["gcc", "-static", "-Os", "-o", f"{folder}/pause", f"{folder}/pause.c"])
        _commit(_local(PAUSE), f"{folder}/pause", "/pause", *_PAUSE_CONFIG)


def _commit(name: str, source: str, target: str, *config: str) -> None:
    container = _buildah("from", "scratch").strip()
    try:
        _buildah("copy", "--quiet", container, source, target)
        if config:
            _buildah("config", *config, container)
        _buildah("commit", "--quiet", container, name)
    finally:
        _buildah("rm", container)


def _local(name: str) -> str:
    """Return the name of an image in the builder's store, where no name may point to a registry."""
    return f"localhost/{name.replace('.', '-').replace('/', '-')}"


def _exists(name: str) -> bool:
    return name in _buildah("images", "--format={{.Name}}:{{.Tag}}").split()


def _source_digest() -> str:
    parts = []
    for root in _SOURCES:
        path = REPOSITORY / root
        files = [path] if path.is_file() else sorted(one for one in path.rglob("*") if one.is_file())
        for one in files:
            if "__pycache__" not in one.parts:
                parts += [str(one.relative_to(REPOSITORY)).encode(), one.read_bytes()]
    return _digest(parts)


def _digest(parts: Sequence[bytes]) -> str:
    return hashlib.sha256(b"\0".join(hashlib.sha256(part).digest() for part in parts)).hexdigest()[:16]


def _folder() -> pathlib.Path:
    folder = binaries.cache_dir() / "images"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _buildah(*arguments: str) -> str:
    store = [f"--root={_folder() / 'store'}", "--runroot=/run/rljob-test/images", "--storage-driver=overlay"]
    return _run(["buildah", *store, *arguments])


def _run(command: Sequence[str]) -> str:
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=BUILD_S)
    if done.returncode:
        raise OSError(f"{' '.join(command)} ended with {done.returncode}: {(done.stderr or done.stdout)[-3000:]}")
    return done.stdout
