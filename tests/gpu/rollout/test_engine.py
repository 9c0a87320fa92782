"""vLLM alone on a GPU: compiled graphs, versions taken while it decodes, and speed against the engine without us."""

import asyncio
import os
import pathlib
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from rljob_api import types
from rljob_api.manifest.rollout import EngineSpec
from rljob_testing import engine_rig, gpu
from rljob_testing.sections import section
from rljob_workers.runtime import device

pytestmark = [*gpu.NEEDS_GPU, pytest.mark.timeout(1800)]
NAME = "Qwen2.5-0.5B"
CONCURRENT, ANSWER, WINDOW_S = (8, 32, 2.0) if gpu.REHEARSAL else (256, 512, 20.0)
UPDATES = 3


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[pathlib.Path]:
    """The same model with other weights in each folder."""
    root = tmp_path_factory.mktemp("models")
    return [gpu.random_model(root / str(seed), NAME, seed=seed) for seed in range(UPDATES + 1)]


@pytest.fixture(scope="module")
def rig(folders: list[pathlib.Path]) -> Iterator[engine_rig.Rig]:
    before = dict(os.environ)
    os.environ.update(device.engine_environment(num_threads=1, kind=device.engine_kind("vllm") or "cpu"))
    config = section(
        EngineSpec,
        max_model_len=256 if gpu.REHEARSAL else 2048,
        max_num_seqs=CONCURRENT,
        gpu_memory_utilization=0.5,
        # Graphs are captured of compiled code: what a job gets unless its manifest says enforceEager.
        enforce_eager=False,
    )
    made = engine_rig.Rig(folders[0], config=config)
    for version, folder in enumerate(folders):
        if version:
            made.store.publish(version, folder, made.stager.layout)
    yield made
    made.close()
    os.environ.clear()
    os.environ.update(before)


def prompts(count: int) -> list[list[int]]:
    rng = random.Random(0)
    return [[rng.randrange(1, 500) for _ in range(64)] for _ in range(count)]


def sampling(max_tokens: int = ANSWER) -> types.Sampling:
    return types.Sampling(temperature=1.0, max_tokens=max_tokens, ignore_eos=True)


def test_the_engine_captured_graphs_of_compiled_code(rig: engine_rig.Rig) -> None:
    if not gpu.HAS_GPU:
        pytest.skip("needs torch.cuda.is_available(): vLLM captures graphs on GPUs alone")
    config = rig.engine._engine().vllm_config
    assert not config.model_config.enforce_eager
    assert config.compilation_config.cudagraph_mode.name != "NONE"
    assert config.compilation_config.mode.name != "NONE"
    assert "TORCHDYNAMO_DISABLE" not in os.environ


def test_versions_are_taken_while_requests_are_decoded(rig: engine_rig.Rig, figures: gpu.Figures) -> None:
    async def decode_and_follow() -> tuple[list[types.WeightSync], list[tuple[int, ...]]]:
        requests = [
            rig.request(prompt, sampling(max_tokens=4 * ANSWER if gpu.HAS_GPU else 150)) for prompt in prompts(8)
        ]
        decoding = [asyncio.ensure_future(rig.gate.generate(request)) for request in requests]
        reports = []
        for version in range(1, UPDATES + 1):
            await asyncio.sleep(0.3)
            reports.append(await rig.follow(version))
        return reports, [(await each).versions for each in decoding]

    reports, versions = rig.loop.run_until_complete(decode_and_follow())
    assert [report.failure for report in reports] == [""] * UPDATES
    assert max(max(each) for each in versions) >= 1, "no request saw a new version: it was over before the first update"
    figures.add(
        f"engine, {NAME}: pause of an update", statistics.median(one.pause_s for one in reports) * 1e3, "ms", most=50
    )
    figures.add(f"engine, {NAME}: loading inside of it", statistics.median(one.apply_s for one in reports) * 1e3, "ms")
    figures.add(
        f"engine, {NAME}: fetch of a version in this process", statistics.median(one.fetch_s for one in reports), "s"
    )
    figures.add(f"engine, {NAME}: size of a version", reports[-1].num_bytes / 1e9, "GB")


def test_another_version_has_other_log_probabilities_and_the_same_one_the_same(rig: engine_rig.Rig) -> None:
    """Graphs hold addresses, not values: what was loaded after they were captured is what they compute with."""

    async def greedy() -> tuple[float, ...]:
        request = rig.request(prompts(1)[0], types.Sampling(greedy=True, max_tokens=8, ignore_eos=True))
        return (await rig.gate.generate(request)).logprobs

    async def under(version: int) -> tuple[float, ...]:
        if rig.receiver.served.version != version:
            assert (await rig.follow(version)).failure == ""
        return await greedy()

    last = rig.loop.run_until_complete(under(UPDATES))
    again = rig.loop.run_until_complete(greedy())
    assert again == pytest.approx(last, abs=0.05)
    rig.store.publish(UPDATES + 1, pathlib.Path(rig.engine._settings.model), rig.stager.layout)
    first = rig.loop.run_until_complete(under(UPDATES + 1))
    assert first != pytest.approx(last, abs=0.05)


def test_it_is_as_fast_as_the_engine_without_us(
    rig: engine_rig.Rig, folders: list[pathlib.Path], tmp_path: pathlib.Path, figures: gpu.Figures
) -> None:
    """Last: it ends the engine, since two of them do not fit one GPU side by side as each would alone."""
    texts = prompts(64)

    async def rate() -> float:
        async def slot(index: int) -> None:
            number = index
            while True:
                await rig.gate.generate(rig.request(texts[number % len(texts)], sampling()))
                number += CONCURRENT

        slots = [asyncio.ensure_future(slot(index)) for index in range(CONCURRENT)]
        await asyncio.sleep(WINDOW_S / 2)
        began, before = time.monotonic(), rig.engine.num_generated()
        await asyncio.sleep(WINDOW_S)
        made = (rig.engine.num_generated() - before) / (time.monotonic() - began)
        for one in slots:
            one.cancel()
        await asyncio.gather(*slots, return_exceptions=True)
        return made

    ours = rig.loop.run_until_complete(rate())
    rig.loop.run_until_complete(rig.engine.close_engine())
    script = pathlib.Path(__file__).with_name("bare_engine.py")
    words = [str(folders[0]), str(CONCURRENT), str(ANSWER), str(WINDOW_S), str(tmp_path / "rate")]
    subprocess.run([sys.executable, str(script), *words], check=True, cwd=tmp_path)
    bare = float((tmp_path / "rate").read_text())
    figures.add(f"engine, {NAME}, {CONCURRENT} at once: in a rollout", ours, "tok/s")
    figures.add(f"engine, {NAME}, {CONCURRENT} at once: bare vLLM", bare, "tok/s")
    figures.add("engine: share of bare vLLM", ours / bare, "share", least=0.98)
