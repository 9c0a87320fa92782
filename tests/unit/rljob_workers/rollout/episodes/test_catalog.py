import pytest

from rljob_api import errors
from rljob_testing import rollout as fakes
from rljob_workers.rollout.episodes import legacy_turns, multi_turn, protocols, registry, rlvr


def make(workflow: str, config: dict[str, object]) -> protocols.RolloutCollector:
    return registry.make_collector(
        workflow=workflow, config=config, tokens=fakes.FakeTokens(), template="raw", max_model_len=64
    )


def test_rlvr_is_the_single_turn_collector() -> None:
    assert isinstance(make("rlvr", {}), rlvr.RlvrCollector)


@pytest.mark.covers("workflows 2.1")
def test_an_unknown_workflow_names_field_value_and_choice() -> None:
    with pytest.raises(
        errors.ManifestError,
        match="spec.workflow.type is 'tree_search', but must be one of rlvr, math_code_single_step",
    ):
        make("tree_search", {})


@pytest.mark.covers("workflows 2.1")
def test_every_unknown_option_is_named() -> None:
    with pytest.raises(errors.ManifestError) as refused:
        make("rlvr", {"numTurns": 3, "layout": "concat"})
    assert [problem.split(" ", 1)[0].removesuffix(",") for problem in refused.value.problems] == [
        "spec.workflow.config.numTurns",
        "spec.workflow.config.layout",
    ]


@pytest.mark.covers("workflows 5")
def test_multi_turn_math_is_made_with_its_defaults() -> None:
    assert isinstance(make("multi_turn_math", {}), multi_turn.MultiTurnCollector)


def test_layout_legacy_makes_a_row_per_turn() -> None:
    assert isinstance(make("multi_turn_math", {"layout": "legacy"}), legacy_turns.LegacyCollector)


@pytest.mark.covers("workflows 2.1")
def test_an_option_cannot_choose_another_workflow() -> None:
    with pytest.raises(errors.ManifestError, match="spec.workflow.config.type does not belong to workflow 'rlvr'"):
        make("rlvr", {"type": "multi_turn_math"})
