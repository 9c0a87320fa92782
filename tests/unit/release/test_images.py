"""The commands that build the images."""

import pytest
from generators import ROOT
from release import images, sbom


def test_every_image_has_a_dockerfile_and_a_bill_of_its_lock() -> None:
    for image in images.IMAGES:
        assert (ROOT / image.dockerfile).is_file()
        assert image.lock in sbom.LOCKS
        assert (ROOT / f"workers/constraints/{image.lock}.txt").is_file()


@pytest.mark.parametrize("image", images.IMAGES, ids=lambda image: image.name)
def test_an_image_is_built_of_its_dockerfile_as_of_one_time(image: images.Image) -> None:
    command = images.build_command("buildah", image, "registry/tag", base=None, epoch=17)
    assert command[:3] == ["buildah", "bud", "-q"]
    assert command[command.index("--timestamp") + 1] == "17"
    assert command[command.index("-f") + 1] == str(ROOT / image.dockerfile)
    assert command[-1] == str(ROOT)
    assert [word for word in command if word.startswith("--build-arg")] == [
        f"--build-arg={name}={value}" for name, value in image.arguments.items()
    ]


def test_the_worker_is_built_once_for_each_device_with_that_devices_lock() -> None:
    devices = {image.arguments.get("DEVICE"): image.lock for image in images.IMAGES if "worker" in image.name}
    assert devices == {"cpu": "worker-cpu", "cuda": "worker-cuda"}


def test_another_base_takes_the_place_of_the_dockerfiles() -> None:
    command = images.build_command("buildah", images.IMAGES[0], "tag", base="registry/base:1", epoch=17)
    assert "--build-arg=BASE_IMAGE=registry/base:1" in command
