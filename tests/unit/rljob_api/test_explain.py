from collections.abc import Callable

from rljob_api import resolve
from rljob_api.manifest.job import RLJob
from rljob_api.validation import explain
from rljob_api.validation.explain import Row


def explained(job: RLJob) -> dict[str, Row]:
    placement = resolve.local_placement(
        job, uid="u", run_dir="/r", base_dir="/b", cache_dir="/c", ports=range(20), num_cores=2
    )
    rows = explain.explain(job, resolve.resolve(job, placement))
    assert len({row.path for row in rows}) == len(rows)
    return {row.path: row for row in rows}


def test_written_default_and_derived_values_are_told_apart(make_job: Callable[..., RLJob]) -> None:
    rows = explained(make_job({"algorithm.promptsPerStep": 4}))
    assert rows["spec.algorithm.promptsPerStep"] == Row(path="spec.algorithm.promptsPerStep", value="4", why="written")
    assert rows["spec.algorithm.groupSize"] == Row(path="spec.algorithm.groupSize", value="8", why="default")
    assert rows["spec.async.maxInflightGroups"] == Row(
        path="spec.async.maxInflightGroups", value="8", why="(maxOffPolicySteps + 1) x promptsPerStep"
    )
    assert rows["spec.algorithm.normalizeReward.std"].value == "'Group'"


def test_value_that_was_written_is_not_called_derived(make_job: Callable[..., RLJob]) -> None:
    rows = explained(make_job({"algorithm.loss.clipHigh": "0.28"}))
    assert (rows["spec.algorithm.loss.clipHigh"].value, rows["spec.algorithm.loss.clipHigh"].why) == (
        "'0.28'",
        "written",
    )


def test_value_without_effect_is_left_out(make_job: Callable[..., RLJob]) -> None:
    rows = explained(make_job())
    assert "spec.algorithm.loss.constantDenominator" not in rows
    assert "spec.algorithm.loss.dualClip" not in rows
    assert not [path for path in rows if path.startswith(("spec.algorithm.gae", "spec.algorithm.normalizeAdvantage"))]


def test_what_an_estimator_makes_of_rewards_over_time_is_shown(make_job: Callable[..., RLJob]) -> None:
    rows = explained(
        make_job({"algorithm.advantageEstimator": "ppo", "algorithm.critic": {}, "algorithm.gae": {"lambda": "0.95"}})
    )
    assert (rows["spec.algorithm.gae.lambda"].value, rows["spec.algorithm.gae.lambda"].why) == ("'0.95'", "written")
    assert (rows["spec.algorithm.gae.gamma"].value, rows["spec.algorithm.gae.unit"].value) == ("'1.0'", "'Token'")
    assert rows["spec.algorithm.gae.bootstrapTruncated"].value == "true"
    assert rows["spec.algorithm.normalizeAdvantage.std"].value == "'Batch'"


def test_time_limits_that_nothing_sets_are_shown_by_grader(make_job: Callable[..., RLJob]) -> None:
    rewards = [{"name": "box", "type": "boxed"}, {"name": "same", "type": "exact"}]
    row = explained(make_job({"verifier.rewards": rewards}))["spec.verifier.timeoutSeconds"]
    assert (row.value, row.why) == ('{"box": 1.0, "same": 10.0}', "by grader")
    row = explained(make_job({"verifier.timeoutSeconds": 3}))["spec.verifier.timeoutSeconds"]
    assert (row.value, row.why) == ("3", "written")


def test_a_suite_shows_what_it_has_of_its_own_and_what_of_training(make_job: Callable[..., RLJob]) -> None:
    own = {"name": "b", "path": "b.jsonl", "template": "r1", "rewards": [{"name": "tag", "type": "answer_tag"}]}
    rows = explained(
        make_job(
            {
                "data.template": "raw",
                "verifier.rewards": [{"name": "box", "type": "boxed"}],
                "evaluation.suites": [{"name": "a", "path": "a.jsonl"}, own],
            }
        )
    )
    path = "spec.evaluation.suites"
    assert (rows[f"{path}[0].template"].value, rows[f"{path}[0].template"].why) == ("'raw'", "data.template")
    assert (rows[f"{path}[0].rewards"].value, rows[f"{path}[0].rewards"].why) == ('["box"]', "verifier.rewards")
    assert (rows[f"{path}[1].template"].value, rows[f"{path}[1].template"].why) == ("'r1'", "written")
    assert rows[f"{path}[1].rewards[0].type"].value == "'answer_tag'"


def test_bounds_from_the_workflow_are_shown_where_the_filter_reads_them(make_job: Callable[..., RLJob]) -> None:
    config = {"shaping": "signed", "successRateLowerBound": 0.1}
    rows = explained(make_job({"workflow": {"type": "math_code_single_step", "config": config}}))
    row = rows["spec.data.filterGroups.lower"]
    assert (row.value, row.why) == ("'0.1'", "workflow.config.successRateLowerBound")
    assert "spec.data.filterGroups.upper" not in rows
