"""A user's own class in one file: its forms, what is wrong with it by file and line, and how it runs."""

import pathlib
import textwrap
from collections.abc import Callable

import pytest

from rljob_api import errors, types
from rljob_testing import episodes, shells
from rljob_testing import rollout as fakes
from rljob_workers.rollout.episodes import custom, protocols, registry
from rljob_workers.rollout.gateway import collector

EOS = episodes.EOS
RECORD = types.PromptRecord(prompt_id="p", source="s", columns={"prompt": "hi", "answer": "B"})
TASK = protocols.Task(record=RECORD, input_ids=(104, 105), prompt_text="hi")
Write = Callable[[str], str]

GUESSING = """
    class Guessing:
        def __init__(self, config):
            self.tries = config.get("tries", 2)

        async def reset(self, *, seed=None, options=None):
            self.answer = options["answer"]
            return options["prompt"], {}

        async def step(self, action):
            self.tries -= 1
            right = action == self.answer
            return "no", float(right), right or not self.tries, False, {}

        async def aclose(self):
            pass
"""


@pytest.fixture
def write(tmp_path: pathlib.Path, request: pytest.FixtureRequest) -> Write:
    # A module's name is its file's, so each test has its own.
    path = tmp_path / f"mine_{abs(hash(request.node.nodeid))}.py"

    def written(text: str) -> str:
        path.write_text(textwrap.dedent(text).lstrip("\n"))
        return str(path)

    return written


def make(
    file: str, name: str, config: dict[str, object] | None = None, places: shells.FakePlaces | None = None
) -> protocols.RolloutCollector:
    return registry.make_collector(
        workflow=f"{pathlib.Path(file).stem}:{name}",
        config=config or {},
        tokens=fakes.FakeTokens(),
        template="raw",
        max_model_len=64,
        code=file,
        places=places,
    )


async def run(collector: protocols.RolloutCollector, *answers: tuple[int, ...]) -> types.Trajectory:
    episode = await collector.arun_episode(
        llm_client=episodes.FakeModel(*answers),
        gconfig=types.Sampling(max_tokens=8),
        task=TASK,
        grader=episodes.FakeGrader(1.0),
        seed=1,
    )
    assert episode is not None
    return episode.rows[0]


async def test_an_environment_of_the_user_is_answered_by_the_text_agent_in_one_row(write: Write) -> None:
    row = await run(make(write(GUESSING), "Guessing"), (65, EOS), (66, EOS))
    assert list(row.tokens) == [*b"hi", 65, EOS, *b"[no]", 66, EOS]
    assert list(row.turn_ids) == [-1, -1, 0, 0, -1, -1, -1, -1, 1, 1]
    assert (row.reward, row.num_turns) == (1.0, 2)


async def test_the_environment_gets_workflow_config(write: Write) -> None:
    row = await run(make(write(GUESSING), "Guessing", {"tries": 1}), (65, EOS))
    assert (row.reward, row.num_turns) == (0.0, 1)


async def test_an_answer_without_eos_is_closed_before_the_next_turn(write: Write) -> None:
    row = await run(make(write(GUESSING), "Guessing"), (65,), (66, EOS))
    assert list(row.tokens) == [*b"hi", 65, EOS, *b"[no]", 66, EOS]
    assert list(row.loss_mask)[2:4] == [1, 0]


@pytest.mark.covers("workflows 2")
async def test_a_synchronous_gymnasium_environment_runs_too(write: Write) -> None:
    text = GUESSING.replace("async def", "def").replace("def aclose", "def close")
    row = await run(make(write(text), "Guessing"), (65, EOS), (66, EOS))
    assert (row.reward, row.num_turns) == (1.0, 2)


async def test_an_agent_of_the_user_acts_in_the_environment_of_the_user(write: Write) -> None:
    agent = """
    from rljob_workers.rollout import generation
    from rljob_workers.rollout.episodes.protocols import AgentOutput

    class Once:
        def __init__(self, config):
            self.ids = ()

        async def areset(self):
            self.ids = ()

        async def aact(self, agent_input):
            ids = (*self.ids, *map(ord, agent_input.obs))
            request = generation.GenerationRequest(rid="x", input_ids=ids, sampling=agent_input.gconfig, seed=0)
            result = await agent_input.llm_client.generate(request)
            return AgentOutput(action="B", llm_req=request, llm_resp=result)
    """
    file = write(textwrap.dedent(agent) + textwrap.dedent(GUESSING))
    row = await run(make(file, "Guessing", {"agent": f"{pathlib.Path(file).stem}:Once"}), (65, EOS))
    assert row.reward == 1.0


@pytest.mark.covers("workflows 2")
async def test_a_collector_of_the_user_runs_as_it_is_and_none_means_rejected(write: Write) -> None:
    text = """
    class Nothing:
        def __init__(self, config):
            pass

        async def arun_episode(self, *, llm_client, gconfig, task, grader, seed):
            return None
    """
    collector = make(write(text), "Nothing")
    assert (
        await collector.arun_episode(
            llm_client=episodes.FakeModel(),
            gconfig=types.Sampling(),
            task=TASK,
            grader=episodes.FakeGrader(),
            seed=1,
        )
        is None
    )


@pytest.mark.covers("workflows 2.1")
def test_a_class_with_its_own_config_model_refuses_wrong_options_by_path(write: Write) -> None:
    text = """
    import pydantic

    class Mine:
        class Config(pydantic.BaseModel):
            depth: int

        def __init__(self, config):
            self.depth = config.depth

        async def arun_episode(self, *, llm_client, gconfig, task, grader, seed):
            return None
    """
    with pytest.raises(errors.ManifestError, match=r"^spec\.workflow\.config\.depth is 'deep': "):
        make(write(text), "Mine", {"depth": "deep"})


WRONG: dict[str, tuple[str, str, str]] = {
    "a syntax error": ("x = 1\ndef f(:\n", "Mine", ":2: SyntaxError: "),
    "an import that fails": ("import os\nimport no_such_module\n", "Mine", ":2: ModuleNotFoundError: "),
    "code that raises": ("x = {}\n\ny = x['k']\n", "Mine", ":3: KeyError: 'k' (spec.workflow.type)"),
    "a name that is not there": ("class Other:\n    pass\n", "Mine", "has no Mine; it defines Other"),
    "a function": ("def Mine():\n    pass\n", "Mine", "which is function and not a class"),
    "a class of no form": (
        "x = 1\nclass Mine:\n    pass\n",
        "Mine",
        ":2: class Mine is not a workflow (spec.workflow.type): it needs",
    ),
    "an agent without areset": (
        "class Mine:\n    async def aact(self, agent_input):\n        pass\n",
        "Mine",
        ":1: class Mine is an Agent, but has no method areset",
    ),
    "a method that is not async": (
        "class Mine:\n    def arun_episode(self, llm_client, gconfig, task, grader, seed):\n        pass\n",
        "Mine",
        ":2: Mine.arun_episode must be an async function",
    ),
    "a method without a parameter": (
        "class Mine:\n    async def arun_episode(self, *, llm_client, gconfig, task, grader):\n        pass\n",
        "Mine",
        ":2: Mine.arun_episode must take seed by name",
    ),
}


@pytest.mark.covers("workflows 2.1")
@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_with_a_file_is_said_with_its_place(case: str, write: Write) -> None:
    text, name, said = WRONG[case]
    file = write(text)
    with pytest.raises(errors.ManifestError) as refused:
        custom.check(f"{pathlib.Path(file).stem}:{name}", file=file, config={}, has_environment=False)
    assert file in str(refused.value) or case == "a function"
    assert said in str(refused.value)


def test_a_file_that_is_not_there_is_named(tmp_path: pathlib.Path) -> None:
    with pytest.raises(errors.ManifestError, match=r"spec\.workflow\.code\.path: there is no file .*nowhere\.py"):
        custom.check("nowhere:Mine", file=str(tmp_path / "nowhere.py"), config={}, has_environment=False)


def test_a_module_that_is_not_installed_says_what_to_do() -> None:
    with pytest.raises(errors.ManifestError, match=r"name its file in spec\.workflow\.code\.path, or install it"):
        custom.check("no_such_package.flow:Mine", file="", config={}, has_environment=False)


def test_a_file_named_like_a_loaded_module_is_refused(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "json.py"
    path.write_text("class Mine:\n    pass\n")
    with pytest.raises(errors.ManifestError, match="has the name of a module that is loaded already"):
        custom.check("json:Mine", file=str(path), config={}, has_environment=False)


@pytest.mark.covers("workflows 2")
async def test_an_agent_of_the_openai_api_is_given_an_address_a_key_and_a_client(write: Write) -> None:
    file = write(
        """
        class Agent:
            def __init__(self, config):
                self.question = config["question"]

            async def run(self, *, data, base_url, http_client, api_key):
                answer = await http_client.post(
                    base_url + "/chat/completions",
                    json={"messages": [{"role": "user", "content": self.question}]},
                    headers={"Authorization": "Bearer " + api_key},
                )
                return float(answer.json()["choices"][0]["message"]["content"] == data["answer"])
        """
    )
    made = make(file, "Agent", {"question": "?", "proxy": {"turnDiscount": 0.9}})
    assert isinstance(made, collector.ProxyCollector)
    model = episodes.FakeModel((66, EOS))
    episode = await made.arun_episode(
        llm_client=model, gconfig=types.Sampling(max_tokens=8), task=TASK, grader=episodes.FakeGrader(), seed=7
    )
    assert episode is not None
    await made.close()
    assert "".join(map(chr, model.requests[0].input_ids)) == "u:?;a:"
    assert [row.reward for row in episode.rows] == [1.0]


def test_the_options_of_the_proxy_are_refused_by_path(write: Write) -> None:
    file = write("class Agent:\n    async def run(self, *, data, base_url, http_client, api_key):\n        return 0\n")
    with pytest.raises(errors.ManifestError, match=r"spec\.workflow\.config\.proxy\.export is 'tree'"):
        make(file, "Agent", {"proxy": {"export": "tree"}})


WORKFLOW = """
    class Flow:
        def __init__(self, config):
            self.skips = config.get("skips", False)

        async def arun_episode(self, engine, data):
            if self.skips:
                return None
            answer = await engine.agenerate(data["input_ids"])
            before, count = len(data["input_ids"]), len(answer.result.output_ids)
            pad = [0, 0]
            return {
                "input_ids": [data["input_ids"] + list(answer.result.output_ids) + pad],
                "attention_mask": [[1] * (before + count) + pad],
                "loss_mask": [[0] * before + [1] * count + pad],
                "logprobs": [[0.0] * before + list(answer.result.logprobs) + pad],
                "versions": [[-1] * before + list(answer.result.versions) + [-1, -1]],
                "rewards": [await engine.agrade(answer) * 2],
                "raw_rewards": [0.5],
            }
"""


@pytest.mark.covers("workflows 2")
async def test_a_workflow_that_returns_arrays_becomes_rows_without_padding(write: Write) -> None:
    made = make(write(WORKFLOW), "Flow")
    grader = episodes.FakeGrader(0.5)
    episode = await made.arun_episode(
        llm_client=episodes.FakeModel((66, EOS), first_version=3), gconfig=types.Sampling(max_tokens=8), task=TASK,
        grader=grader, seed=7,
    )  # fmt: skip
    assert episode is not None
    (row,) = episode.rows
    assert (list(row.tokens), list(row.loss_mask)) == ([104, 105, 66, EOS], [0, 0, 1, 1])
    assert (list(row.versions), list(row.turn_ids)) == ([-1, -1, 3, 3], [-1, -1, 0, 0])
    assert (row.reward, row.raw_reward, grader.seen[0][:2]) == (1.0, 0.5, ("hi", "B"))


@pytest.mark.covers("workflows 2")
async def test_a_workflow_that_returns_none_is_rejected(write: Write) -> None:
    made = make(write(WORKFLOW), "Flow", {"skips": True})
    found = await made.arun_episode(
        llm_client=episodes.FakeModel(), gconfig=types.Sampling(), task=TASK, grader=episodes.FakeGrader(), seed=7
    )
    assert found is None


INTERACTIONS = """
    from rljob_workers.rollout.episodes.workflow import Interaction

    class Flow:
        def __init__(self, config):
            self.kind = config.get("kind", "two")

        async def arun_episode(self, engine, data):
            first = await engine.agenerate(data["input_ids"])
            if self.kind == "none":
                return {}
            if self.kind == "mixed":
                return {"a": Interaction(answer=first), "rewards": [1.0]}
            if self.kind == "twice":
                return {"a": Interaction(answer=first), "b": Interaction(answer=first, reward=1.0)}
            if self.kind == "endless":
                return {"a": Interaction(answer=first, reward=float("inf"))}
            second = await engine.agenerate([*data["input_ids"], *first.result.output_ids, 33])
            return {"a": Interaction(answer=first), "b": Interaction(answer=second, reward=0.5)}
"""


async def ask(flow: protocols.RolloutCollector, *answers: tuple[int, ...]) -> protocols.Episode | None:
    return await flow.arun_episode(
        llm_client=episodes.FakeModel(*answers, first_version=3), gconfig=types.Sampling(max_tokens=8), task=TASK,
        grader=episodes.FakeGrader(), seed=7,
    )  # fmt: skip


@pytest.mark.covers("workflows 2")
async def test_a_workflow_may_return_interactions_by_id_each_a_row_with_its_own_reward(write: Write) -> None:
    episode = await ask(make(write(INTERACTIONS), "Flow"), (65, EOS), (66, EOS))
    assert episode is not None
    assert [list(row.tokens) for row in episode.rows] == [[104, 105, 65, EOS], [104, 105, 65, EOS, 33, 66, EOS]]
    assert [row.num_sampled for row in episode.rows] == [2, 2]
    assert [(row.reward, row.raw_reward) for row in episode.rows] == [(0.0, 0.0), (0.5, 0.5)]
    assert [max(row.turn_ids) for row in episode.rows] == [0, 1]
    assert (episode.total_reward, episode.num_turns) == (0.5, 2)


@pytest.mark.covers("workflows 2")
async def test_no_interaction_is_rejected(write: Write) -> None:
    assert await ask(make(write(INTERACTIONS), "Flow", {"kind": "none"}), (65, EOS)) is None


@pytest.mark.covers("workflows 2")
@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("mixed", "interactions and other values"),
        ("twice", "interaction 2 has the answer of another one"),
        ("endless", "the reward of interaction 1 is inf"),
    ],
)
async def test_interactions_that_cannot_be_rows_fail_the_attempt(write: Write, kind: str, said: str) -> None:
    with pytest.raises(errors.EpisodeError, match=said):
        await ask(make(write(INTERACTIONS), "Flow", {"kind": kind}), (65, EOS))


JUDGED = """
    class Judged:
        def __init__(self, config, *, grader):
            self.grader = grader

        async def reset(self, *, seed=None, options=None):
            self.prompt = options["prompt"]
            return self.prompt, {}

        async def step(self, action):
            verdict = await self.grader.grade(prompt=self.prompt, completion=action, truncated=False)
            return "", verdict.reward, True, False, {"verdict": verdict}

        async def aclose(self):
            pass
"""


async def test_an_environment_that_takes_a_grader_is_judged_by_the_rewards_of_the_job(write: Write) -> None:
    row = await run(make(write(JUDGED), "Judged"), (65, EOS))
    assert (row.reward, row.verdict.reward, row.verdict.reason) == (1.0, 1.0, "ok")


async def test_an_attempt_that_nobody_could_judge_is_no_reward(write: Write) -> None:
    collector = make(write(JUDGED), "Judged")
    with pytest.raises(errors.RLJobError):
        await collector.arun_episode(
            llm_client=episodes.FakeModel((65, EOS)),
            gconfig=types.Sampling(max_tokens=8),
            task=TASK,
            grader=episodes.FakeGrader(None),
            seed=1,
        )


WITH_PLACES = """
    class Runs:
        def __init__(self, config, *, places):
            self.config, self.places = config, places

        async def reset(self, *, seed=None, options=None):
            return options["prompt"], {}

        async def step(self, action):
            async with self.places.open("mine", wait_s=1.0) as shell:
                reply = await shell.exec(action, timeout_s=1.0, max_output=9)
            return "", float(reply.exit_code == 0), True, False, {}

        async def aclose(self):
            pass
"""


async def test_a_class_that_takes_places_gets_the_environments_of_the_job(write: Write) -> None:
    places = shells.FakePlaces({"B": shells.says()})
    row = await run(make(write(WITH_PLACES), "Runs", places=places), (66, EOS))
    assert (row.reward, places.events) == (1.0, ["claim mine", "B", "release"])


async def test_an_agent_that_takes_places_gets_them_where_its_environment_takes_none(write: Write) -> None:
    agent = """
    from rljob_workers.rollout import generation
    from rljob_workers.rollout.episodes.protocols import AgentOutput

    class Looks:
        def __init__(self, config, places):
            self.places = places

        async def areset(self):
            pass

        async def aact(self, agent_input):
            async with self.places.open("mine", wait_s=1.0) as shell:
                reply = await shell.exec("look", timeout_s=1.0, max_output=9)
            ids = tuple(map(ord, agent_input.obs))
            request = generation.GenerationRequest(rid="x", input_ids=ids, sampling=agent_input.gconfig, seed=0)
            result = await agent_input.llm_client.generate(request)
            return AgentOutput(action=reply.stdout.decode(), llm_req=request, llm_resp=result)
    """
    file = write(textwrap.dedent(agent) + textwrap.dedent(GUESSING))
    config: dict[str, object] = {"agent": f"{pathlib.Path(file).stem}:Looks"}
    row = await run(make(file, "Guessing", config, shells.FakePlaces({"look": shells.says("B")})), (65, EOS))
    assert row.reward == 1.0
    with pytest.raises(errors.ManifestError, match=r":\d+: Looks takes places, but spec\.environment is not set"):
        make(file, "Guessing", config)


DISAGREEMENTS = {
    "a class that needs places of a job without": (WITH_PLACES, "Runs", False, r":1: Runs takes places, but spec\.env"),
    "a job whose class takes none": (
        GUESSING,
        "Guessing",
        True,
        r"spec\.environment is set, but has no effect: .*:1:",
    ),
    "a class whose methods are not async": (
        WITH_PLACES.replace("async def", "def").replace("async with", "with").replace("await ", ""),
        "Runs",
        True,
        r":1: Runs takes places, whose calls are async, but its methods are not",
    ),
}


@pytest.mark.parametrize("case", DISAGREEMENTS)
def test_a_class_and_a_job_that_disagree_on_environments_are_refused(case: str, write: Write) -> None:
    text, name, has_environment, said = DISAGREEMENTS[case]
    file = write(text)
    with pytest.raises(errors.ManifestError, match=said):
        custom.check(f"{pathlib.Path(file).stem}:{name}", file=file, config={}, has_environment=has_environment)
    with pytest.raises(errors.ManifestError, match=said):
        make(file, name, places=shells.FakePlaces({}) if has_environment else None)


async def test_a_class_may_do_without_places(write: Write) -> None:
    file = write(WITH_PLACES.replace("*, places", "places=None"))
    custom.check(f"{pathlib.Path(file).stem}:Runs", file=file, config={}, has_environment=False)
    custom.check(f"{pathlib.Path(file).stem}:Runs", file=file, config={}, has_environment=True)
    make(file, "Runs")


async def test_a_collector_may_have_an_option_of_its_own_that_is_called_agent(write: Write) -> None:
    text = """
    class Mine:
        def __init__(self, config):
            assert config == {"agent": "brave"}

        async def arun_episode(self, *, llm_client, gconfig, task, grader, seed):
            return None
    """
    file = write(text)
    custom.check(f"{pathlib.Path(file).stem}:Mine", file=file, config={"agent": "brave"}, has_environment=False)
    make(file, "Mine", {"agent": "brave"})
