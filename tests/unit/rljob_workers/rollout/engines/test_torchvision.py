"""vLLM's LLaVA needs one function of a module that imports torchvision, which no environment of ours has."""

import importlib
import importlib.util
import sys

import pytest

from rljob_workers.rollout.engines.vllm import patches

NAME = patches._WithoutTorchvision.NAME


@pytest.fixture
def finders(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The finders of modules, as they are without the patch."""
    without = [finder for finder in sys.meta_path if not isinstance(finder, patches._WithoutTorchvision)]
    monkeypatch.setattr(sys, "meta_path", without)
    monkeypatch.delitem(sys.modules, NAME, raising=False)
    return without


@pytest.mark.skipif(importlib.util.find_spec("torchvision") is not None, reason="torchvision is installed")
def test_the_function_is_that_of_the_twin_for_pil(finders: list[object]) -> None:
    with pytest.raises(ModuleNotFoundError, match="torchvision"):
        importlib.import_module(NAME)
    patches.read_pictures_without_torchvision()
    patches.read_pictures_without_torchvision()
    assert len([finder for finder in finders if isinstance(finder, patches._WithoutTorchvision)]) == 1
    assert importlib.import_module(NAME)._num_image_tokens((32, 48), (16, 16)) == (2, 3)
    sys.modules.pop(NAME)


def test_where_torchvision_is_installed_nothing_is_patched(
    finders: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: object())
    before = list(finders)
    patches.read_pictures_without_torchvision()
    assert finders == before
