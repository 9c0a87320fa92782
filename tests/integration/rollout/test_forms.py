"""Each form that a user's class may have runs on the real engine, and equal seeds give equal trajectories."""

import os
import pathlib
import textwrap

import pytest

from rljob_api import types
from rljob_testing import episodes
from rljob_workers.rollout import tokenizer
from rljob_workers.rollout.episodes import protocols, registry
from rljob_workers.rollout.gateway import collector as proxy

pytestmark = pytest.mark.skipif(
    not os.environ.get("RLJOB_EVERY_EXAMPLE"), reason="the forms were not asked for (RLJOB_EVERY_EXAMPLE=1)"
)

FILE = """
    from rljob_workers.rollout import generation
    from rljob_workers.rollout.episodes import protocols, rows


    class Game:
        '''An environment: two answers, each rewarded by its length.'''

        def __init__(self, config):
            self.left = 2

        async def reset(self, *, seed=None, options=None):
            return options["prompt"], {}

        async def step(self, action):
            self.left -= 1
            return "And again?", len(action) / 100, self.left == 0, False, {}

        async def aclose(self):
            pass


    class Player:
        '''An agent: it appends what it sees as ids of its own.'''

        def __init__(self, config):
            self.ids = (1,)

        async def areset(self):
            self.ids = (1,)

        async def aact(self, agent_input):
            self.ids = (*self.ids, *(40 + ord(c) % 50 for c in agent_input.obs))
            request = generation.GenerationRequest(
                rid=f"player-{len(self.ids)}", input_ids=self.ids, sampling=agent_input.gconfig, seed=len(self.ids)
            )
            result = await agent_input.llm_client.generate(request)
            self.ids += result.output_ids
            return protocols.AgentOutput(action="x" * len(result.output_ids), llm_req=request, llm_resp=result)


    class Collector:
        '''A collector: one call, graded.'''

        def __init__(self, config):
            pass

        async def arun_episode(self, *, llm_client, gconfig, task, grader, seed):
            request = generation.GenerationRequest(
                rid=f"collector-{seed}", input_ids=task.input_ids, sampling=gconfig, seed=seed
            )
            result = await llm_client.generate(request)
            verdict = await grader.grade(prompt=task.prompt_text, completion="", truncated=result.truncated)
            row = rows.RowBuilder.begin(task.input_ids)
            row.sample(result, turn=0)
            made = row.finished(
                last=result, reward=verdict.reward, raw_reward=verdict.reward, verdict=verdict, num_turns=1
            )
            return protocols.Episode(rows=(made,), total_reward=made.reward, num_turns=1, turns=())


    class Workflow:
        '''AReaL's newer form: arrays.'''

        def __init__(self, config):
            pass

        async def arun_episode(self, engine, data):
            answer = await engine.agenerate(data["input_ids"])
            before, result = len(data["input_ids"]), answer.result
            return {
                "input_ids": [data["input_ids"] + list(result.output_ids)],
                "loss_mask": [[0] * before + [1] * len(result.output_ids)],
                "logprobs": [[0.0] * before + list(result.logprobs)],
                "versions": [[-1] * before + list(result.versions)],
                "rewards": [await engine.agrade(answer)],
            }


    class OpenAI:
        '''An agent of the OpenAI API.'''

        def __init__(self, config):
            pass

        async def run(self, *, data, base_url, http_client, api_key):
            answer = await http_client.post(
                base_url + "/chat/completions",
                json={"messages": [{"role": "user", "content": data["prompt"]}]},
                headers={"Authorization": "Bearer " + api_key},
            )
            return float(len(answer.json()["choices"][0]["message"]["content"]) > 0)
"""
# The class that the job names, the agent alongside it, and how many turns it takes.
FORMS = {
    "environment": ("Game", "", 2),
    "agent": ("Game", "Player", 2),
    "collector": ("Collector", "", 1),
    "workflow": ("Workflow", "", 1),
    "openai": ("OpenAI", "", 1),
}
SAMPLING = types.Sampling(max_tokens=12, ignore_eos=True)


@pytest.mark.parametrize("form", FORMS)
def test_a_form_runs_on_the_engine_and_equal_seeds_give_equal_trajectories(
    form: str,
    rig,  # type: ignore[no-untyped-def]  # the folder's fixture
    folders: list[pathlib.Path],
    tmp_path: pathlib.Path,
) -> None:
    name, agent, num_turns = FORMS[form]
    # A process has one module of a name.
    file = tmp_path / f"form_{form}.py"
    file.write_text(textwrap.dedent(FILE))
    tokens = tokenizer.PromptTokenizer(folders[0], template="chat")
    record = types.PromptRecord(prompt_id="p", source="s", columns={"prompt": "Say it."})
    ids = tokens.prompt_ids(record)
    task = protocols.Task(record=record, input_ids=ids, prompt_text=tokens.decode_exact(ids))
    collector = registry.make_collector(
        workflow=f"{file.stem}:{name}",
        config={"agent": f"{file.stem}:{agent}"} if agent else {},
        tokens=tokens,
        template="chat",
        max_model_len=256,
        code=str(file),
    )

    def episode() -> protocols.Episode:
        made = rig.loop.run_until_complete(
            collector.arun_episode(
                llm_client=rig.gate, gconfig=SAMPLING, task=task, grader=episodes.FakeGrader(1.0, 1.0), seed=7
            )
        )
        assert made is not None
        return made

    first, second = episode(), episode()
    if isinstance(collector, proxy.ProxyCollector):
        rig.loop.run_until_complete(collector.close())
    (row,), (again,) = first.rows, second.rows
    assert row.num_turns == num_turns
    assert set(row.turn_ids) == {types.NO_TURN, *range(num_turns)}
    assert set(row.versions) == {types.NO_VERSION, rig.receiver.served.version}
    for field in ("tokens", "loss_mask", "versions", "turn_ids", "reward"):
        assert getattr(again, field) == getattr(row, field), field
