"""What training and each evaluation suite are asked and graded with: a suite has training's, or its own. Pure."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rljob_api import plugins
from rljob_api.manifest.data import DataSourceSpec, SuiteSpec
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
