"""A whole run that trains an adapter: real vLLM, DeepSpeed and PEFT, and what it leaves."""

import pytest

from rljob_testing.runs import Runs

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def test_run_of_an_adapter_samples_from_what_it_trains_and_leaves_adapter_and_model(rljob: Runs) -> None:
    import peft
    import torch
    from transformers import AutoModelForCausalLM

    name = str(rljob.task.model)
    changes: dict[str, object] = {
        "model": {"name": name, "lora": {"rank": 4}},
        "algorithm__loss": {"klCoef": "0.01"},
        "trainer__optimizer__learningRate": "1e-2",
        # Enough answers, likely enough ones, that some are right and groups differ.
        "algorithm__groupSize": 32,
        "rollout__sampling__temperature": "0.5",
        # Each step then compares engine and trainer on the same version.
        "async__maxOffPolicySteps": 0,
    }
    code, output = rljob.run(rljob.manifest(maxSteps=5, **changes))
    assert code == 0, output
    stats = [step["stats"] for step in rljob.steps()]
    assert len(stats) == 5
    # An adapter that was served late, in another measure or not at all would be another policy, and further each step.
    assert max(each["mismatch/abs_diff"] for each in stats) < 0.1
    assert stats[0]["policy/ref_kl"] < 1e-3 < stats[-1]["policy/ref_kl"]
    rewards = rljob.summary()["reward_mean"]
    assert rewards[-1] > rewards[0] + 0.2
    assert rljob.audit() == ""
    run_dir = rljob.folder / "run"
    export = run_dir / "export"
    updates = rljob.summary()["weight_updates"]
    assert updates["count"] >= 2
    # A version is the adapter alone.
    assert 0 < updates["bytes_p50"] <= (export / "adapter" / "adapter_model.safetensors").stat().st_size
    base = AutoModelForCausalLM.from_pretrained(name, dtype=torch.float32)
    adapted = peft.PeftModel.from_pretrained(base, str(export / "adapter"))
    merged = AutoModelForCausalLM.from_pretrained(export, dtype=torch.float32)
    tokens = torch.arange(40, 80)[None]
    with torch.no_grad():
        by_adapter, by_model = (torch.log_softmax(model(input_ids=tokens).logits, -1) for model in (adapted, merged))
        with adapted.disable_adapter():
            before = torch.log_softmax(adapted(input_ids=tokens).logits, -1)
    # Merged weights are rounded to bfloat16 once more.
    assert float((by_adapter - by_model).abs().mean()) < 0.2 * float((by_adapter - before).abs().mean())
