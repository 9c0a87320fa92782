"""Options of rewards, and packages of their programs: a wrong one is refused before anything starts."""

import sys
from collections.abc import Iterator

from rljob_api import reward_options, suites
from rljob_api.manifest.job import JobSpec
from rljob_api.manifest.verifier import PROGRAM_REWARDS
from rljob_api.messages import refuse

_OURS = "rljob"


def options_exist(spec: JobSpec) -> Iterator[str]:
    """Every key and value of a reward's config is one that its type reads."""
    for path, _, reward in suites.rewards(spec):
        for option, value, reason in reward_options.problems(reward.type, reward.config):
            yield refuse(f"{path}.config.{option}", value, reason)


def packages_have_a_use(spec: JobSpec) -> Iterator[str]:
    """Packages are for programs; each is named once, and is neither Python's own nor ours."""
    for path, _, reward in suites.rewards(spec):
        if reward.packages and reward.type not in PROGRAM_REWARDS:
            types = ", ".join(PROGRAM_REWARDS)
            yield refuse(f"{path}.packages", list(reward.packages), f"{reward.type} runs no program; it is for {types}")
            continue
        for index, name in enumerate(reward.packages):
            if reason := _useless(name, reward.packages[:index]):
                yield refuse(f"{path}.packages[{index}]", name, reason)


def _useless(name: str, before: tuple[str, ...]) -> str:
    first = name.partition(".")[0]
    if name in before:
        return "it stands in the list before: leave it out"
    if first in sys.stdlib_module_names:
        return "it is a part of Python, which every program may import: leave it out"
    if first.startswith(_OURS):
        return "it is the verifier's own code, which no program may read"
    return ""
