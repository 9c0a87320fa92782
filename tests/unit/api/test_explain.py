from collections.abc import Callable

from rljob_api import resolve
from rljob_api.explain import Row
from rljob_api.job import RLJob


def explained(job: RLJob) -> dict[str, Row]:
    placement = resolve.local_placement(
        job, uid="u", run_dir="/r", base_dir="/b", cache_dir="/c", ports=range(20), num_cores=2
    )
    rows = resolve.explain(job, resolve.resolve(job, placement))
    assert len({row.path for row in rows}) == len(rows)
    return {row.path: row for row in rows}


def test_written_default_and_derived_values_are_told_apart(make_job: Callable[..., RLJob]) -> None:
    rows = explained(make_job({"algorithm.promptsPerStep": 4}))
    assert rows["spec.algorithm.promptsPerStep"] == Row(path="spec.algorithm.promptsPerStep", value="4", why="written")
    assert rows["spec.algorithm.groupSize"] == Row(path="spec.algorithm.groupSize", value="8", why="default")
    assert rows["spec.async.maxInflightGroups"] == Row(
        path="spec.async.maxInflightGroups", value="8", why="(maxOffPolicySteps + 1) x promptsPerStep"
    )
    assert rows["spec.algorithm.normalizeReward.std"].value == "'group'"


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
