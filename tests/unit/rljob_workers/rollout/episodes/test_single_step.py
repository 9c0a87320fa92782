import pytest

from rljob_api import errors, types
from rljob_testing import episodes
from rljob_testing import rollout as fakes
from rljob_workers.rollout.episodes import protocols, registry, single_step

RECORD = types.PromptRecord(
    prompt_id="q@7", source="s", columns={"prompt": "2+2", "answer": "SECRET", "task": "stem", "query_id": "q@7"}
)
TASK = protocols.Task(record=RECORD, input_ids=(50, 43, 50), prompt_text="2+2")
OPTIONS: dict[str, object] = {"input_ids": [5, 6], "query_id": "q@7", "prompt": "2+2", "task": "stem"}


async def run(
    model: episodes.FakeModel,
    grader: episodes.FakeGrader,
    config: dict[str, object] | None = None,
    *,
    max_model_len: int = 64,
) -> protocols.Episode | None:
    collector = registry.make_collector(
        workflow="math_code_single_step", config=config or {}, tokens=fakes.FakeTokens(), template="raw",
        max_model_len=max_model_len,
    )  # fmt: skip
    return await collector.arun_episode(
        llm_client=model, gconfig=types.Sampling(max_tokens=8), task=TASK, grader=grader, seed=7
    )


@pytest.mark.covers("workflows 4")
async def test_an_episode_is_one_generation_one_verdict_and_one_row() -> None:
    model, grader = episodes.FakeModel((65, 66, episodes.EOS)), episodes.FakeGrader(0.5)
    episode = await run(model, grader)
    assert episode is not None
    (row,) = episode.rows
    assert list(row.tokens) == [50, 43, 50, 65, 66, episodes.EOS]
    assert list(row.loss_mask) == [0, 0, 0, 1, 1, 1]
    assert list(row.turn_ids) == [-1, -1, -1, 0, 0, 0]
    assert (row.reward, row.raw_reward, episode.total_reward, episode.num_turns) == (0.5, 0.5, 0.5, 1)
    assert row.verdict.reward == 0.5
    assert grader.seen == [("2+2", "AB", False)]


async def test_an_answer_cut_by_length_is_graded_as_it_stands_and_truncated() -> None:
    grader = episodes.FakeGrader(0.0)
    episode = await run(episodes.FakeModel((65, 66, 67)), grader, max_model_len=5)
    assert episode is not None
    assert episode.rows[0].truncated is True
    assert grader.seen == [("2+2", "AB", True)]


async def test_without_a_verdict_the_attempt_fails_and_never_scores_0() -> None:
    with pytest.raises(errors.SandboxError, match="no verdict"):
        await run(episodes.FakeModel((65, episodes.EOS)), episodes.FakeGrader(None))


async def test_a_prompt_without_room_for_an_answer_is_an_error_of_the_caller() -> None:
    with pytest.raises(errors.EpisodeError, match="a prompt of 3 tokens leaves no room in a context of 3"):
        await run(episodes.FakeModel((65, episodes.EOS)), episodes.FakeGrader(1.0), max_model_len=3)


@pytest.mark.covers("workflows 4")
async def test_a_step_ends_the_episode_and_says_task_id_and_verdict() -> None:
    grader = episodes.FakeGrader(1.0)
    environment = single_step.MathCodeEnvironment(grader=grader)
    question, _ = await environment.reset(options=OPTIONS)
    assert question == single_step.Question(query_id="q@7", prompt_ids=(5, 6))
    obs, reward, terminated, truncated, info = await environment.step(single_step.Answer(query_id="q@7@3", text="four"))
    assert (obs, reward, terminated, truncated) == (None, 1.0, True, False)
    assert (info["task"], info["query_id"]) == ("stem", "q")
    assert isinstance(info["verdict"], types.Verdict)


@pytest.mark.parametrize(("tests", "task"), [({}, "math"), ({"input_output": "{}"}, "code")])
async def test_a_record_without_a_task_is_told_as_what_grading_takes_it_for(
    tests: dict[str, object], task: str
) -> None:
    environment = single_step.MathCodeEnvironment(grader=episodes.FakeGrader(1.0))
    await environment.reset(options={key: value for key, value in OPTIONS.items() if key != "task"} | tests)
    *_, info = await environment.step(single_step.Answer(query_id="q", text="four"))
    assert info["task"] == task


@pytest.mark.covers("workflows 2")
@pytest.mark.parametrize("key", ["input_ids", "query_id", "prompt"])
async def test_a_missing_option_is_named(key: str) -> None:
    given = {name: value for name, value in OPTIONS.items() if name != key}
    with pytest.raises(errors.EpisodeError, match=f"have no '{key}'"):
        await single_step.MathCodeEnvironment(grader=episodes.FakeGrader()).reset(options=given)


@pytest.mark.covers("workflows 4")
@pytest.mark.parametrize(("success", "shaped"), [(0.5, -0.2), (0.7, 0.6)])
async def test_signed_shaping_maps_success_and_keeps_the_raw_reward(success: float, shaped: float) -> None:
    config: dict[str, object] = {"shaping": "signed", "rewardBias": 0.1, "rewardScale": 2.0}
    episode = await run(episodes.FakeModel((65, episodes.EOS)), episodes.FakeGrader(success), config)
    assert episode is not None
    (row,) = episode.rows
    assert row.reward == pytest.approx(shaped)
    assert row.raw_reward == success


@pytest.mark.covers("workflows 4")
async def test_a_scale_without_signed_shaping_is_refused() -> None:
    with pytest.raises(errors.ManifestError, match="rewardScale and rewardBias belong to shaping: signed"):
        await run(episodes.FakeModel(), episodes.FakeGrader(), {"rewardScale": 2.0})


@pytest.mark.covers("workflows 4")
async def test_a_list_of_answers_gives_a_list_of_rewards_in_its_order() -> None:
    environment = single_step.MathCodeEnvironment(grader=episodes.FakeGrader(1.0, 0.0))
    await environment.reset(options=OPTIONS)
    answers = [single_step.Answer(query_id=f"q@{index}", text=text) for index, text in enumerate(("four", "five"))]
    _, rewards, terminated, _, info = await environment.step(answers)
    assert (rewards, terminated, info["query_id"]) == ([1.0, 0.0], True, ["q", "q"])
    verdicts = info["verdict"]
    assert isinstance(verdicts, list)
    assert [verdict.reward for verdict in verdicts] == [1.0, 0.0]


@pytest.mark.covers("workflows 4")
@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"successRateLowerBound": 0.1}, "success rate bounds belong to shaping: signed"),
        (
            {"shaping": "signed", "successRateLowerBound": 0.6, "successRateUpperBound": 0.5},
            "successRateLowerBound 0.6 is above successRateUpperBound 0.5",
        ),
        ({"shaping": "signed", "successRateUpperBound": 1.5}, "successRateUpperBound"),
    ],
)
async def test_bounds_that_mean_nothing_are_refused(config: dict[str, object], said: str) -> None:
    with pytest.raises(errors.ManifestError, match=said):
        await run(episodes.FakeModel(), episodes.FakeGrader(), config)
