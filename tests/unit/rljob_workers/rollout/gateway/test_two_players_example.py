"""The two players of crds/examples, played over a real loopback server; the model is a fake."""

import json

import pytest
import yaml

from rljob_api import types
from rljob_testing import episodes, examples
from rljob_testing import rollout as fakes
from rljob_workers.rollout.episodes import protocols, registry
from rljob_workers.rollout.gateway import collector as gateway

WORKFLOW = yaml.safe_load((examples.EXAMPLES / "two-players-cpu.yaml").read_text(encoding="utf-8"))["spec"]["workflow"]
GAME = examples.generator("two_players")
DATA = examples.generator("make_two_players_data")
TASK = protocols.Task(
    record=types.PromptRecord(prompt_id="p", source="s", columns={"prompt": "57", "answer": "57"}),
    input_ids=(1,),
    prompt_text="57",
)


def said(text: str) -> tuple[int, ...]:
    return (*map(ord, text), episodes.EOS)


async def played(*answers: str) -> tuple[protocols.Episode, episodes.FakeModel]:
    collector = registry.make_collector(
        workflow=WORKFLOW["type"],
        config=WORKFLOW["config"],
        tokens=fakes.FakeTokens(),
        template="raw",
        max_model_len=1024,
        code=str(examples.EXAMPLES / WORKFLOW["code"]["path"]),
    )
    assert isinstance(collector, gateway.ProxyCollector)
    model = episodes.FakeModel(*map(said, answers))
    try:
        episode = await collector.arun_episode(
            llm_client=model,
            gconfig=types.Sampling(max_tokens=8, stop=("\n",)),
            task=TASK,
            grader=episodes.FakeGrader(),
            seed=1,
        )
    finally:
        await collector.close()
    assert episode is not None
    return episode, model


@pytest.mark.parametrize(
    ("answers", "rewards"),
    [
        (("50 + 7\n", "57\n"), [1.0, 1.0]),
        # A right hint that was not understood.
        (("50 + 7\n", "58\n"), [0.75, 0.0]),
        # A wrong hint: its player earns what the form is worth, the other one does what it was asked.
        (("40 + 7\n", "47\n"), [0.5, 1.0]),
        # Two errors that make a right number.
        (("40 + 7\n", "57\n"), [0.75, 0.0]),
        (("a hint\n",), [0.0]),
        (("57\n",), [0.0]),
    ],
    ids=str,
)
async def test_each_player_has_the_reward_of_its_own_part(answers: tuple[str, ...], rewards: list[float]) -> None:
    episode, model = await played(*answers)
    assert [row.reward for row in episode.rows] == rewards
    assert len(model.requests) == len(rewards)


async def test_the_one_who_guesses_hears_the_hint_alone() -> None:
    _, model = await played("31 + 26\n", "57\n")
    # The fake tokenizer begins a text with "^".
    hint, guess = ("".join(map(chr, request.input_ids)).removeprefix("^") for request in model.requests)
    assert hint == f"{GAME.HINTS}57 = "
    assert guess == f"{GAME.SUMS}31 + 26 = "


@pytest.mark.parametrize("hint", ["0 + 57", "57 + 0", "100 + 7", "5 + 7 + 45", "50+7", "50 + 7.", "50 - 7", ""])
def test_a_hint_is_two_numbers_from_1_to_99_and_nothing_else(hint: str) -> None:
    assert GAME.numbers_of(hint) is None


def test_committed_data_are_what_the_generator_makes_and_no_held_out_number_is_trained_on() -> None:
    train, held_out = DATA.split()
    for name, numbers in (("train", train), ("held-out", held_out)):
        committed = (examples.EXAMPLES / "data" / f"two-players-{name}.jsonl").read_text()
        assert committed == DATA.lines(numbers), "run `python crds/examples/make_two_players_data.py` and commit"
        assert all(json.loads(line)["answer"].isdigit() for line in committed.splitlines())
    assert not set(train) & set(held_out)
