"""Graders by reward type: a function from a reward's config to a Grader. An unknown type is refused.

A new built-in grader has an entry in BUILT_IN, and its options in `rljob_api.manifest.reward_options`.
"""

import functools
import importlib
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from rljob_api import errors, plugins, process_config
from rljob_api.manifest import reward_options
from rljob_api.manifest.verifier import FORKED_REWARDS, REPOSITORY_TESTS
from rljob_workers.verifier import sandbox
from rljob_workers.verifier.graders import base, counting, custom, exact, gsm8k, plugin, reasoning_gym
from rljob_workers.verifier.graders.areal import areal_grader
from rljob_workers.verifier.graders.code import code_grader
from rljob_workers.verifier.graders.math import math_grader
from rljob_workers.verifier.graders.oat import oat_grader
from rljob_workers.verifier.graders.repository import repository_grader

Factory = Callable[[process_config.GraderConfig], base.Grader]

BUILT_IN: Mapping[str, Factory] = {
    "answer_tag": oat_grader.OatGrader,
    "areal-code": code_grader.CodeGrader,
    "areal-math": areal_grader.ArealMathGrader,
    "boxed": oat_grader.OatGrader,
    "clevr_count_70k": counting.CountGrader,
    "code": code_grader.CodeGrader,
    "exact": exact.ExactGrader,
    "gsm8k": gsm8k.gsm8k_grader,
    "math": math_grader.MathGrader,
    "reasoning_gym": reasoning_gym.GymGrader,
    REPOSITORY_TESTS: repository_grader.RepositoryGrader,
}


class RunFn(Protocol):
    """Runs a program, or the tests of a repository, once."""

    def __call__(
        self, program: sandbox.Program | sandbox.Suite, *, stdin: bytes, limits: sandbox.Limits
    ) -> sandbox.Run:
        """Raises CannotRunError."""


def running_by(run: RunFn, *, scratch: pathlib.Path | None) -> dict[str, Factory]:
    """Return the built-in factories; programs of the policy are run by `run`, in folders below `scratch` if in any."""
    of_programs = {name: functools.partial(code_grader.CodeGrader, run=run) for name in FORKED_REWARDS}
    of_repositories = functools.partial(repository_grader.RepositoryGrader, run=run, scratch=scratch)
    return {**BUILT_IN, **of_programs, REPOSITORY_TESTS: of_repositories}


def build(rewards: Sequence[process_config.GraderConfig], catalog: Mapping[str, Factory]) -> tuple[base.Grader, ...]:
    """Return one grader per reward, in order. Raises ManifestError for an unknown type, mode or option."""
    return tuple(_build_one(reward, catalog) for reward in rewards)


def _build_one(reward: process_config.GraderConfig, catalog: Mapping[str, Factory]) -> base.Grader:
    kind = reward_options.OPTIONS.get(reward.type)
    if reward.mode != "Strict" and (":" in reward.type or (kind is not None and not kind.reproduces)):
        raise errors.ManifestError(
            f"reward {reward.name!r}: type {reward.type} reproduces no published grader and has no compat mode"
        )
    if plugins.plugin_name(reward.type):
        return plugin.PluginGrader(reward)
    if reward_options.is_function(reward.type):
        return custom.CustomGrader(reward)
    if reward.type not in catalog:
        available = ", ".join(sorted(catalog))
        raise errors.ManifestError(f"reward {reward.name!r}: unknown type {reward.type!r}; expected one of {available}")
    return catalog[reward.type](reward)


def imported(entries: Sequence[str]) -> dict[str, Factory]:
    """Return the factories of `name=module:attribute` entries. Raises ManifestError if one has another form, or a name
    that is taken: two graders of one name would judge as whichever came last.
    """
    factories: dict[str, Factory] = {}
    for entry in entries:
        name, equals, path = entry.partition("=")
        module, colon, attribute = path.partition(":")
        if not (equals and colon and name and module and attribute):
            raise errors.ManifestError(f"grader {entry!r} must read name=module:attribute")
        if name in BUILT_IN or name in factories:
            raise errors.ManifestError(f"grader {entry!r}: the name {name} is taken; give this one another name")
        factories[name] = getattr(importlib.import_module(module), attribute)
    return factories
