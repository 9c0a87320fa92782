"""An environment of verifiers, as a package for it is written: sums in one call.

Nothing in it knows what trains the model: `vf-eval addition` evaluates any model on it.
"""

import random
import re
from collections.abc import Iterator

import verifiers.v1 as vf
from one_call import OneCallHarness

# A task set brings the harness that it is played with by default.
__all__ = ["AdditionTaskset", "OneCallHarness"]

EXAMPLES = ((12, 7), (46, 31), (58, 9), (24, 67))


class AdditionConfig(vf.TasksetConfig):
    """How many sums, and which."""

    count: int = 400
    seed: int = 0


class AdditionData(vf.TaskData):
    """One sum."""

    answer: str


class AdditionTask(vf.Task[AdditionData, vf.State, vf.TaskConfig]):
    """Right if the first number of the reply is the sum."""

    @vf.reward
    async def right(self, trace: vf.Trace) -> float:
        numbers = re.findall(r"\d+", trace.last_reply.split("=")[-1])
        return float(numbers[:1] == [self.data.answer])


def question(first: int, second: int) -> vf.UserMessage:
    """Return one sum as it is asked."""
    return vf.UserMessage(content=f"{first} + {second} = ")


def reply(first: int, second: int) -> vf.AssistantMessage:
    """Return its right answer, as an example that goes before."""
    return vf.AssistantMessage(content=str(first + second))


class AdditionTaskset(vf.Taskset[AdditionTask, AdditionConfig]):
    """Sums of two numbers up to 50."""

    def load(self) -> Iterator[AdditionTask]:
        numbers = random.Random(self.config.seed)
        for _ in range(self.config.count):
            first, second = numbers.randint(1, 50), numbers.randint(1, 50)
            prompt = [message for pair in EXAMPLES for message in (question(*pair), reply(*pair))]
            data = AdditionData(prompt=[*prompt, question(first, second)], answer=str(first + second))
            yield AdditionTask(data, self.config.task)
