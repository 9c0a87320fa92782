import dataclasses
import itertools
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_api import types
from rljob_api.manifest.data import EvaluationSpec, SuiteSpec
from rljob_api.wire import codec
from rljob_testing import makers
from rljob_testing.sections import section
from rljob_workers.coordinator.ledger import evaluations
from rljob_workers.coordinator.reporting import evaluation
from rljob_workers.data import records

SUITE = section(SuiteSpec, name="s", path="/x.jsonl")


def config(*, every: int = 20, before: bool = True, suites: bool = True) -> EvaluationSpec:
    chosen = (SUITE,) if suites else ()
    return section(EvaluationSpec, every_steps=every, before_training=before, suites=chosen)


@pytest.mark.covers("algorithms 9", "workflows 11")
@pytest.mark.parametrize(
    ("after", "step", "expected"),
    [
        pytest.param(19, 20, True, id="every 20 steps"),
        pytest.param(18, 19, False, id="not in between"),
        pytest.param(18, 22, True, id="a publish that skips the step makes it due"),
        pytest.param(99, 100, True, id="the last step"),
        pytest.param(0, 0, False, id="step 0 is evaluated before training, not at a publish"),
        pytest.param(35, 30, False, id="a trainer back at step 30 evaluates at 40 again"),
        pytest.param(45, 40, True, id="a trainer back at step 40: the ledger knows whether it was done"),
    ],
)
def test_a_publish_makes_an_evaluation_due(after: int, step: int, expected: bool) -> None:
    assert evaluation.is_due(config(), after_step=after, step=step, last_step=100) is expected


def test_the_first_version_of_a_fork_is_evaluated_when_it_is_published() -> None:
    def due(before: bool) -> bool:
        return evaluation.is_due(config(before=before), after_step=0, step=0, last_step=100, is_first=True)

    assert (due(True), due(False)) == (True, False)


def test_what_supervised_steps_led_to_is_evaluated() -> None:
    due = [
        step
        for step in range(2, 101, 2)
        if evaluation.is_due(config(every=0), after_step=step - 2, step=step, last_step=100, sft_steps=7)
    ]
    assert due == [8, 100], "the first version that has all of them"


def test_every_0_evaluates_at_the_end_only() -> None:
    due = [
        step
        for step in range(1, 101)
        if evaluation.is_due(config(every=0), after_step=step - 1, step=step, last_step=100)
    ]
    assert due == [100]


def test_nothing_is_due_without_suites() -> None:
    assert not evaluation.is_due(config(suites=False), after_step=99, step=100, last_step=100)
    assert not evaluation.due_before_training(config(suites=False))
    assert evaluation.due_before_training(config())
    assert not evaluation.due_before_training(config(before=False))


def item(index: int, rewards: tuple[float, ...] | None) -> evaluations.Item:
    payload = None if rewards is None else codec.encode(makers.make_group(rewards=rewards, versions=3))
    return evaluations.Item(suite="s", index=index, prompt_id=f"e{index}", payload=payload)


@pytest.mark.covers("workflows 11")
def test_accuracy_is_the_share_of_samples_with_a_score_of_exactly_1() -> None:
    found = evaluation.suite_result([item(0, (1.0, 0.999)), item(1, (0.0, 0.0))], elapsed_s=2.0)
    assert (found["accuracy"], found["pass_at_k"], found["n"], found["samples"]) == (0.25, 0.5, 2, 4)
    assert found["score"] == pytest.approx(1.999 / 4)
    assert found["rm_win_rate"] == 0.5
    assert found["response_tokens"] == 2.0


@pytest.mark.covers("workflows 11")
def test_a_suite_with_missing_items_has_no_metrics_never_a_zero() -> None:
    found = evaluation.suite_result([item(0, (1.0,)), item(1, None)], elapsed_s=2.0)
    assert (found["accuracy"], found["missing"]) == (None, 1)
    assert "score" not in found


@pytest.mark.covers("workflows 11")
def test_with_a_row_per_turn_the_first_right_turn_decides_and_all_tokens_count() -> None:
    rows = [makers.make_trajectory(reward=reward, truncated=cut) for reward, cut in ((0.0, True), (1.0, False))]
    later = dataclasses.replace(rows[1], turn_ids=types.ints([-1, -1, -1, 1, 1]))
    payload = codec.encode(dataclasses.replace(makers.make_group(), trajectories=(rows[0], later)))
    found = evaluation.suite_result(
        [evaluations.Item(suite="s", index=0, prompt_id="e0", payload=payload)], elapsed_s=1.0
    )
    assert (found["accuracy"], found["samples"], found["response_tokens"], found["truncated"]) == (1.0, 1, 4, 0)


@pytest.mark.covers("workflows 11")
def test_the_average_over_suites_is_unweighted() -> None:
    def result(accuracy: float, n: int) -> dict[str, object]:
        return {"accuracy": accuracy, "score": accuracy, "response_tokens": 1.0, "n": n}

    assert evaluation.average({"a": result(0.2, 30), "b": result(0.4, 83)})["accuracy"] == pytest.approx(0.3)
    published = {"aime": 20.0, "amc": 53.0, "math": 74.2, "minerva": 25.7, "olympiad_bench": 37.6}
    found = evaluation.average({name: result(accuracy, 1) for name, accuracy in published.items()})
    assert found["accuracy"] == pytest.approx(42.1)


PUBLISHED_COUNTS = {"aime": 30, "amc": 83, "math": 500, "minerva": 272, "olympiad_bench": 675}
PUBLISHED_NAMES = {
    "accuracy", "score", "rm_win_rate", "eval_count", "elapse", "response_tok_len", "formatted", "truncated",
}  # fmt: skip


@pytest.mark.covers("workflows 11")
def test_the_published_suites_have_their_names_and_counts_and_an_unweighted_average() -> None:
    items = {name: [item(index, (float(index == 0),)) for index in range(n)] for name, n in PUBLISHED_COUNTS.items()}
    found = evaluation.metrics({name: evaluation.suite_result(chosen, elapsed_s=2.0) for name, chosen in items.items()})
    suites = {name: {key.split("/", 2)[2] for key in found if key.startswith(f"eval/{name}/")} for name in items}
    assert set(map(frozenset, suites.values())) == {frozenset(PUBLISHED_NAMES)}
    assert {name: found[f"eval/{name}/eval_count"] for name in items} == PUBLISHED_COUNTS
    assert sum(PUBLISHED_COUNTS.values()) == 1560
    # One right answer each; aime moves in steps of 1/30.
    assert found["eval/aime/accuracy"] == pytest.approx(1 / 30)
    assert found["eval/average/accuracy"] == pytest.approx(sum(1 / n for n in PUBLISHED_COUNTS.values()) / 5)
    assert {key for key in found if key.startswith("eval/average/")} == {
        "eval/average/accuracy", "eval/average/score", "eval/average/response_tok_len",
    }  # fmt: skip


@pytest.mark.covers("workflows 11")
def test_several_samples_a_prompt_add_avg_and_pass_at_k() -> None:
    result = evaluation.suite_result([item(0, (1.0, 0.0)), item(1, (0.0, 0.0))], elapsed_s=2.0)
    found = evaluation.metrics({"s": result})
    assert (found["eval/s/avg@2"], found["eval/s/pass@2"], found["eval/s/accuracy"]) == (0.25, 0.5, 0.25)


@given(rights=st.lists(st.lists(st.booleans(), min_size=4, max_size=4), min_size=1, max_size=3))
def test_pass_at_k_is_the_share_of_choices_of_k_samples_that_hold_a_right_one(rights: list[list[bool]]) -> None:
    items = [item(index, tuple(map(float, group))) for index, group in enumerate(rights)]
    found = evaluation.metrics({"s": evaluation.suite_result(items, elapsed_s=2.0)})
    for k in (1, 2, 3, 4):
        by_hand = [statistics.fmean(map(any, itertools.combinations(group, k))) for group in rights]
        assert found[f"eval/s/pass@{k}"] == pytest.approx(statistics.fmean(by_hand))
    assert "eval/s/pass@5" not in found


def test_pass_at_k_counts_every_sample_of_a_prompt_that_has_more_than_the_others() -> None:
    found = evaluation.suite_result([item(0, (1.0, 0.0)), item(1, (0.0, 0.0, 1.0))], elapsed_s=2.0)
    assert found["pass_at_k"] == 1.0


def test_a_result_of_an_earlier_release_has_pass_at_all_its_samples_alone() -> None:
    result = evaluation.suite_result([item(0, (1.0, 0.0, 0.0))], elapsed_s=2.0)
    del result["pass_at"]
    found = evaluation.metrics({"s": result})
    assert [key for key in found if "pass@" in key] == ["eval/s/pass@3"]


@pytest.mark.covers("workflows 11")
def test_a_suite_with_missing_items_has_no_metric_and_no_part_in_the_average() -> None:
    whole, short = (evaluation.suite_result(items, elapsed_s=1.0) for items in ([item(0, (1.0,))], [item(0, None)]))
    found = evaluation.metrics({"whole": whole, "short": short})
    assert not [key for key in found if "short" in key]
    assert found["eval/average/accuracy"] == 1.0


@pytest.mark.covers("workflows 11")
def test_responses_name_question_prompt_output_reference_and_version() -> None:
    record = types.PromptRecord(
        prompt_id="e0", source="s", columns={"prompt": "1+1=", "problem": "1+1=", "answer": "2", "id": "e0"}
    )
    source = records.LoadedSource(
        name="s", weight=1.0, where="x", records=(record,), lines=(1,), prompt_column="problem"
    )
    suite = evaluation.Suite(source=source, samples_per_prompt=1)
    group = makers.make_group(rewards=(1.0,), versions=3)
    row = dataclasses.replace(group.trajectories[0], prompt_text="Q: 1+1=", output_text="2<|im_end|>")
    payload = codec.encode(dataclasses.replace(group, trajectories=(row,)))
    given = evaluations.Item(suite="s", index=0, prompt_id="e0", payload=payload)
    (line,) = evaluation.responses(suite, [given], version=3, generator="run")
    assert line == {
        "id": "e0", "problem": "1+1=", "format_problem": "Q: 1+1=", "output": "2<|im_end|>", "extracted": "",
        "scores": 1.0, "reference": "2", "generator": "run", "formatted": False, "reason": "ok", "truncated": False,
        "response_tok_len": 2, "version": 3,
    }  # fmt: skip


def test_the_prompts_of_an_evaluation_stand_in_file_order() -> None:
    record = types.PromptRecord(prompt_id="x", source="s", columns={})
    loaded = [
        evaluation.Suite(
            source=records.LoadedSource(
                name=name, weight=1.0, where=name,
                records=tuple(dataclasses.replace(record, prompt_id=f"{name}{i}") for i in range(2)), lines=(1, 2),
            ),
            samples_per_prompt=1,
        )
        for name in ("b", "a")
    ]  # fmt: skip
    assert [ref.prompt_id for ref in evaluation.refs(loaded, step=4)] == ["b0", "b1", "a0", "a1"]


def servers(*versions: int, holding: tuple[int, ...] = ()) -> list[evaluation.Server]:
    return [
        evaluation.Server(token=f"t{place}", pod=f"rollout-{place}", version=version, holds=place in holding)
        for place, version in enumerate(versions)
    ]


@pytest.mark.covers("workflows 11")
@pytest.mark.parametrize(
    ("found", "waiting", "ended", "expected"),
    [
        pytest.param(servers(7, 7, 7, 7), 1, False, {"t0"}, id="a quarter"),
        pytest.param(servers(*[7] * 9), 1, False, {"t0", "t1", "t2"}, id="rounded up"),
        pytest.param(servers(7), 1, False, {"t0"}, id="one at least"),
        pytest.param(servers(7, 7, 7, 7), 3, False, {"t0", "t1", "t2"}, id="more where evaluations pile up"),
        pytest.param(servers(7, 7, 7, 7), 9, False, {"t0", "t1", "t2", "t3"}, id="and at most all"),
        pytest.param(servers(7, 7, 7, 7), 1, True, {"t0", "t1", "t2", "t3"}, id="all after the last step"),
        pytest.param(servers(8, 8, 7, 8), 1, False, {"t2"}, id="who serves the version stays"),
        pytest.param(servers(8, 6, 8, 8), 1, False, {"t1"}, id="rather forward than back"),
        pytest.param(servers(8, 8), 1, False, {"t0"}, id="back where no one else is left"),
        pytest.param(servers(7, 7, 7, 7, holding=(2, 3)), 1, False, {"t2", "t3"}, id="who holds groups stays"),
        pytest.param([], 1, False, set(), id="nobody"),
    ],
)
def test_a_part_of_the_rollouts_evaluates(
    found: list[evaluation.Server], waiting: int, ended: bool, expected: set[str]
) -> None:
    chosen = evaluation.members(found, version=7, fraction=0.25, waiting=waiting, training_ended=ended)
    assert chosen == expected


@pytest.mark.parametrize("fraction", [0.01, 0.5, 1.0])
def test_a_fleet_of_any_size_evaluates_with_its_share(fraction: float) -> None:
    for number in (1, 8, 800):
        chosen = evaluation.members(
            servers(*[7] * number), version=7, fraction=fraction, waiting=1, training_ended=False
        )
        assert len(chosen) == max(1, -(-number * fraction // 1))
