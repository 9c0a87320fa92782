"""Hostile mathematics through the real pool: fast, worth nothing, without effect on anything that follows."""

import contextlib
import os
import pathlib
import time
from collections.abc import AsyncIterator, Callable

import pytest
import pytest_asyncio

from rljob_api import enums, process_config, types
from rljob_workers.verifier import grading, service

R = enums.VerdictReason
pytestmark = pytest.mark.asyncio(loop_scope="module")

HOSTILE = {
    "A-59 towers": ["10^{10^{10}}", "5^{5^{5^{5^5}}}", "9^{9^{9^{9}}}", "1/10^{-10^9}", "9**9**9**9"],
    "A-60 factorials": ["99999999!", "(10^8)!", "(((((9!)!)!)!)!)"],
    "A-61 sizes": ["(" * 500 + "1" + ")" * 500, "9" * 6000, "9" * 100_000, "1+" * 50_000 + "1"],
    "A-63 Python": [
        "__import__('os').system('touch owned')",
        "open('owned','w').write('x')",
        "exec(\"open('owned','w')\")",
        "f'{open(chr(111),chr(119))}'",
        "().__class__.__base__.__subclasses__()",
    ],
    "A-64 patterns": ["{" * (64 << 10), "$" * (64 << 10), "\\" * (64 << 10), "\\boxed{" * 9000, "\\frac" * 13_000],
}
CASES = [(name, text) for name, texts in HOSTILE.items() for text in texts]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def graded(
    make_config: Callable[..., process_config.VerifierConfig],
    running: Callable[..., contextlib.AbstractAsyncContextManager[service.Service]],
) -> AsyncIterator[grading.Grading]:
    config = make_config(process_config.GraderConfig(name="r", type="math"), cpu_limit_s=2.0, wall_limit_s=60.0)
    async with running(config) as verifier:
        yield verifier.grading


def ordinary(count: int, label: str) -> list[types.VerifyItem]:
    """Return items of which nearly every second needs a worker and every third is wrong."""
    return [
        types.VerifyItem(
            sample_id=f"{label}-{n}",
            attempt=0,
            prompt="",
            completion=rf"thus \boxed{{\sqrt{{{n}}}\sqrt{{{n}}}}}" if n % 2 else rf"thus \boxed{{{n}}}",
            columns={"answer": n if n % 3 else n + 1},
        )
        for n in range(count)
    ]


async def check_ordinary(graded: grading.Grading, label: str) -> float:
    started_s = time.monotonic()
    verdicts = await graded.verify(ordinary(100, label))
    assert [verdict.reward for verdict in verdicts] == [1.0 if n % 3 else 0.0 for n in range(100)]
    return time.monotonic() - started_s


@pytest.mark.covers("graders 11", "sandbox A-59", "sandbox A-60", "sandbox A-61")
@pytest.mark.parametrize("wrapped", [r"\boxed{%s}", "The answer is %s", "$%s$"], ids=["boxed", "marked", "dollars"])
@pytest.mark.parametrize(("name", "text"), CASES, ids=[f"{name} {text[:16]!r}" for name, text in CASES])
async def test_hostile_answer_is_worth_nothing_and_takes_no_time(
    graded: grading.Grading, make_item: Callable[..., types.VerifyItem], name: str, text: str, wrapped: str
) -> None:
    started_s = time.process_time()
    (verdict,) = await graded.verify([make_item(wrapped % text, sample_id=f"{name}{text[:20]}{wrapped}")])
    assert verdict.reward == 0.0
    assert verdict.reason in (R.PARSE_ERROR, R.NO_ANSWER, R.WRONG)
    assert verdict.cpu_s + time.process_time() - started_s < 0.5


@pytest.mark.covers("graders 3.1", "graders 11", "sandbox A-63", "security")
async def test_nothing_was_written_and_the_next_hundred_are_graded_at_normal_speed(graded: grading.Grading) -> None:
    await check_ordinary(graded, "warm")
    before_s = await check_ordinary(graded, "before")
    items = [
        types.VerifyItem(
            sample_id=f"h{n}", attempt=0, prompt="", completion=rf"\boxed{{{text}}}", columns={"answer": 5}
        )
        for n, (_, text) in enumerate(CASES * 3)
    ]
    assert {verdict.reward for verdict in await graded.verify(items)} == {0.0}
    # The best of some: what else the machine does is no one's slot.
    after_s = min([await check_ordinary(graded, f"after {number}") for number in range(3)])
    assert after_s < 3 * before_s + 1, "a slot was lost"
    for folder in (pathlib.Path("/"), pathlib.Path.cwd()):
        assert "owned" not in os.listdir(folder)


@pytest.mark.covers("graders 3.1", "sandbox A-65")
async def test_hostile_items_do_not_delay_the_honest_ones_among_them(graded: grading.Grading) -> None:
    honest = ordinary(64, "among")
    hostile = [
        types.VerifyItem(
            sample_id=f"m{n}", attempt=0, prompt="", completion=rf"\boxed{{{text}}}", columns={"answer": 5}
        )
        for n, (_, text) in enumerate(CASES)
    ]
    mixed = [item for pair in zip(honest, hostile, strict=False) for item in pair]
    verdicts = await graded.verify(mixed)
    assert [verdict.reward for verdict in verdicts[::2]] == [1.0 if n % 3 else 0.0 for n in range(len(hostile))]


@pytest.mark.covers("sandbox A-62", "security")
async def test_expression_that_passes_the_screen_and_is_hard_uses_up_its_own_limit_only(
    make_config: Callable[..., process_config.VerifierConfig],
    running: Callable[..., contextlib.AbstractAsyncContextManager[service.Service]],
) -> None:
    hard = r"\frac{(x+y+z)^{90}-(x+y)^{90}}{z+%d}"
    # `math` decides it by residues at once; mode compat simplifies as the original does.
    reward = process_config.GraderConfig(name="r", type="areal-math", mode="Compat")
    config = make_config(reward, cpu_limit_s=0.5, wall_limit_s=60.0, num_slots=1)
    async with running(config) as verifier:
        item = types.VerifyItem(
            sample_id="hard", attempt=0, prompt="", completion=rf"\boxed{{{hard % 2}}}", columns={"answer": hard % 1}
        )
        (verdict,) = await verifier.grading.verify([item])
        assert (verdict.reward, verdict.reason) == (0.0, R.TIMEOUT)
        assert verdict.outcome is enums.VerifyOutcome.TIMEOUT_CPU
        labels = {"rljob_namespace": config.job.namespace, "rljob": config.job.name}
        factor = verifier.metrics.registry.get_sample_value("rljob_verifier_calibration_ratio", labels)
        assert factor is not None
        # The limit is in seconds of the reference machine.
        assert verdict.cpu_s == pytest.approx(0.5 * factor, abs=0.3)
        await check_ordinary(verifier.grading, "after a timeout")
