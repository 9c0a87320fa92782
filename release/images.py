"""The three images, built and pushed by buildah, and named by digest from then on."""

import pathlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from generators import ROOT

from release import programs

DIGESTS = "images.txt"


class Image(NamedTuple):
    """lock: that of its packages, of which there is a bill of materials."""

    name: str
    dockerfile: str
    lock: str
    arguments: Mapping[str, str] = {}


IMAGES = (
    Image("rljob-slim", "operator/Dockerfile", "slim"),
    Image("rljob-worker", "workers/worker.Dockerfile", "worker-cpu", {"DEVICE": "cpu"}),
    Image("rljob-worker-cuda", "workers/worker.Dockerfile", "worker-cuda", {"DEVICE": "cuda"}),
)


def build_command(buildah: str, image: Image, tag: str, *, base: str | None, epoch: int) -> Sequence[str]:
    """Return the command that builds an image. base: in place of the base image of the Dockerfile."""
    arguments = {**image.arguments, **({"BASE_IMAGE": base} if base else {})}
    return [
        buildah, "bud", "-q", "--timestamp", str(epoch), "-f", str(ROOT / image.dockerfile), "-t", tag,
        *(f"--build-arg={name}={value}" for name, value in arguments.items()), str(ROOT),
    ]  # fmt: skip


def publish(
    folder: pathlib.Path, *, registry: str, version: str, base: str | None, scratch: pathlib.Path, epoch: int
) -> Mapping[str, Image]:
    """Build and push all images, write their names with digest into a file, and return the images by these names.

    scratch: an empty folder. Raises ReleaseError.
    """
    buildah = programs.path_of("buildah", remedy="it builds the images of --registry")
    published = dict[str, Image]()
    for image in IMAGES:
        name = f"{registry.rstrip('/')}/rljob/{image.name}"
        programs.run(*build_command(buildah, image, f"{name}:{version}", base=base, epoch=epoch))
        digest = scratch / image.name
        programs.run(buildah, "push", "-q", "--digestfile", digest, f"{name}:{version}")
        published[f"{name}@{digest.read_text().strip()}"] = image
    (folder / DIGESTS).write_text("".join(f"{name}\n" for name in published))
    return published
