import pytest

from rljob_api import errors, types
from rljob_testing import episodes
from rljob_testing import rollout as fakes
from rljob_workers.rollout.episodes import multi_turn, protocols, registry

EOS = episodes.EOS
RECORD = types.PromptRecord(prompt_id="p", source="s", columns={"prompt": "2+2", "answer": "SECRET"})
TASK = protocols.Task(record=RECORD, input_ids=(50, 43, 50), prompt_text="2+2")


async def run(
    model: episodes.FakeModel,
    grader: episodes.FakeGrader,
    *,
    config: dict[str, object] | None = None,
    max_model_len: int = 256,
) -> types.Trajectory:
    options = {"retryText": "no", "successText": "yes", **(config or {})}
    collector = registry.make_collector(
        workflow="multi_turn_math", config=options, tokens=fakes.FakeTokens(), template="raw",
        max_model_len=max_model_len,
    )  # fmt: skip
    episode = await collector.arun_episode(
        llm_client=model, gconfig=types.Sampling(max_tokens=8), task=TASK, grader=grader, seed=7
    )
    assert episode is not None
    (row,) = episode.rows
    return row


def ids(text: str) -> tuple[int, ...]:
    return tuple(map(ord, text))


A, B, C = (65, EOS), (66, EOS), (67, EOS)


@pytest.mark.covers("workflows 5.1", "workflows 5.5")
async def test_a_right_first_answer_ends_the_episode_with_its_whole_reward() -> None:
    row = await run(episodes.FakeModel(A), episodes.FakeGrader(1.0), config={"turnDiscount": 0.9, "numTurns": 5})
    assert (row.num_turns, row.reward, row.raw_reward) == (1, 1.0, 1.0)


@pytest.mark.covers("algorithms 1", "workflows 1.3", "workflows 5.5")
async def test_four_wrong_answers_are_four_turns_with_reward_0_and_not_truncated() -> None:
    row = await run(
        episodes.FakeModel(A, B, C, A),
        episodes.FakeGrader(0.0, 0.0, 0.0, 0.0),
        config={"turnDiscount": 0.9, "numTurns": 4},
    )
    assert (row.num_turns, row.reward, row.truncated) == (4, 0.0, False)


@pytest.mark.covers("workflows 5.1")
async def test_one_row_holds_all_turns_and_trains_the_sampled_tokens_of_each() -> None:
    row = await run(
        episodes.FakeModel(A, B, first_version=3), episodes.FakeGrader(0.0, 1.0), config={"turnDiscount": 0.9}
    )
    assert tuple(row.tokens) == (*TASK.input_ids, *A, *ids("[no]"), *B)
    assert list(row.loss_mask) == [0, 0, 0, 1, 1, 0, 0, 0, 0, 1, 1]
    assert list(row.versions) == [-1, -1, -1, 3, 3, -1, -1, -1, -1, 4, 4]
    assert list(row.turn_ids) == [-1, -1, -1, 0, 0, -1, -1, -1, -1, 1, 1]
    assert [value != 0.0 for value in row.logprobs] == [bool(sampled) for sampled in row.loss_mask]
    assert row.reward == pytest.approx(0.9)
    assert row.raw_reward == 1.0


@pytest.mark.covers("workflows 5.1")
async def test_the_ids_of_each_turn_begin_with_those_of_the_turn_before() -> None:
    model = episodes.FakeModel(A, B, C)
    await run(model, episodes.FakeGrader(0.0, 0.0, 0.0), config={"numTurns": 3})
    contexts = [request.input_ids for request in model.requests]
    for before, answer, after in zip(contexts, (A, B), contexts[1:], strict=False):
        assert after[: len(before) + len(answer)] == before + answer


@pytest.mark.covers("workflows 5", "workflows 5.1")
async def test_an_answer_cut_by_length_is_graded_as_it_stands_and_closed_with_eos() -> None:
    model, grader = episodes.FakeModel((65, 66, 67), B), episodes.FakeGrader(0.0, 1.0)
    row = await run(model, grader, config={"maxNewTokensPerTurn": 2})
    assert grader.seen == [("2+2", "AB", True), ("2+2", "B", False)]
    assert model.requests[1].input_ids == (*TASK.input_ids, 65, 66, EOS, *ids("[no]"))
    assert list(row.loss_mask)[3:6] == [1, 1, 0]
    assert row.truncated is False


@pytest.mark.covers("workflows 5.1")
async def test_turns_after_success_are_not_trained_unless_asked_for() -> None:
    config: dict[str, object] = {"stopOnSuccess": False, "numTurns": 2}
    row = await run(episodes.FakeModel(A, B), episodes.FakeGrader(1.0, 0.0), config=config)
    assert tuple(row.tokens)[5:10] == ids("[yes]")
    assert list(row.loss_mask)[10:] == [0, 0]
    assert (row.reward, row.num_turns) == (1.0, 2)
    row = await run(
        episodes.FakeModel(A, B), episodes.FakeGrader(1.0, 0.0), config={**config, "trainAfterSuccess": True}
    )
    assert list(row.loss_mask)[10:] == [1, 1]


@pytest.mark.covers("algorithms 1", "workflows 1.3", "workflows 5")
async def test_without_context_for_a_further_turn_the_row_is_truncated() -> None:
    row = await run(episodes.FakeModel(A, B), episodes.FakeGrader(0.0, 1.0), max_model_len=8)
    assert (row.truncated, row.num_turns) == (True, 1)


@pytest.mark.covers("workflows 1.1")
async def test_every_turn_has_its_own_seed_and_request_id() -> None:
    model = episodes.FakeModel(A, B)
    await run(model, episodes.FakeGrader(0.0, 0.0), config={"numTurns": 2})
    assert len({request.seed for request in model.requests}) == 2
    assert len({request.rid for request in model.requests}) == 2


@pytest.mark.covers("workflows 5.1")
async def test_the_gold_never_enters_the_context() -> None:
    model = episodes.FakeModel(A, B)
    await run(model, episodes.FakeGrader(0.0, 0.0), config={"numTurns": 2})
    assert all("SECRET" not in "".join(map(chr, request.input_ids)) for request in model.requests)


async def test_a_turn_without_verdict_fails_the_attempt_and_never_scores_0() -> None:
    with pytest.raises(errors.SandboxError, match="no verdict for turn 1"):
        await run(episodes.FakeModel(A, B), episodes.FakeGrader(0.0, None))


@pytest.mark.covers("workflows 5")
@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"numTurns": 0}, "spec.workflow.config.numTurns is 0: "),
        ({"turnDiscount": 1.5}, "spec.workflow.config.turnDiscount is 1.5: "),
        ({"layout": "tree"}, "spec.workflow.config.layout is 'tree': "),
        ({"turns": 3}, "spec.workflow.config.turns does not belong to workflow 'multi_turn_math'; remove it"),
    ],
)
async def test_a_wrong_option_is_refused_with_its_path_and_value(config: dict[str, object], said: str) -> None:
    with pytest.raises(errors.ManifestError) as refused:
        await run(episodes.FakeModel(A), episodes.FakeGrader(1.0), config=config)
    assert str(refused.value).startswith(said)


@pytest.mark.covers("workflows 5.4")
def test_the_default_retry_text_is_the_published_one() -> None:
    assert multi_turn.MultiTurnConfig().retry_text == (
        "Your answer is either wrong or not parsable to the reward function. You may misunderstand the original"
        " question. Please carefully read the original question, check the previous errors, and try to answer it again."
    )


@pytest.mark.covers("workflows 5.1", "workflows 10")
async def test_the_episode_tells_of_each_turn_its_own_lengths_versions_and_verdict() -> None:
    collector = registry.make_collector(
        workflow="multi_turn_math", config={"retryText": "no", "maxNewTokensPerTurn": 3}, tokens=fakes.FakeTokens(),
        template="raw", max_model_len=256,
    )  # fmt: skip
    episode = await collector.arun_episode(
        llm_client=episodes.FakeModel((65, 66, 67), B, first_version=3), gconfig=types.Sampling(max_tokens=8),
        task=TASK, grader=episodes.FakeGrader(0.0, 1.0), seed=7,
    )  # fmt: skip
    assert episode is not None
    first, second = episode.turns
    told = [(t.success, t.raw_reward, t.prompt_len, t.answer_len, t.version_start, t.version_end, t.stop_reason)
            for t in (first, second)]  # fmt: skip
    # The second context: question 3, answer 3, EOS 1, "[no]" 4.
    assert told == [(False, 0.0, 3, 3, 3, 3, "length"), (True, 1.0, 11, 2, 4, 4, "stop")]
