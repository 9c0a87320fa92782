"""Episodes with a shell, on a model and places that are fakes: what is run, what is seen, what is rewarded."""

import json

import pytest

from rljob_api import errors, types
from rljob_testing import episodes, shells
from rljob_testing import rollout as fakes
from rljob_testing.shells import says
from rljob_workers.rollout.episodes import protocols, shell_tool, tool_use
from rljob_workers.rpc import environment

EOS = episodes.EOS


def ids(text: str) -> tuple[int, ...]:
    return tuple(map(ord, text))


def answer(text: str) -> tuple[int, ...]:
    return (*ids(text), EOS)


def call(command: object, name: str = "shell") -> tuple[int, ...]:
    arguments = {"command": command}
    return answer(f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>")


def task(**columns: object) -> protocols.Task:
    record = types.PromptRecord(prompt_id="p", source="s", columns={"prompt": "do $ ", **columns})
    return protocols.Task(record=record, input_ids=ids("do $ "), prompt_text="do $ ")


def collector(
    places: shell_tool.Places,
    *,
    template: str = "raw",
    max_model_len: int = 4096,
    tokens: fakes.FakeTokens | None = None,
    **options: object,
) -> tool_use.ToolUseCollector:
    config = tool_use.ToolUseConfig.model_validate({"tools": ["shell"], "notation": "terminal", **options})
    return tool_use.ToolUseCollector(
        config, tokens=tokens or fakes.FakeTokens(), template=template, max_model_len=max_model_len, places=places
    )


async def run(
    made: tool_use.ToolUseCollector,
    model: episodes.FakeModel,
    given: protocols.Task,
    grader: episodes.FakeGrader | None = None,
) -> types.Trajectory:
    episode = await made.arun_episode(
        llm_client=model,
        gconfig=types.Sampling(max_tokens=200),
        task=given,
        grader=grader or episodes.FakeGrader(),
        seed=7,
    )
    assert episode is not None
    (row,) = episode.rows
    assert (row.reward, len(episode.turns)) == (episode.total_reward, episode.num_turns)
    return row


async def test_the_model_works_in_one_place_and_the_tests_run_there_once_it_is_done() -> None:
    places = shells.FakePlaces({"ls": says("in\n"), "cat in": says("7\n"), "test -e out": says(), "grep 7 out": says()})
    model = episodes.FakeModel(answer("ls"), answer("cat in"), answer("exit"))
    row = await run(
        collector(places), model, task(files={"in": "7\n"}, tests=["test -e out", "grep 7 out"], answer="7")
    )
    assert places.events == [
        *("claim p", "write in", "ls", "cat in", "test -e out", "grep 7 out", "release"),
    ]
    assert (row.reward, row.num_turns, row.truncated) == (1.0, 3, False)
    text = "".join(map(chr, row.tokens)).replace(chr(EOS), "")
    assert text == "do $ ls\nin\n$cat in\n7\n$exit"
    assert "grep 7 out" not in "".join(chr(each) for request in model.requests for each in request.input_ids)
    sampled = [chr(token) for token, trained in zip(row.tokens, row.loss_mask, strict=True) if trained]
    assert "".join(sampled).replace(chr(EOS), "|") == "ls|cat in|exit|"


async def test_the_reward_is_the_share_of_tests_that_pass() -> None:
    replies = {
        "make": says(),
        "a": says(),
        "b": says(exit_code=1),
        "c": says(stopped="wall", exit_code=-9),
        "d": says(refused="the budget is used up"),
    }
    row = await run(
        collector(shells.FakePlaces(replies)),
        episodes.FakeModel(answer("make"), answer("exit")),
        task(tests=list("abcd")),
    )
    assert (row.reward, row.verdict.grader) == (0.25, "tests")


async def test_without_tests_the_last_answer_is_graded_once_the_place_is_free() -> None:
    places, grader = shells.FakePlaces({"ls": says("in\n")}), episodes.FakeGrader(0.5)
    graded = grader.grade

    async def grade(**fields: object) -> types.Verdict:
        places.events.append("graded")
        return await graded(**fields)  # type: ignore[arg-type]  # as it was called

    grader.grade = grade  # type: ignore[method-assign]  # it tells the order
    row = await run(collector(places), episodes.FakeModel(answer("ls"), answer("")), task(), grader)
    assert places.events == ["claim p", "ls", "release", "graded"]
    assert row.reward == 0.5


async def test_an_episode_without_a_command_and_tests_claims_no_place() -> None:
    places = shells.FakePlaces({})
    row = await run(collector(places), episodes.FakeModel(answer("exit")), task(), episodes.FakeGrader(0.0))
    assert (places.events, row.num_turns) == ([], 1)


@pytest.mark.parametrize(
    "error", [errors.UnavailableError("gone"), errors.FencedError("ended"), errors.RLJobError("x")]
)
@pytest.mark.parametrize("lost_with", ["ls", "test"])
async def test_a_lost_place_is_no_answer_and_is_given_back(error: errors.RLJobError, lost_with: str) -> None:
    def answers(command: str) -> environment.Reply:
        if command == lost_with:
            raise error
        return says()

    places = shells.FakePlaces(answers)
    with pytest.raises(errors.PlaceError, match="the place of p was lost") as raised:
        await run(collector(places), episodes.FakeModel(answer("ls"), answer("exit")), task(tests=["test"]))
    assert raised.value.fault is errors.Fault.INFRA
    assert places.events[-1] == "release"


async def test_a_file_that_cannot_be_written_is_the_records_fault() -> None:
    with pytest.raises(errors.DataError, match="record p: files: /etc/x is outside"):
        await run(collector(shells.FakePlaces({})), episodes.FakeModel(answer("ls")), task(files={"/etc/x": ""}))


@pytest.mark.parametrize("columns", [{"files": ["a"]}, {"files": {"a": 1}}, {"tests": "true"}, {"tests": [1]}])
async def test_columns_of_another_shape_are_the_records_fault(columns: dict[str, object]) -> None:
    with pytest.raises(errors.DataError, match="record p of s: column '"):
        await run(collector(shells.FakePlaces({})), episodes.FakeModel(answer("ls")), task(**columns))


async def test_an_answer_that_its_budget_cut_is_not_run() -> None:
    places = shells.FakePlaces({"true": says()})
    row = await run(collector(places), episodes.FakeModel(ids("rm -r di")), task(tests=["true"]))
    assert places.events == ["claim p", "true", "release"]
    assert row.truncated


async def test_the_last_turn_ends_with_its_command() -> None:
    places = shells.FakePlaces({"a": says("x"), "b": says("y")})
    row = await run(
        collector(places, numTurns=2), episodes.FakeModel(answer("a"), answer("b")), task(), episodes.FakeGrader(0.0)
    )
    assert places.events == ["claim p", "a", "b", "release"]
    assert "".join(map(chr, row.tokens)).endswith(f"b{chr(EOS)}")


async def test_output_that_does_not_fit_the_context_ends_the_episode() -> None:
    places = shells.FakePlaces({"a": says("x" * 60), "true": says()})
    row = await run(collector(places, max_model_len=64), episodes.FakeModel(answer("a")), task(tests=["true"]))
    assert (row.reward, row.truncated, len(row.tokens)) == (1.0, True, len("do $ a") + 1)


async def test_calls_by_a_chat_template_are_run_and_answered_in_their_order() -> None:
    places = shells.FakePlaces({"ls": says("<eos>\n"), "true": says()})
    both = (*call("ls")[:-1], *call("true"))
    model = episodes.FakeModel(both, answer("done"))
    made = collector(places, template="chat", notation="auto")
    row = await run(made, model, task(tests=["true"]))
    assert places.events == ["claim p", "ls", "true", "true", "release"]
    first, second = ("".join(map(chr, request.input_ids)) for request in model.requests)
    assert first == "T1;u:do $ ;a:"
    assert second == first + "".join(map(chr, both)) + ";t:<\\eos>;t:;a:"
    assert row.num_turns == 2


@pytest.mark.parametrize(
    ("made", "said"), [(call("ls", "python"), "there is no such tool"), (call(7), "needs command"), (call(""), "needs")]
)
async def test_a_call_that_is_none_of_the_shell_is_refused_in_words(made: tuple[int, ...], said: str) -> None:
    model = episodes.FakeModel(made, answer("done"))
    places = shells.FakePlaces({})
    await run(collector(places, template="chat", notation="auto"), model, task(), episodes.FakeGrader(0.0))
    assert said in "".join(map(chr, model.requests[1].input_ids))
    assert places.events == []


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"notation": "auto"}, "use template chat, or notation terminal"),
        ({"notation": "none", "template": "chat"}, "name one of vLLM's parsers"),
        (
            {"notation": "auto", "template": "chat", "tokens": fakes.FakeTokens(shows_tools=False)},
            "does not show tools",
        ),
    ],
)
def test_a_model_that_cannot_call_tools_is_refused_before_an_episode(changes: dict[str, object], said: str) -> None:
    with pytest.raises(errors.ManifestError, match=said):
        collector(shells.FakePlaces({}), **changes)  # type: ignore[arg-type]  # by name


@pytest.mark.parametrize(
    ("reply", "seen"),
    [
        (says("a\n"), "a"),
        (says("a\x1b[2Jb\x00\r\n\xff\tc"), "a\\x1b[2Jb\\x00\n\u00ff\tc"),
        (environment.Reply(stdout=b"\xff\x9b"), "\\xff\\x9b"),
        (environment.Reply(stdout=b"a\n", stderr=b"b\n", exit_code=2), "a\nb\n[exit code 2]"),
        (says("", exit_code=-9, stopped="memory"), "[ended: it needed too much memory or too many processes]"),
        (says("abcdefgh"), "abcdef\n[the rest is left out]"),
        (says("abc", truncated=True), "abc\n[the rest is left out]"),
        (says(refused="no"), "[refused: no]"),
        (says(), ""),
    ],
)
def test_output_is_cut_and_escaped_before_the_model_sees_it(reply: environment.Reply, seen: str) -> None:
    assert shell_tool.shown(reply, 6 if b"abcdef" in reply.stdout else 100) == seen
