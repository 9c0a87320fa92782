"""Images for the nodes, built by buildah from the project's own Dockerfiles, without a registry and without an archive.

    Dockerfile --buildah--> store --pipe--> containerd's template root --links--> a root for each node (`roots.py`)

The base image is a minimal Debian made on the spot: the Dockerfiles take any base with Python 3.11. A template is kept
in the cache folder for as long as what it was made of is unchanged; what building it took is removed where the disk has
little room, since it is several times its size.
"""

import contextlib
import dataclasses
import hashlib
import importlib.metadata
import os
import pathlib
import shutil
import subprocess
import tempfile
from collections.abc import Sequence

from rljob_testing.cluster import binaries, roots
from rljob_testing.cluster.runtime import PAUSE, Runtime

REGISTRY = "rljob.test"
REPOSITORY = pathlib.Path(__file__).parents[3]
BUILD_S = 7200.0
# Free disk with which the builder's store, 10 GB, is kept for the next change of the sources.
_STORE_STAYS_BYTES = 40 << 30
SUITE = "bookworm"
PACKAGES = ("python3", "python3-venv", "ca-certificates")
BASE = f"localhost/rljob-test-base:{SUITE}"
CERTIFICATES = pathlib.Path("/etc/ssl/certs")
# What the Dockerfiles copy.
_SOURCES = ("pyproject.toml", "README.md", "LICENSE", "proto", "operator", "workers", "sdk")
_PAUSE_SOURCE = "#include <unistd.h>\nint main(void) { for (;;) pause(); }\n"
# As a list: a plain string would be run by a shell, which this image lacks.
_PAUSE_CONFIG = ('--entrypoint=["/pause"]', "--user=65535:65535")


@dataclasses.dataclass(frozen=True, slots=True)
class Image:
    """An image of the product: the name by which pods ask for it, its Dockerfile, and that one's arguments."""

    name: str
    dockerfile: str
    arguments: tuple[str, ...] = ()


VERSION = importlib.metadata.version("rljob")
# The chart's names below a registry that does not exist: nothing is ever pulled.
SLIM = Image(f"{REGISTRY}/rljob/rljob-slim:{VERSION}", "operator/Dockerfile")
WORKER = Image(f"{REGISTRY}/rljob/rljob-worker:{VERSION}", "workers/worker.Dockerfile", ("DEVICE=cpu",))
# For GPUs: no node of the test cluster has one, so it is built by hand alone.
WORKER_CUDA = Image(f"{REGISTRY}/rljob/rljob-worker-cuda:{VERSION}", "workers/worker.Dockerfile", ("DEVICE=cuda",))
IMAGES = (SLIM, WORKER)


def ready() -> pathlib.Path | None:
    """Return the template of this checkout if it has been made, or None."""
    found = _target()
    return found if found.exists() else None


def template() -> pathlib.Path:
    """Return a containerd root that holds the pause image and those of this checkout, made if it is not there.

    Two that ask at once wait for each other. Raises OSError with the builder's last words.
    """
    target = _target()
    with binaries.lock(_folder() / "lock"):
        if not target.exists():
            _make(target)
    return target


def cuda_image() -> str:
    """Build the image for GPUs in the builder's store and return its size in words; nothing runs it here.

    Raises OSError with the builder's last words, and so where a program in it cannot print its help.
    """
    with binaries.lock(_folder() / "lock"):
        _build(WORKER_CUDA)
        return _buildah("images", "--format={{.Size}}", _local(WORKER_CUDA.name)).strip()


def _target() -> pathlib.Path:
    parts = [_PAUSE_SOURCE.encode(), *(option.encode() for option in _PAUSE_CONFIG)]
    for image in IMAGES:
        parts += [part.encode() for part in (image.name, image.dockerfile, *image.arguments)]
    return _folder() / f"template-{_digest([*parts, _source_digest().encode()])}"


def _make(target: pathlib.Path) -> None:
    # Templates of other sources go first, since the disk may not hold two; nodes have links of their own.
    for other in _folder().glob("template-*"):
        roots.discard(other)
    with tempfile.TemporaryDirectory(dir=_folder()) as folder:
        unfinished = pathlib.Path(folder) / "root"
        runtime = Runtime("template", pathlib.Path(folder), unfinished)
        try:
            runtime.start()
            _build_pause()
            _move(runtime, PAUSE)
            for image in IMAGES:
                _build(image)
                _move(runtime, image.name)
                runtime.discard_layers()
        finally:
            runtime.stop()
        unfinished.rename(target)
    # After a build that failed the layers stay, and the next one continues from them; so it does where there is room.
    if shutil.disk_usage(_folder()).free < _STORE_STAYS_BYTES:
        _discard_store()


def _move(runtime: Runtime, name: str) -> None:
    """Bring an image from the builder's store to containerd through a pipe. Raises OSError."""
    command = _command("push", "--quiet", _local(name), f"docker-archive:/dev/stdout:{name}")
    with tempfile.TemporaryFile() as errors, subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors) as push:
        assert push.stdout is not None
        with contextlib.closing(push.stdout) as archive:
            runtime.import_image(archive)
        if push.wait():
            errors.seek(0)
            raise OSError(f"pushing {name} ended with {push.returncode}: {errors.read().decode()[-3000:]}")


def _discard_store() -> None:
    # Layers belong to users of the builder's own choice, so the builder removes what is in use, and then its folder.
    _buildah("rm", "--all")
    _buildah("rmi", "--all", "--force")
    shutil.rmtree(_store())


def _build(image: Image) -> None:
    """Build an image of the product. A build uses the network and the package cache of the machine."""
    if not _exists(BASE):
        _build_base()
    cache = pathlib.Path(os.environ.get("UV_CACHE_DIR") or pathlib.Path.home() / ".cache" / "uv")
    cache.mkdir(parents=True, exist_ok=True)
    mounts = [f"--volume={CERTIFICATES}:{CERTIFICATES}:ro", f"--volume={cache}:/root/.cache/uv"]
    arguments = [f"--build-arg={argument}" for argument in (f"BASE_IMAGE={BASE}", *image.arguments)]
    options = ["--isolation=chroot", "--network=host", "--layers", *arguments, *mounts]
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


def _store() -> pathlib.Path:
    return _folder() / "store"


def _command(*arguments: str) -> list[str]:
    return ["buildah", f"--root={_store()}", "--runroot=/run/rljob-test/images", "--storage-driver=overlay", *arguments]


def _buildah(*arguments: str) -> str:
    return _run(_command(*arguments))


def _run(command: Sequence[str]) -> str:
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=BUILD_S)
    if done.returncode:
        raise OSError(f"{' '.join(command)} ended with {done.returncode}: {(done.stderr or done.stdout)[-3000:]}")
    return done.stdout
