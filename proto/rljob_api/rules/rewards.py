"""Options of rewards: a wrong one is refused before anything starts."""

from collections.abc import Iterator

from rljob_api import reward_options, suites
from rljob_api.job import JobSpec
from rljob_api.rules.words import refuse


def options_exist(spec: JobSpec) -> Iterator[str]:
    """Every key and value of a reward's config is one that its type reads."""
    for path, _, reward in suites.rewards(spec):
        for option, value, reason in reward_options.problems(reward.type, reward.config):
            yield refuse(f"{path}.config.{option}", value, reason)
