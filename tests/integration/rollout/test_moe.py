"""A mixture of experts in the real vLLM: versions hold one tensor per expert and matrix, as the files do."""

import pathlib
from collections.abc import Iterator

import pytest

from rljob_api import types
from rljob_testing import models

PROMPT = tuple(range(40, 80))


@pytest.fixture(scope="module")
def moe(tmp_path_factory: pytest.TempPathFactory, make_rig) -> Iterator[tuple[object, list[pathlib.Path]]]:
    root = tmp_path_factory.mktemp("moe")
    folders = [models.make_tiny_qwen3_moe(root / str(seed), seed=seed) for seed in range(2)]
    rig = make_rig(folders[0])
    rig.store.publish(1, folders[1], rig.stager.layout)
    yield rig, folders
    rig.close()


def test_an_update_that_changes_no_weight_changes_no_answer_of_experts(moe) -> None:
    rig, _ = moe
    rig.test_itself(PROMPT)


def test_a_version_with_experts_one_by_one_replaces_those_of_the_engine(moe) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    rig, folders = moe
    sampling = types.Sampling(max_tokens=12, ignore_eos=True)
    for version, folder in enumerate(folders):
        if version:
            assert rig.loop.run_until_complete(rig.follow(version)).failure == ""
        result = rig.loop.run_until_complete(rig.gate.generate(rig.request(PROMPT, sampling)))
        assert set(result.versions) == {version}
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        with torch.no_grad():
            logits = model(torch.tensor([[*PROMPT, *result.output_ids]])).logits[0]
        rows = torch.log_softmax(logits[len(PROMPT) - 1 : -1], dim=-1)
        expected = [float(rows[index, token]) for index, token in enumerate(result.output_ids)]
        gaps = [abs(a - b) for a, b in zip(result.logprobs, expected, strict=True)]
        # A router that rounds in bf16 may choose another expert for a token now and then; other weights are nats away.
        assert sorted(gaps)[len(gaps) // 2] < 0.12, gaps
