"""Corrections to upstream code, each with what is seen without it and the condition for its removal."""

import contextlib
import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vllm.v1.engine.async_llm import AsyncLLM

_RELOAD_LOGGER = "vllm.model_executor.model_loader.reload.layerwise"


def disarm_finaliser(llm: "AsyncLLM") -> None:
    """After `shutdown`: without it every process ends with "Exception ignored in AsyncLLM.__del__".

    Its finaliser shuts down a second time while the interpreter is being taken apart. Remove when vLLM's `__del__`
    tolerates an engine that was shut down. Seen in 0.32.
    """
    llm.shutdown = _nothing  # type: ignore[method-assign]  # that is the patch


def _nothing(timeout: float | None = None) -> None:
    del timeout


@contextlib.contextmanager
def quiet_reload() -> Iterator[None]:
    """Around finishing a reload: without it each update logs "Failed to load weights" for tied and weightless layers.

    We check consumption ourselves and raise. Remove when vLLM does not warn about layers without checkpoint tensors.
    """
    reload_logger = logging.getLogger(_RELOAD_LOGGER)
    before = reload_logger.level
    reload_logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        reload_logger.setLevel(before)
