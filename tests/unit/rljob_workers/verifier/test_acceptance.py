"""Every example of docs/design/graders.md through the service: any order, any batch size, the verdict of its mode."""

import contextlib
import itertools
import random
from collections.abc import Callable

import pytest

from rljob_api import process_config, types
from rljob_testing import grader_rows
from rljob_workers.verifier import service

# Rewards that can grade one another's records share a verifier.
FAMILIES = {
    "areal-math": "areal-math",
    "areal-code": "areal-code",
    "boxed": "oat",
    "answer_tag": "oat",
}
CASES = list(grader_rows.cases())


def family(case: grader_rows.Case) -> str:
    return FAMILIES.get(case.reward.type) or f"{case.reward.type} {sorted(map(str, case.reward.config.values()))}"


Example = tuple[str, str]


def by_example(name: str) -> dict[Example, list[grader_rows.Case]]:
    """Return the cases of a family by what is graded: one item is graded in all modes at once."""
    found: dict[Example, list[grader_rows.Case]] = {}
    for case in CASES:
        # An endless program is decided by its CPU limit, which a busy machine may not let it reach.
        if family(case) == name and "while True" not in case.completion:
            found.setdefault((case.completion, str(case.columns)), []).append(case)
    return found


@pytest.mark.covers("graders 11")
@pytest.mark.parametrize("name", sorted({family(case) for case in CASES}))
async def test_example_has_its_verdicts_in_any_order_and_batch_size(
    name: str,
    make_config: Callable[..., process_config.VerifierConfig],
    running: Callable[..., contextlib.AbstractAsyncContextManager[service.Service]],
) -> None:
    examples = list(by_example(name).values())
    rewards = list({case.reward.name: case.reward for cases in examples for case in cases}.values())
    config = make_config(*rewards, cpu_limit_s=20.0, wall_limit_s=200.0, num_slots=1)
    chance = random.Random(7)
    async with running(config) as verifier:
        for batch_size in (1, 5, len(examples)):
            order = chance.sample(range(len(examples)), len(examples))
            items = [item(examples[index][0], f"{batch_size}-{index}") for index in order]
            batches = [items[start : start + batch_size] for start in range(0, len(items), batch_size)]
            verdicts = [verdict for batch in batches for verdict in await verifier.grading.verify(batch)]
            for index, verdict in zip(order, verdicts, strict=True):
                expected = {case.reward.name: case.score for case in examples[index]}
                assert {reward: verdict.parts.get(reward) for reward in expected} == expected, examples[index][0]


def item(case: grader_rows.Case, name: str) -> types.VerifyItem:
    return types.VerifyItem(sample_id=name, attempt=0, prompt="", completion=case.completion, columns=case.columns)


def test_every_grader_of_the_reference_has_examples_in_both_modes() -> None:
    seen = {(case.reward.type, case.reward.mode) for case in CASES}
    assert seen == set(itertools.product((*FAMILIES, "clevr_count_70k", "gsm8k"), ("Compat", "Strict")))
