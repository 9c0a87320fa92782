"""What a suite has of its own: template with its stop rules, rewards; and what it has from training."""

from collections.abc import Callable

import pytest

from rljob_api import resolve, suites
from rljob_api.manifest.job import RLJob
from rljob_api.validation import rules

MakeJob = Callable[..., RLJob]
PLAIN = {"name": "plain", "path": "a.jsonl"}
OWN = {
    "name": "own",
    "path": "b.jsonl",
    "template": "r1",
    "rewards": [{"name": "tag", "type": "answer_tag", "config": {"verifierVersion": "math_verify"}}],
}


def resolved_job(job: RLJob) -> resolve.ResolvedJob:
    placement = resolve.local_placement(
        job, uid="u", run_dir="/r", base_dir="/manifest", cache_dir="/c", ports=range(20), num_cores=2
    )
    return resolve.resolve(job, placement)


@pytest.mark.covers("workflows 11")
def test_a_suite_has_the_template_of_training_unless_it_names_one(make_job: MakeJob) -> None:
    spec = make_job({"data.template": "qwen_math", "evaluation.suites": [PLAIN, OWN]}).spec
    assert [suites.template(spec, suite) for suite in spec.evaluation.suites] == ["qwen_math", "r1"]
    assert list(suites.templates(spec)) == [("data.template", "qwen_math"), ("evaluation.suites[1].template", "r1")]


def test_verifiers_are_told_which_suite_a_reward_grades(make_job: MakeJob) -> None:
    job = make_job({"verifier.rewards": [{"name": "a", "type": "exact"}], "evaluation.suites": [PLAIN, OWN]})
    (verifier, *_) = resolved_job(job).verifiers
    assert [(reward.name, reward.suite) for reward in verifier.rewards] == [("a", ""), ("tag", "own")]


def test_time_for_verdicts_covers_the_slowest_reward_of_a_suite(make_job: MakeJob) -> None:
    own = {**PLAIN, "rewards": [{"name": "slow", "type": "areal-math", "mode": "Compat"}]}
    quick, slow = (
        resolved_job(make_job({"verifier.rewards": [{"name": "a", "type": "boxed"}], "evaluation.suites": [suite]}))
        for suite in (PLAIN, own)
    )
    assert slow.rollouts[0].verify_timeout_s > quick.rollouts[0].verify_timeout_s


@pytest.mark.covers("workflows 11")
def test_an_r1_suite_stops_at_its_closing_tag_and_the_others_stop_as_training_does(make_job: MakeJob) -> None:
    changes = {"data.template": "raw", "rollout.sampling.stop": ["\n"], "evaluation.suites": [PLAIN, OWN]}
    coordinator = resolved_job(make_job(changes)).coordinator
    plain, own = coordinator.sampling_of("plain"), coordinator.sampling_of("own")
    assert (plain.stop, plain.include_stop, plain.greedy) == (("\n",), False, True)
    assert (own.stop, own.include_stop, own.greedy) == (("</answer>",), True, True)


def test_a_suite_without_r1_does_not_stop_at_the_tag_of_training(make_job: MakeJob) -> None:
    changes = {"data.template": "r1", "evaluation.suites": [{**PLAIN, "template": "chat"}]}
    sampling = resolved_job(make_job(changes)).coordinator.sampling_of("plain")
    assert (sampling.stop, sampling.include_stop) == ((), False)


def test_a_file_may_be_named_by_a_suites_template_or_reward_alone(make_job: MakeJob) -> None:
    for own in ({"template": "mine:ask"}, {"rewards": [{"name": "r", "type": "mine:reward"}]}):
        job = make_job({"workflow.code": {"path": "code/mine.py"}, "evaluation.suites": [{**PLAIN, **own}]})
        assert rules.problems(job.spec) == []


@pytest.mark.parametrize(
    ("changes", "begin"),
    [
        (
            {"evaluation.suites": [{**PLAIN, "rewards": [{"name": "a", "type": "exact", "mode": "Compat"}]}]},
            "spec.evaluation.suites[0].rewards[0].mode is 'Compat'",
        ),
        (
            {"evaluation.suites": [{**PLAIN, "rewards": [{"name": "a", "type": "boxed", "config": {"x": 1}}]}]},
            "spec.evaluation.suites[0].rewards[0].config.x is 1, but boxed has no such option",
        ),
        (
            {"evaluation.suites": [{**PLAIN, "rewards": [{"name": "a", "type": "exact"}] * 2}]},
            "spec.evaluation.suites[0].rewards is 'a', but that name occurs 2 times",
        ),
        (
            {"evaluation.suites": [OWN], "evaluation.sampling.stop": ["x"]},
            "spec.evaluation.sampling.stop is [\"x\"], but evaluation.suites[0].template is 'r1'",
        ),
    ],
)
def test_what_a_suite_may_not_ask_for_is_refused_by_path(
    changes: dict[str, object], begin: str, make_job: MakeJob
) -> None:
    (sentence,) = rules.problems(make_job(changes).spec)
    assert sentence.startswith(begin)


def test_stops_that_one_suite_reads_are_not_refused_because_another_ignores_them(make_job: MakeJob) -> None:
    job = make_job({"evaluation.suites": [PLAIN, OWN], "evaluation.sampling.stop": ["x"]})
    assert rules.problems(job.spec) == []


def test_a_suite_whose_grader_its_template_does_not_ask_for_is_warned_of(make_job: MakeJob) -> None:
    boxed = {**PLAIN, "template": "r1", "rewards": [{"name": "a", "type": "boxed"}]}
    (sentence,) = rules.warnings(make_job({"evaluation.suites": [boxed]}).spec)
    assert sentence.startswith("spec.evaluation.suites[0].template is 'r1', but reward a is of type boxed")
