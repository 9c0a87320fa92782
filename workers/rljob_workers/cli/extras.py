"""What a command needs beyond the small install, `rljob[cli]`, and how to get it."""

import importlib.util
from collections.abc import Mapping

from rljob_api import errors

# A module of each extra that a command needs, by extra; vLLM comes as one wheel for CPUs and another for CUDA.
REPORT: Mapping[str, str] = {"local": "matplotlib"}
PUSH: Mapping[str, str] = {"trainer": "huggingface_hub"}
RUN: Mapping[str, str] = {
    **REPORT,
    "coordinator": "pyarrow",
    "verifier": "math_verify",
    "trainer": "deepspeed",
    "cpu": "vllm",
}


def require(command: str, modules: Mapping[str, str]) -> None:
    """Raise ManifestError that names the extras to install if a module is not there. Nothing is imported."""
    lacking = {extra: module for extra, module in modules.items() if importlib.util.find_spec(module) is None}
    if lacking:
        gpus = ", with rollout in place of cpu for NVIDIA GPUs" if "cpu" in lacking else ""
        raise errors.ManifestError(
            f"`rljob {command}` needs {', '.join(lacking.values())}, which this installation lacks: install "
            f"rljob[{','.join(lacking)}]{gpus}"
        )
