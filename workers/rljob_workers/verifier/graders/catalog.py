"""Grader types by name. A type is a function from its config to a Grader; an unknown name is refused."""

import functools
import importlib
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from rljob_api import errors, roles
from rljob_api.manifest.verifier import PROGRAM_REWARDS, REPOSITORY_TESTS
from rljob_workers.verifier.graders import (
    areal_math,
    code,
    custom,
    exact,
    gsm8k,
    gsm8k_verify,
    gym,
    maths,
    oat,
    protocol,
    repository,
)
from rljob_workers.verifier.sandbox import programs
from rljob_workers.verifier.sandbox import repository as suites

# Graders of our own reproduce nothing.
_OWN = frozenset(("code", "exact", "math", "reasoning_gym", REPOSITORY_TESTS))
Factory = Callable[[roles.GraderConfig], protocol.Grader]

BUILT_IN: Mapping[str, Factory] = {
    "answer_tag": oat.OatGrader,
    "areal-code": code.CodeGrader,
    "areal-math": areal_math.ArealMathGrader,
    "boxed": oat.OatGrader,
    "clevr_count_70k": gsm8k.CountGrader,
    "code": code.CodeGrader,
    "exact": exact.ExactGrader,
    "gsm8k": gsm8k_verify.gsm8k_grader,
    "math": maths.MathGrader,
    "reasoning_gym": gym.GymGrader,
    REPOSITORY_TESTS: repository.RepositoryGrader,
}


class RunFn(Protocol):
    """Runs a program, or the tests of a repository, once."""

    def __call__(
        self, program: programs.Program | suites.Suite, *, stdin: bytes, limits: programs.Limits
    ) -> programs.Run:
        """Return how it ended. Raises CannotRunError."""


def running_by(run: RunFn, *, scratch: pathlib.Path | None) -> dict[str, Factory]:
    """Return the built-in factories; programs of the policy are run by `run`, in folders below `scratch` if in any."""
    of_programs = {name: functools.partial(code.CodeGrader, run=run) for name in PROGRAM_REWARDS}
    of_repositories = functools.partial(repository.RepositoryGrader, run=run, scratch=scratch)
    return {**BUILT_IN, **of_programs, REPOSITORY_TESTS: of_repositories}


def build(rewards: Sequence[roles.GraderConfig], catalog: Mapping[str, Factory]) -> tuple[protocol.Grader, ...]:
    """Return one grader per reward, in order. Raises ManifestError for an unknown type, mode or option."""
    return tuple(_build_one(reward, catalog) for reward in rewards)


def _build_one(reward: roles.GraderConfig, catalog: Mapping[str, Factory]) -> protocol.Grader:
    if ":" in reward.type:
        if reward.mode != "strict":
            raise errors.ManifestError(f"reward {reward.name!r}: {reward.type} is one's own and has no compat mode")
        return custom.CustomGrader(reward)
    if reward.type not in catalog:
        raise errors.ManifestError(
            f"reward {reward.name!r} has type {reward.type!r}; known: {', '.join(sorted(catalog))}"
        )
    if reward.mode != "strict" and reward.type in _OWN:
        raise errors.ManifestError(
            f"reward {reward.name!r}: type {reward.type} reproduces nothing and has no compat mode"
        )
    return catalog[reward.type](reward)


def imported(entries: Sequence[str]) -> dict[str, Factory]:
    """Return the factories of `name=module:attribute` entries. Raises ManifestError if one has another form, or a name
    that is taken: two graders of one name would judge as whichever came last.
    """
    found: dict[str, Factory] = {}
    for entry in entries:
        name, equals, path = entry.partition("=")
        module, colon, attribute = path.partition(":")
        if not (equals and colon and name and module and attribute):
            raise errors.ManifestError(f"grader {entry!r} must read name=module:attribute")
        if name in BUILT_IN or name in found:
            raise errors.ManifestError(f"grader {entry!r}: the name {name} is taken; give this one another name")
        found[name] = getattr(importlib.import_module(module), attribute)
    return found
