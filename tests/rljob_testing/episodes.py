"""Fakes of what an episode talks to: a model with given answers and a grader with given rewards."""

from rljob_api import types
from rljob_testing import makers
from rljob_workers.rollout import generation

EOS = 2


class FakeModel:
    """Answers with the given ids, call by call, and keeps the requests. Each call samples the next version."""

    def __init__(self, *answers: tuple[int, ...], first_version: int = 0) -> None:
        self.answers, self.first_version = answers, first_version
        self.requests: list[generation.GenerationRequest] = []

    async def generate(self, request: generation.GenerationRequest) -> generation.GenerationResult:
        ids = self.answers[len(self.requests)][: request.sampling.max_tokens]
        version = self.first_version + len(self.requests)
        self.requests.append(request)
        return generation.GenerationResult(
            output_ids=ids,
            logprobs=(-0.5,) * len(ids),
            versions=(version,) * len(ids),
            stop_reason="stop" if ids[-1] == EOS else "length",
        )


class FakeGrader:
    """Gives the rewards in order; None is an infrastructure failure."""

    def __init__(self, *rewards: float | None) -> None:
        self.rewards = list(rewards)
        self.seen: list[tuple[str, str, bool]] = []

    async def grade(
        self,
        *,
        prompt: str,
        completion: str,
        truncated: bool,
        prompt_ids: tuple[int, ...] = (),
        completion_ids: tuple[int, ...] = (),
    ) -> types.Verdict:
        self.seen.append((prompt, completion, truncated))
        return makers.make_verdict(self.rewards[len(self.seen) - 1])
