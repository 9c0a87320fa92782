"""The gateway over real connections: the official clients' calls are trained as they were sampled, many sessions wait
for nobody but the engine. Larger: `python -m tests.bench.gateway`.
"""

import json
import os
import pathlib
from collections.abc import Iterator

import pytest

from rljob_api import types
from rljob_api.manifest.rollout import EngineSpec
from rljob_testing import models, sampled
from rljob_testing.engine_rig import Rig
from rljob_testing.sections import section
from rljob_workers.rollout import tokenizer

NUM_ENGINE_CALLS = int(os.environ.get("RLJOB_GATEWAY_CALLS", "0"))
MAX_MODEL_LEN = 1024
# Shows tools, in the notation of Hermes.
TEMPLATE = (
    "{% if tools %}{{ '<|im_start|>system\n<tool_call>' + (tools | tojson) + '<|im_end|>\n' }}{% endif %}"
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


async def test_what_the_official_clients_were_answered_is_what_is_trained() -> None:
    # The official clients take two seconds to import, which other workers are spared.
    from rljob_testing import gateway_load

    compared = await gateway_load.compare_ids(200)
    assert compared.num_calls >= 200
    assert compared.num_trained == compared.num_tokens


async def test_agents_of_another_process_hold_sessions_side_by_side() -> None:
    from rljob_testing import gateway_load

    added = await gateway_load.time_calls(50, calls_each=3, most_s=0.5)
    assert (added.num_sessions, added.num_calls) == (50, 150)


@pytest.fixture
def exact_rig(tmp_path: pathlib.Path) -> Iterator[tuple[Rig, pathlib.Path]]:
    """An engine that computes in float32, so that a recompute finds the same."""
    folder = models.make_tiny_llama(tmp_path / "model")
    config = folder / "tokenizer_config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"chat_template": TEMPLATE}))
    made = Rig(
        folder,
        config=section(EngineSpec, max_model_len=MAX_MODEL_LEN, max_num_seqs=4, enforce_eager=True, dtype="float32"),
    )
    yield made, folder
    made.close()


def recomputed_logprobs(folder: pathlib.Path, rows: list[types.Trajectory]) -> Iterator[tuple[float, float]]:
    """Yield the log-probability of each trained token, and the same by transformers in float32."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    for row in rows:
        with torch.no_grad():
            logits = model(torch.tensor([list(row.tokens)])).logits[0]
        expected = torch.log_softmax(logits, dim=-1)
        for place, token in enumerate(row.tokens):
            if row.loss_mask[place]:
                yield float(row.logprobs[place]), float(expected[place - 1, token])


@pytest.mark.skipif(not NUM_ENGINE_CALLS, reason="calls of the engine were not asked for (RLJOB_GATEWAY_CALLS=300)")
def test_what_the_engine_answered_the_official_clients_is_trained_with_its_log_probabilities(
    exact_rig: tuple[Rig, pathlib.Path],
) -> None:
    from rljob_testing import gateway_load

    rig, folder = exact_rig
    recorder = sampled.Recorder(rig.gate)
    rows = rig.loop.run_until_complete(
        gateway_load.rows_of_calls(
            recorder,
            tokenizer.PromptTokenizer(folder, template="chat"),
            num_calls=NUM_ENGINE_CALLS,
            max_model_len=MAX_MODEL_LEN,
            sampling=types.Sampling(max_tokens=12),
        )
    )
    assert recorder.check(rows) == len(recorder.logprobs)
    gaps = [abs(sampled_nats - expected) for sampled_nats, expected in recomputed_logprobs(folder, rows)]
    print(f"{recorder.num_calls} calls, {recorder.num_tokens} tokens, {len(rows)} rows; largest gap {max(gaps):.2g}")
    assert max(gaps) < 1e-3
