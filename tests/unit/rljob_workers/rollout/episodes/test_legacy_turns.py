import pytest

from rljob_api import errors, types
from rljob_testing import episodes
from rljob_testing import rollout as fakes
from rljob_workers.rollout.episodes import arrays, legacy_turns, protocols, registry

EOS = episodes.EOS
RECORD = types.PromptRecord(prompt_id="p", source="s", columns={"prompt": "2+2", "answer": "4"})
TASK = protocols.Task(record=RECORD, input_ids=(50, 43, 50), prompt_text="2+2")
A, B, C = (65, EOS), (66, EOS), (67, EOS)
OPTIONS: dict[str, object] = {"layout": "legacy", "retryText": "no", "successText": "yes", "numTurns": 3}


async def run(
    model: episodes.FakeModel,
    grader: episodes.FakeGrader,
    config: dict[str, object] | None = None,
    *,
    max_model_len: int = 256,
) -> protocols.Episode:
    collector = registry.make_collector(
        workflow="multi_turn_math", config={**OPTIONS, **(config or {})}, tokens=fakes.FakeTokens(), template="raw",
        max_model_len=max_model_len,
    )  # fmt: skip
    episode = await collector.arun_episode(
        llm_client=model, gconfig=types.Sampling(max_tokens=8), task=TASK, grader=grader, seed=7
    )
    assert episode is not None
    return episode


def ids(text: str) -> tuple[int, ...]:
    return tuple(map(ord, text))


@pytest.mark.covers("workflows 5.2")
async def test_every_turn_is_generated_after_success_too_and_is_a_row_of_its_own() -> None:
    episode = await run(episodes.FakeModel(A, B, C, first_version=3), episodes.FakeGrader(1.0, 0.0, 1.0))
    first, second, third = episode.rows
    assert tuple(first.tokens) == (*TASK.input_ids, *A)
    assert tuple(second.tokens) == (*first.tokens, *ids("[yes]"), *B)
    assert tuple(third.tokens) == (*second.tokens, *ids("[no]"), *C)
    assert episode.num_turns == 3


@pytest.mark.covers("workflows 5.2")
async def test_each_row_trains_its_newest_answer_alone_so_no_token_is_trained_twice() -> None:
    episode = await run(episodes.FakeModel(A, B, C, first_version=3), episodes.FakeGrader(0.0, 0.0, 0.0))
    assert [row.num_sampled for row in episode.rows] == [2, 2, 2]
    assert [list(row.loss_mask)[-2:] for row in episode.rows] == [[1, 1]] * 3
    assert [set(row.versions) for row in episode.rows] == [{-1, 3}, {-1, 4}, {-1, 5}]
    assert [set(row.turn_ids) for row in episode.rows] == [{-1, 0}, {-1, 1}, {-1, 2}]


@pytest.mark.covers("workflows 5.2", "workflows 5.5")
@pytest.mark.parametrize(
    ("raw", "config", "expected"),
    [
        # The published run: scale 5, no bias, no discount.
        ((0.0, 0.0, 1.0), {"rewardScale": 5}, [-5.0, 0.0, 5.0]),
        ((1.0, 1.0, 1.0), {}, [3.0, 2.0, 1.0]),
        ((0.0, 0.0, 1.0), {}, [-1.0, 0.0, 1.0]),
        ((1.0, 0.0, 1.0), {"turnDiscount": 0.5, "rewardBias": 0.5}, [-0.125, -1.25, 0.5]),
    ],
)
async def test_rewards_are_shaped_and_run_back_from_the_last_turn(
    raw: tuple[float, ...], config: dict[str, object], expected: list[float]
) -> None:
    episode = await run(episodes.FakeModel(A, B, C), episodes.FakeGrader(*raw), config)
    assert [row.reward for row in episode.rows] == pytest.approx(expected)
    assert [row.raw_reward for row in episode.rows] == list(raw)


@pytest.mark.covers("workflows 5.2")
async def test_a_cut_answer_is_closed_with_eos_unless_the_original_feedback_is_asked_for() -> None:
    model = episodes.FakeModel((65, 66, 67), B, C)
    await run(model, episodes.FakeGrader(0.0, 0.0, 0.0), {"maxNewTokensPerTurn": 2})
    assert model.requests[1].input_ids == (*TASK.input_ids, 65, 66, EOS, *ids("[no]"))
    model = episodes.FakeModel((65, 66, 67), B, C)
    await run(model, episodes.FakeGrader(0.0, 0.0, 0.0), {"maxNewTokensPerTurn": 2, "legacyFeedback": True})
    assert model.requests[1].input_ids == (*TASK.input_ids, 65, 66, *ids("\n<no>"))


async def test_without_context_for_a_further_turn_the_last_row_is_truncated() -> None:
    episode = await run(episodes.FakeModel(A, B, C), episodes.FakeGrader(0.0, 0.0, 0.0), max_model_len=13)
    assert [row.truncated for row in episode.rows] == [False, True]


@pytest.mark.covers("workflows 5.4")
def test_the_defaults_are_the_published_ones() -> None:
    defaults = legacy_turns.LegacyConfig()
    assert (defaults.num_turns, defaults.turn_discount) == (5, 1.0)
    assert defaults.retry_text == "Unfortunately your answer is wrong. Let's try again."
    assert defaults.success_text == "Congratulations! You are correct!"


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"turnDiscount": float("inf")}, "spec.workflow.config.turnDiscount is inf: "),
        ({"stopOnSuccess": False}, "spec.workflow.config.stopOnSuccess does not belong to workflow"),
        ({"layout": "concat", "rewardScale": 5}, "spec.workflow.config.rewardScale does not belong to workflow"),
    ],
)
async def test_an_option_of_the_other_layout_is_refused(config: dict[str, object], said: str) -> None:
    with pytest.raises(errors.ManifestError) as refused:
        await run(episodes.FakeModel(A), episodes.FakeGrader(1.0), config)
    assert str(refused.value).startswith(said)


@pytest.mark.covers("workflows 5.2")
async def test_a_legacy_sample_is_packed_turn_after_turn() -> None:
    model = episodes.FakeModel(A, (66, 67), first_version=3)
    episode = await run(model, episodes.FakeGrader(0.0, 1.0), {"numTurns": 2, "maxNewTokensPerTurn": 2})
    found = arrays.packed(episode.rows, birth_time_ms=1234)
    context = (*TASK.input_ids, *A, *ids("[no]"))
    assert found["packed_input_ids"] == [*TASK.input_ids, *A, *context, 66, 67]
    assert found["prompt_mask"] == [True] * 3 + [False] * 2 + [True] * 9 + [False] * 2
    assert found["packed_logprobs"] == [0.0, 0.0, -0.5, -0.5] + [0.0] * 8 + [-0.5, -0.5]
    assert (found["seq_no_eos_mask"], found["rewards"]) == ([False, True], [0.0, 1.0])
    assert (found["version_start"], found["version_end"]) == ([3, 4], [3, 4])
    assert (found["packed_prompts"], found["birth_time"]) == (list(TASK.input_ids), [1234])


@pytest.mark.covers("workflows 1.3")
async def test_rows_are_padded_on_the_right_and_keep_their_masks() -> None:
    episode = await run(episodes.FakeModel(A, B, first_version=3), episodes.FakeGrader(0.0, 1.0), {"numTurns": 2})
    found = arrays.padded(episode.rows)
    assert found["input_ids"][0] == [*TASK.input_ids, *A, *[0] * 6]
    assert found["attention_mask"] == [[True] * 5 + [False] * 6, [True] * 11]
    assert found["loss_mask"] == [[False] * 3 + [True] * 2 + [False] * 6, [False] * 9 + [True] * 2]
    assert found["prompt_mask"] == [[True] * 3 + [False] * 8, [True] * 9 + [False] * 2]
    assert found["versions"] == [[-1] * 3 + [3] * 2 + [-1] * 6, [-1] * 9 + [4] * 2]
    assert (found["rewards"], found["raw_rewards"]) == ([0.0, 1.0], [0.0, 1.0])
    assert found["truncated"] == found["seq_no_eos_mask"] == [False, False]
