"""The run of a large model: whose memory is whose, and what an export must hold."""

import os
import pathlib

import pytest
import torch
from safetensors.torch import save_file
from tests.bench import large_model, memory_watch


@pytest.mark.parametrize(
    ("command", "parent", "kind"),
    [
        ("python -m rljob_workers.trainer --config t.json", "", "trainer"),
        ("python -m torch.distributed.run rljob_workers.trainer.worker", "trainer", "trainer"),
        ("python -c from multiprocessing.spawn import spawn_main", "rollout", "rollout engine"),
        ("VLLM::EngineCore", "rollout", "rollout engine"),
        ("python -c from multiprocessing.resource_tracker import main", "rollout engine", "rollout engine"),
        ("python -c from multiprocessing.spawn import spawn_main", "verifier", "verifier"),
        ("sleep 1", "", "runner"),
    ],
)
def test_a_process_is_its_roles_and_an_engine_is_told_from_its_rollout(command: str, parent: str, kind: str) -> None:
    assert memory_watch.kind_of(command, parent) == kind


def test_memory_of_this_process_is_told_by_what_backs_it(tmp_path: pathlib.Path) -> None:
    before = memory_watch.rollup(os.getpid())
    taken = bytearray(os.urandom(64 << 20))
    after = memory_watch.rollup(os.getpid())
    assert after.anonymous - before.anonymous > 60 << 20
    assert after.mapped < before.mapped + (8 << 20)
    assert taken
    assert memory_watch.rollup(1 << 30) == memory_watch.Peak()


def test_peaks_of_two_moments_are_the_larger_ones() -> None:
    one, other = memory_watch.Peak(anonymous=3, mapped=1), memory_watch.Peak(anonymous=2, mapped=5)
    assert one.joined(other) == memory_watch.Peak(anonymous=3, mapped=5)


def test_an_export_is_compared_tensor_by_tensor_and_must_have_the_same_ones(tmp_path: pathlib.Path) -> None:
    tensors = {"a": torch.zeros(3), "b": torch.ones(3)}
    for folder, changes in (("model", {}), ("export", {"b": torch.zeros(3)}), ("other", {"c": torch.ones(3)})):
        (tmp_path / folder).mkdir()
        save_file({**tensors, **changes}, tmp_path / folder / "model.safetensors")
    assert large_model.changed_tensors(tmp_path / "model", tmp_path / "export") == 1
    with pytest.raises(large_model.FailedRunError, match="'c'"):
        large_model.changed_tensors(tmp_path / "model", tmp_path / "other")
