"""One file of a user's own with an environment, an agent and a reward, and what a manifest says of it."""

STEM = "two_answers"
CODE = '''"""Two answers in a row, each worth 1 if its tokens' ids have an even sum."""

from rljob_workers.rollout import generation
from rljob_workers.rollout.episodes import protocols


class Game:
    def __init__(self, config, *, grader):
        self.grader, self.left = grader, int(config["answers"])

    async def reset(self, *, seed=None, options=None):
        return list(options["input_ids"]), {}

    async def step(self, action):
        self.left -= 1
        verdict = await self.grader.grade(prompt="", completion="", truncated=False, completion_ids=action)
        return [], verdict.reward, self.left == 0, False, {"verdict": verdict}

    async def aclose(self):
        pass


class Player:
    def __init__(self, config):
        self.ids = ()

    async def areset(self):
        self.ids = ()

    async def aact(self, agent_input):
        self.ids += tuple(agent_input.obs)
        request = generation.GenerationRequest(
            rid=f"player-{id(self)}-{len(self.ids)}", input_ids=self.ids, sampling=agent_input.gconfig,
            seed=len(self.ids),
        )
        result = await agent_input.llm_client.generate(request)
        self.ids += tuple(result.output_ids)
        return protocols.AgentOutput(action=tuple(result.output_ids), llm_req=request, llm_resp=result)


def even(query_id, prompt, completion, prompt_ids, completion_ids, **row):
    return float(sum(completion_ids) % 2 == 0)
'''
WORKFLOW = {
    "type": f"{STEM}:Game",
    "code": {"path": f"{STEM}.py", "configMap": "own-code"},
    "config": {"answers": 2, "agent": f"{STEM}:Player"},
}
REWARDS = [{"name": "even", "type": f"{STEM}:even"}]
