"""The worked example of docs/user_code.md runs as it is written there."""

import re

import pytest

from rljob_api import types
from rljob_testing import episodes, examples
from rljob_testing import rollout as fakes
from rljob_workers.rollout.episodes import protocols, registry

ROOT = examples.ROOT
FILE = ROOT / "crds" / "examples" / "guess_number.py"
TASK = protocols.Task(
    record=types.PromptRecord(prompt_id="p", source="s", columns={"prompt": "", "answer": "7"}),
    input_ids=(1,),
    prompt_text="",
)


def digit(number: int) -> tuple[int, ...]:
    return (ord(str(number)), episodes.EOS)


@pytest.mark.parametrize(
    ("guesses", "reward", "turns"), [([7], 1.0, 1), ([3, 9, 7], 1.0, 3), ([1, 2, 3], 0.0, 3)], ids=str
)
async def test_the_example_rewards_a_right_guess_within_its_tries(
    guesses: list[int], reward: float, turns: int
) -> None:
    collector = registry.make_collector(
        workflow="guess_number:GuessNumber",
        config={"tries": 3},
        tokens=fakes.FakeTokens(),
        template="raw",
        max_model_len=512,
        code=str(FILE),
    )
    episode = await collector.arun_episode(
        llm_client=episodes.FakeModel(*map(digit, guesses)),
        gconfig=types.Sampling(max_tokens=8),
        task=TASK,
        grader=episodes.FakeGrader(),
        seed=1,
    )
    assert episode is not None
    assert (episode.total_reward, episode.num_turns) == (reward, turns)


def test_the_page_names_the_file_and_class_that_exist() -> None:
    page = (ROOT / "docs" / "user_code.md").read_text()
    example = page.split("```")[1]
    (path,) = re.findall(r"path: (\S+)", example)
    (reference,) = re.findall(r"type: (\S+)", example)
    assert (FILE.parent / path).is_file()
    assert f"class {reference.split(':')[1]}:" in FILE.read_text()
