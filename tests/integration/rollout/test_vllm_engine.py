"""Real vLLM on CPU with a tiny random model: log-probabilities, versions, updates in flight, failures in the middle."""

import asyncio
import dataclasses
import math
import pathlib

import pytest

from rljob_api import errors, types
from rljob_api.enums import ReceiverState
from rljob_testing import engine_rig
from rljob_workers.rollout import generation
from rljob_workers.rollout.sync import receiver

PROMPT = tuple(range(40, 80))
GREEDY = types.Sampling(greedy=True, max_tokens=6, ignore_eos=True)


def reference_logprobs(folder: pathlib.Path, prompt: tuple[int, ...], output: tuple[int, ...], t: float) -> list[float]:
    """Return log softmax(logits / t) of each output token, by transformers in float32."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        logits = model(torch.tensor([[*prompt, *output]])).logits[0]
    rows = torch.log_softmax(logits[len(prompt) - 1 : -1] / t, dim=-1)
    return [float(rows[index, token]) for index, token in enumerate(output)]


def generate(rig, sampling: types.Sampling, seed: int = 1, prompt=PROMPT) -> generation.GenerationResult:
    return rig.loop.run_until_complete(rig.gate.generate(rig.request(prompt, sampling, seed)))


def take(rig, version: int) -> types.WeightSync:
    return rig.loop.run_until_complete(rig.follow(version))


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_logprobs_are_those_of_the_distribution_at_the_sampling_temperature(rig, folders, temperature) -> None:
    take_if_needed(rig, 0)
    result = generate(rig, types.Sampling(temperature=temperature, max_tokens=16, ignore_eos=True))
    engine_rig.assert_near(result.logprobs, reference_logprobs(folders[0], PROMPT, result.output_ids, temperature))
    assert set(result.versions) == {0}


def take_if_needed(rig, version: int) -> None:
    if rig.receiver.served.version != version:
        assert take(rig, version).failure == ""


def test_equal_seeds_give_equal_tokens_and_others_differ(rig) -> None:
    sampling = types.Sampling(max_tokens=12, ignore_eos=True)
    first, same, other = generate(rig, sampling, 5), generate(rig, sampling, 5), generate(rig, sampling, 6)
    assert first.output_ids == same.output_ids
    assert first.output_ids != other.output_ids


@pytest.mark.covers("workflows 1.2")
def test_an_answer_tells_when_each_of_its_tokens_came(rig) -> None:
    result = generate(rig, types.Sampling(max_tokens=12, ignore_eos=True))
    assert len(result.itl_s) == 11
    assert min(result.itl_s) > 0.0, "without speculation each step samples one token"
    assert sum(result.itl_s) <= result.latency_s


def test_stop_reasons_and_stop_strings(rig) -> None:
    cut = generate(rig, types.Sampling(max_tokens=3, ignore_eos=True))
    assert (cut.stop_reason, len(cut.output_ids)) == ("length", 3)
    first = generate(rig, GREEDY).output_ids[0]
    stopped = generate(rig, dataclasses.replace(GREEDY, stop_token_ids=(first,)))
    assert (stopped.stop_reason, stopped.output_ids) == ("stop", (first,))


@pytest.mark.parametrize("version", [1, 2, 3])
def test_after_an_update_every_layer_is_the_new_one(rig, folders, version) -> None:
    """The tied head too: on CPU vLLM keeps a packed copy of it that a reload alone would leave old."""
    assert take(rig, version).failure == ""
    result = generate(rig, types.Sampling(max_tokens=16, ignore_eos=True))
    engine_rig.assert_near(result.logprobs, reference_logprobs(folders[version], PROMPT, result.output_ids, 1.0))
    assert set(result.versions) == {version}
    assert rig.receiver.served == receiver.Served(version=types.VersionId(version), step=version)


@pytest.mark.covers("weights 8", "weights 14")
def test_changes_on_top_of_a_version_give_the_engine_what_the_whole_image_gives_it(rig) -> None:
    take_if_needed(rig, 1)
    data = bytearray(rig.store.images[1])
    # The highest bit of the fraction of every 20th element.
    for place in range(0, len(data), 40):
        data[place] ^= 0x40
    rig.store.publish_image(21, data, rig.stager.layout, base=1)
    rig.store.publish_image(22, data, rig.stager.layout)
    before, sync = generate(rig, GREEDY), take(rig, 21)
    assert (sync.failure, sync.num_bytes) == ("", sync.delta_bytes)
    by_changes = generate(rig, GREEDY)
    take_if_needed(rig, 1)
    assert take(rig, 22).delta_bytes == 0
    by_image = generate(rig, GREEDY)
    assert (by_changes.output_ids, by_changes.logprobs) == (by_image.output_ids, by_image.logprobs)
    assert by_changes.logprobs != before.logprobs


def test_an_update_in_flight_gives_rows_of_two_versions_whose_spans_cover_all_tokens(rig) -> None:
    take_if_needed(rig, 1)

    async def story() -> tuple[list[generation.GenerationResult], types.WeightSync]:
        sampling = types.Sampling(max_tokens=150, ignore_eos=True)
        running = [asyncio.ensure_future(rig.gate.generate(rig.request(PROMPT, sampling, seed))) for seed in range(16)]
        already = rig.engine.num_generated()
        while rig.engine.num_generated() < already + 200:
            await asyncio.sleep(0.01)
        sync = await rig.follow(2)
        return list(await asyncio.gather(*running)), sync

    results, sync = rig.loop.run_until_complete(story())
    assert (sync.failure, sync.requests_in_flight, sync.num_bytes) == ("", 16, rig.stager.layout.image_bytes)
    assert 0.0 < sync.apply_s <= sync.pause_s <= sync.total_s
    for result in results:
        assert len(result.versions) == len(result.output_ids) == 150
        assert sorted(set(result.versions)) == [1, 2]
        assert list(result.versions) == sorted(result.versions)


def test_a_new_request_finds_no_prefix_of_the_old_weights(rig, folders) -> None:
    take_if_needed(rig, 1)
    prompt = tuple(range(30, 130))
    generate(rig, GREEDY, prompt=prompt)
    take_if_needed(rig, 3)
    result = generate(rig, dataclasses.replace(GREEDY, max_tokens=8), prompt=prompt)
    engine_rig.assert_near(result.logprobs, reference_logprobs(folders[3], prompt, result.output_ids, 1.0))


def test_all_that_earlier_requests_began_with_is_found_in_the_cache(rig) -> None:
    """Blocks of 16 or 32: a prompt of 100 tokens for 8 answers at once, then each answer goes on twice, as a fork."""
    take_if_needed(rig, 1)
    sampling = types.Sampling(max_tokens=40, ignore_eos=True)

    async def asked(prompts: list[tuple[int, ...]]) -> list[generation.GenerationResult]:
        requests = [rig.request(prompt, sampling, seed) for seed, prompt in enumerate(prompts)]
        return list(await asyncio.gather(*(rig.gate.generate(request) for request in requests)))

    prompt = tuple(range(31, 131))
    answers = rig.loop.run_until_complete(asked([prompt] * 8))
    assert sum(answer.repeated_tokens for answer in answers) == 7 * 96
    assert sum(answer.cached_tokens for answer in answers) == 7 * 96
    forks = [(*prompt, *answer.output_ids, *more) for answer in answers for more in [(5,) * 30, (6,) * 40]]
    turns = rig.loop.run_until_complete(asked(forks))
    # Of 140 tokens the last was sampled and never computed.
    assert [turn.repeated_tokens for turn in turns] == [128] * 16
    assert [turn.cached_tokens for turn in turns] == [128] * 16


def test_damaged_bytes_are_refused_before_the_pause_and_the_old_version_goes_on(rig) -> None:
    take_if_needed(rig, 1)
    store = rig.store
    data = bytearray(store.images[2])
    data[100] ^= 0x40
    artifact = dataclasses.replace(store.manifests[2].artifacts[0], artifact_id="9")
    store.images[9] = bytes(data)
    store.manifests[9] = dataclasses.replace(
        store.manifests[2], version=types.VersionId(9), step=9, artifacts=(artifact,)
    )
    sync = take(rig, 9)
    assert sync.failure.startswith("digest: DigestError: tensor model.embed_tokens.weight")
    assert sync.pause_s == 0.0
    assert (rig.receiver.state, set(generate(rig, GREEDY).versions)) == (ReceiverState.SERVING, {1})


class BrokenLoad:
    """Hands the engine a layout with one impossible tensor, once; later calls are the engine's own."""

    def __init__(self, inner, cut: int) -> None:
        self._inner, self._cut, self.calls = inner, cut, []

    def __getattr__(self, name):
        return getattr(self._inner, name)

    async def load(self, layout: types.Layout) -> None:
        self.calls.append("load")
        if len(self.calls) == 1:
            tensors = list(layout.tensors)
            wrong = dataclasses.replace(tensors[self._cut], shape=(3, *tensors[self._cut].shape[1:], 5))
            tensors[self._cut] = wrong
            layout = dataclasses.replace(layout, tensors=tuple(tensors))
        await self._inner.load(layout)

    async def repair(self) -> None:
        self.calls.append("repair")
        await self._inner.repair()


@pytest.mark.parametrize("cut", [0, 3, 6, 9, 13, 17, 18, 19])
def test_a_loader_that_raises_midway_is_recovered_forward_with_exact_results(rig, folders, cut) -> None:
    take_if_needed(rig, 1)
    broken = BrokenLoad(rig.engine, min(cut, len(rig.stager.layout.tensors) - 1))
    rig.receiver._engine = broken  # the receiver's own collaborator, made to fail once
    try:
        sync = take(rig, 2)
    finally:
        rig.receiver._engine = rig.engine
    assert (sync.failure, broken.calls) == ("", ["load", "repair", "load"])
    assert rig.receiver.syncs[-2].failure.startswith("apply: EngineError"), "what broke is told although it was mended"
    assert rig.receiver.state is ReceiverState.SERVING
    result = generate(rig, types.Sampling(max_tokens=8, ignore_eos=True))
    engine_rig.assert_near(result.logprobs, reference_logprobs(folders[2], PROMPT, result.output_ids, 1.0))
    assert set(result.versions) == {2}


@pytest.mark.covers("workflows 1.2")
def test_answers_that_a_broken_load_gave_up_go_on_from_their_tokens_with_exact_results(rig, folders) -> None:
    take_if_needed(rig, 1)
    rig.receiver._engine = BrokenLoad(rig.engine, 3)  # the receiver's own collaborator, made to fail once

    async def story() -> list[generation.GenerationResult]:
        sampling = types.Sampling(max_tokens=200, ignore_eos=True)
        running = [asyncio.ensure_future(rig.gate.generate(rig.request(PROMPT, sampling, seed))) for seed in range(16)]
        already = rig.engine.num_generated()
        while rig.engine.num_generated() < already + 50:
            await asyncio.sleep(0.01)
        assert (await rig.follow(2)).failure == ""
        return list(await asyncio.gather(*running))

    try:
        results = rig.loop.run_until_complete(story())
    finally:
        rig.receiver._engine = rig.engine
    for result in results:
        assert len(result.versions) == len(result.logprobs) == len(result.output_ids) == 200
        assert list(result.versions) == sorted(result.versions)
        assert result.stop_reason == "length"
    # The old cache went with the request: what follows is of the new weights alone.
    cut = next((result for result in results if len(set(result.versions)) == 2), None)
    assert cut is not None, "the load broke while answers were sampled"
    before = cut.versions.index(2)
    kept, sampled = cut.output_ids[:before], cut.output_ids[before:]
    engine_rig.assert_near(cut.logprobs[before:], reference_logprobs(folders[2], PROMPT + kept, sampled, 1.0))


def test_a_layout_that_lacks_a_tensor_is_refused_by_the_engine(rig) -> None:
    take_if_needed(rig, 1)

    async def partial() -> None:
        layout = rig.stager.layout
        await rig.engine.pause(clear_cache=False)
        await rig.engine.load(dataclasses.replace(layout, tensors=layout.tensors[:-1]))
        try:
            await rig.engine.verify()
        finally:
            await rig.engine.repair()
            await rig.engine.load(layout)
            await rig.engine.verify()
            await rig.engine.resume()

    with pytest.raises(errors.EngineError, match="received nothing"):
        rig.loop.run_until_complete(partial())
    assert len(generate(rig, GREEDY).output_ids) == 6


def test_a_cancelled_request_leaves_the_engine(rig) -> None:
    async def story() -> None:
        sampling = types.Sampling(max_tokens=200, ignore_eos=True)
        running = asyncio.ensure_future(rig.gate.generate(rig.request(PROMPT, sampling)))
        while not rig.engine.num_running():
            await asyncio.sleep(0.01)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert rig.engine.num_running() == 0

    rig.loop.run_until_complete(story())


def test_a_request_of_an_earlier_group_is_decoded_before_one_that_waits_longer(rig) -> None:
    ended: list[str] = []

    async def ask(name: str, max_tokens: int, priority: int) -> None:
        request = rig.request(PROMPT, types.Sampling(max_tokens=max_tokens, ignore_eos=True))
        await rig.gate.generate(dataclasses.replace(request, priority=priority))
        ended.append(name)

    async def story() -> None:
        # All 64 places are taken, and one of them is free again long before the others.
        await asyncio.gather(
            *(ask("long", 150, 1) for _ in range(63)), ask("short", 24, 1), ask("later", 24, 9), ask("earlier", 24, 2)
        )

    rig.loop.run_until_complete(story())
    assert ended[:3] == ["short", "earlier", "later"]


def test_all_logprobs_are_log_probabilities(rig) -> None:
    result = generate(rig, types.Sampling(max_tokens=64, ignore_eos=True, top_p=0.9))
    assert all(math.isfinite(value) and value <= 1e-4 for value in result.logprobs)
