"""The look at expressions finds what no process exports: otherwise the tests of rules and boards could not fail."""

import pytest

from rljob_testing import promql

RECORDED = {"rljob:a:share5m": frozenset({"rljob", "rljob_namespace"})}


@pytest.mark.parametrize(
    ("expression", "fault"),
    [
        ("rate(rljob_stepp[5m])", "no process exports rljob_stepp"),
        ("rljob:b:share5m", "no process exports rljob:b:share5m"),
        ("rljob_verify_seconds", "no process exports rljob_verify_seconds"),
        ('rljob_condition{kind="Failed"}', "rljob_condition has no label kind"),
        ('rljob_condition{type="Broken"}', "rljob_condition never has type='Broken'"),
        ('rljob_condition{type=~"Failed|Broken"}', "rljob_condition never has type='Broken'"),
        ('rljob:a:share5m{reward="main"}', "rljob:a:share5m has no label reward"),
        ("sum by (rljob, colour) (rljob_step)", "no series has the label colour"),
    ],
)
def test_fault_is_found(expression: str, fault: str) -> None:
    assert promql.faults(expression, RECORDED) == [fault]


@pytest.mark.parametrize(
    "expression",
    [
        'histogram_quantile(0.95, sum by (rljob, le) (rate(rljob_verify_seconds_bucket{rljob="$rljob"}[5m])))',
        "max by (rljob_namespace, rljob, pod) (rljob_rollout_version_lag)",
        'rljob:a:share5m{rljob_namespace=~"$rljob_namespace"} > 0.5',
        'rljob_eval_score{suite="anything", metric="accuracy"}',
        "vllm:num_requests_running and on (instance) rljob_rollout_serving_version",
    ],
)
def test_what_is_exported_is_no_fault(expression: str) -> None:
    assert promql.faults(expression, RECORDED) == []
