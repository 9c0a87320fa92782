"""Options of rewards: a wrong one is refused before anything starts."""

from collections.abc import Iterator

from rljob_api import reward_options
from rljob_api.job import JobSpec
from rljob_api.rules.words import refuse


def options_exist(spec: JobSpec) -> Iterator[str]:
    """Every key and value of a reward's config is one that its type reads."""
    for index, reward in enumerate(spec.verifier.rewards):
        for path, value, reason in reward_options.problems(reward.type, reward.config):
            yield refuse(f"verifier.rewards[{index}].config.{path}", value, reason)
