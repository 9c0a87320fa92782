import dataclasses

import pytest

from rljob_api import errors, types
from rljob_testing.clock import FakeClock
from rljob_workers.rollout import generation
from rljob_workers.rollout.engines.fake import FakeEngine
from rljob_workers.rollout.sync import selftest

LAYOUT = types.Layout(layout_id="layout", tensors=(), image_bytes=0)


class ForgetfulEngine(FakeEngine):
    """Answers otherwise once weights were loaded, as one that packs them in its first load alone."""

    def __init__(self, *, clock: FakeClock, nats: float = 0.0, seed_too: bool = False) -> None:
        super().__init__(clock=clock)
        self._nats, self._seed_too, self._num_loads = nats, seed_too, 0

    async def load(self, layout: types.Layout) -> None:
        await super().load(layout)
        self._num_loads += 1

    async def generate(
        self, request: generation.GenerationRequest, *, version: types.VersionId
    ) -> generation.GenerationResult:
        seed = request.seed + (self._num_loads if self._seed_too else 0)
        result = await super().generate(dataclasses.replace(request, seed=seed), version=version)
        return dataclasses.replace(
            result, logprobs=tuple(one - self._nats * self._num_loads for one in result.logprobs)
        )


async def check(engine: FakeEngine, *, longest: int = 256) -> None:
    await selftest.check(
        engine, layout=LAYOUT, version=types.VersionId(0), prompt=range(3, 90), longest=longest,
        field="spec.model.name", name="someone/model",
    )  # fmt: skip


async def test_engine_that_answers_alike_after_an_update_passes_and_serves() -> None:
    engine = FakeEngine(clock=FakeClock())
    await check(engine)
    calls = [event.split()[0] for event in engine.events]
    assert calls == ["commit", "generate", "pause", "load", "verify", "commit", "resume", "generate"]
    assert "pause and clear" in engine.events, "the prompt is read again"


@pytest.mark.parametrize(("nats", "seed_too"), [(0.5, False), (0.0, True)])
async def test_engine_that_answers_otherwise_is_refused_by_name(nats: float, seed_too: bool) -> None:
    with pytest.raises(
        errors.ManifestError, match=r"spec\.model\.name is 'someone/model', but the engine cannot update"
    ):
        await check(ForgetfulEngine(clock=FakeClock(), nats=nats, seed_too=seed_too))


async def test_rounding_passes() -> None:
    await check(ForgetfulEngine(clock=FakeClock(), nats=0.05))


@pytest.mark.parametrize("longest", [2, 3, 16, 100_000])
async def test_request_fits_whatever_the_model_may_hold(longest: int) -> None:
    await check(FakeEngine(clock=FakeClock()), longest=longest)


def answer(*tokens: int, logprobs: tuple[float, ...] | None = None) -> generation.GenerationResult:
    return generation.GenerationResult(
        output_ids=tokens, logprobs=logprobs or (-1.0,) * len(tokens), versions=(0,) * len(tokens),
        stop_reason="length", latency_s=0.0, ttft_s=0.0,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("after", "difference", "is_rounding"),
    [
        (answer(1, 2, 3, 4), selftest.Difference(4, 4, 0.0), True),
        (answer(1, 2, 9, 9), selftest.Difference(2, 4, 0.0), True),
        (answer(1, 9, 9, 9), selftest.Difference(1, 4, 0.0), False),
        (answer(9, 9, 9, 9), selftest.Difference(0, 4, 0.0), False),
        (answer(1, 2, 3, 4, logprobs=(-1.0, -1.0, -1.5, -1.5)), selftest.Difference(4, 4, 0.25), False),
        (answer(1, 2), selftest.Difference(2, 4, 0.0), True),
    ],
)
def test_answers_are_compared_up_to_where_they_part(
    after: generation.GenerationResult, difference: selftest.Difference, is_rounding: bool
) -> None:
    seen = selftest.compare(answer(1, 2, 3, 4), after)
    assert (seen, seen.is_rounding) == (difference, is_rounding)
