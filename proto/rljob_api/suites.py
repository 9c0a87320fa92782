"""What training and each evaluation suite are asked and graded with: a suite has training's, or its own. Pure."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rljob_api import enums, plugins
from rljob_api.manifest.data import DataSourceSpec, SuiteSpec
from rljob_api.manifest.reward_options import JUDGE, JudgeOptions
from rljob_api.manifest.verifier import RewardSpec

if TYPE_CHECKING:
    from rljob_api.manifest.job import JobSpec


def sources(spec: "JobSpec") -> Iterator[tuple[str, DataSourceSpec]]:
    """Yield path and value of every source of records: training's first."""
    for index, source in enumerate(spec.data.train):
        yield f"data.train[{index}]", source
    for index, suite in enumerate(spec.evaluation.suites):
        yield f"evaluation.suites[{index}]", suite


def template(spec: "JobSpec", suite: SuiteSpec) -> str:
    return suite.template or spec.data.template


def templates(spec: "JobSpec") -> Iterator[tuple[str, str]]:
    """Yield path and value of every template that is written or defaulted: training's first."""
    yield "data.template", spec.data.template
    for index, suite in enumerate(spec.evaluation.suites):
        if suite.template is not None:
            yield f"evaluation.suites[{index}].template", suite.template


def rewards(spec: "JobSpec") -> Iterator[tuple[str, str, RewardSpec]]:
    """Yield path, suite and value of every reward: training's first, whose suite is ""."""
    for index, reward in enumerate(spec.verifier.rewards):
        yield f"verifier.rewards[{index}]", "", reward
    for number, suite in enumerate(spec.evaluation.suites):
        for index, reward in enumerate(suite.rewards or ()):
            yield f"evaluation.suites[{number}].rewards[{index}]", suite.name, reward


def custom_types(spec: "JobSpec") -> Iterator[tuple[str, str]]:
    """Yield path and value of every field that may name a class or function of the user's."""
    if not plugins.plugin_name(spec.workflow.type):
        yield "workflow.type", spec.workflow.type
    yield from templates(spec)
    if (predicate := spec.data.filter_groups.predicate) is not None:
        yield "data.filterGroups.predicate", predicate
    for path, _, reward in rewards(spec):
        if not plugins.plugin_name(reward.type):
            yield f"{path}.type", reward.type


def graded_by(spec: "JobSpec", suite: str) -> tuple[RewardSpec, ...]:
    """Return the rewards that grade the answers of a suite, "" for training: its own, else training's."""
    own = next((each.rewards for each in spec.evaluation.suites if each.name == suite), None)
    return own or spec.verifier.rewards


def judges(spec: "JobSpec") -> dict[str, JudgeOptions]:
    """Return the options of every reward that a language model gives, by the reward's path."""
    return {
        path: JudgeOptions.model_validate(reward.config) for path, _, reward in rewards(spec) if reward.type == JUDGE
    }


def roles(spec: "JobSpec") -> tuple[enums.Role, ...]:
    """Return the roles that a job has: a judge where a reward asks one, an environment where its episodes have a shell,
    agents where the job starts them.
    """
    return (*programs(spec), *([] if spec.agents is None else [enums.Role.AGENTS]))


def programs(spec: "JobSpec") -> tuple[enums.Role, ...]:
    """Return the roles whose programs are ours: they read a config, have a certificate and serve their health."""
    judged = any(reward.type == JUDGE for _, _, reward in rewards(spec))
    some = {enums.Role.JUDGE: judged, enums.Role.ENVIRONMENT: spec.environment is not None}
    return (*enums.STANDARD_ROLES, *(role for role, is_there in some.items() if is_there))


def judge_calls(spec: "JobSpec") -> Iterator[str]:
    """Yield a sentence for each reward of training that a judge gives: how often a step calls it at most."""
    groups, size = spec.algorithm.prompts_per_step, spec.algorithm.group_size
    for reward in spec.verifier.rewards:
        if reward.type != JUDGE:
            continue
        options = JudgeOptions.model_validate(reward.config)
        calls = groups * options.most_calls(size)
        tokens = "" if options.form == "score" else f" and {calls * options.max_tokens} completion tokens"
        twice = "" if options.form == "score" else "; twice that if no first reply has a verdict"
        model = options.model or (spec.judge.model if spec.judge else "")
        yield (
            f"{reward.name}: a step of {groups} groups of {size} takes at most {calls} calls of"
            f" {model}{tokens}{twice}; groups that are filtered or too old, and calls that fail, come on top"
        )


def num_environments(spec: "JobSpec") -> int:
    """Return how many environments a job has: none where its episodes have no shell."""
    return 0 if spec.environment is None else spec.environment.replicas


def places(spec: "JobSpec") -> Iterator[str]:
    """Yield a sentence on how many episodes may work with a shell at once, for a job whose episodes have one."""
    environment = spec.environment
    if environment is None:
        return
    at_once, in_flight = environment.replicas * environment.places, spec.async_.max_inflight_groups
    yield (
        f"{at_once} episodes have a place at once, {environment.places} in each of {environment.replicas}; of the"
        f" {in_flight * spec.algorithm.group_size} in flight at most the others wait with their first command"
    )
