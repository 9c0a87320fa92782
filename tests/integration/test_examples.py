"""The CPU examples as they are in crds/examples, three optimizer steps each: real vLLM, DeepSpeed, verifier, ledger.

What a run must leave behind: dumps (docs/design/workflows.md#s-10), actor metrics (#s-9), evaluation files (#s-11).
"""

import dataclasses
import json
import math
import os
import pathlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from rljob_testing import examples
from rljob_testing.every_example import EVERY_EXAMPLE
from rljob_testing.runs import RunFolder
from rljob_workers.verifier.graders.code import blocks

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

STEPS, PROMPTS, MEMBERS = 3, 4, 4
# The batch is smaller than the example's, so that five of them take minutes; all that it prescribes is as it is.
SETTINGS = (
    f"spec.maxSteps={STEPS}",
    f"spec.algorithm.promptsPerStep={PROMPTS}",
    "spec.trainer.maxTokensPerMicroBatch=1024",
    "spec.observability.trajectoryDump=All",
    "spec.evaluation.beforeTraining=false",
)
MULTI_TURN, MATH_CODE, OAT = "areal-multi-turn-math-cpu", "areal-math-code-cpu", "oat-drgrpo-zero-cpu"
DUMPED = {
    "task_id", "group_id", "sample_idx", "attempt", "query_id", "seqlen", "prompt_len", "head_version", "tail_version",
    "version_rle", "reward", "raw_reward", "truncated", "stop_reason", "formatted", "reason", "prompt", "completion",
    "segments", "turns",
}  # fmt: skip
ACTOR = {
    "rewards", "num_data", "formatted", "response_tok_len", "no_eos_count", "sampling_max_tokens",
    "sampling_temperature", "generate_time", "verify_time", "total_time", "num_transitions", "generate_avg_str_len",
    "avg_reward",
}  # fmt: skip
EVALUATED = {"accuracy", "score", "rm_win_rate", "eval_count", "elapse", "response_tok_len", "formatted", "truncated"}
RECORDED = {
    "output", "scores", "reference", "generator", "formatted", "reason", "truncated", "response_tok_len", "version",
}  # fmt: skip


@dataclasses.dataclass(frozen=True, slots=True)
class Example:
    """What is special of an example. shaped: bounds of a step's mean shaped reward, given the mean raw one.

    suites: by its name, a suite's file and the name under which it has the question. rlvr: the workflow of that name,
    which also shows how long answers are as texts.
    """

    shaped: Callable[[float], tuple[float, float]]
    suites: Mapping[str, tuple[str, str]]
    rlvr: bool = True


def signed(mean: float) -> tuple[float, float]:
    """Return +5 for right and -5 for wrong, on average."""
    return (mean - 0.5) * 10, (mean - 0.5) * 10


WORD_SUMS = {"held-out": ("word-sums-held-out.jsonl", "question")}
EXAMPLES = {
    # A success in the second turn counts 0.9.
    MULTI_TURN: Example(lambda mean: (0.9 * mean, mean), suites={}, rlvr=False),
    MATH_CODE: Example(
        signed, suites={**WORD_SUMS, "held-out-code": ("code-tasks-held-out.jsonl", "prompt")}, rlvr=False
    ),
    "arealite-gsm8k-cpu": Example(signed, suites=WORD_SUMS),
    "arealite-clevr-count-cpu": Example(signed, suites={"held-out": ("counting-held-out.jsonl", "messages")}),
    # A right answer that was cut counts 0.
    OAT: Example(lambda mean: (0.0, mean), suites=WORD_SUMS),
}


@dataclasses.dataclass(frozen=True, slots=True)
class Finished:
    """An example that ran to its end, in `runs.folder`/run."""

    name: str
    example: Example
    runs: RunFolder

    @property
    def folder(self) -> pathlib.Path:
        return self.runs.folder / "run"

    def rows(self, kind: str = "rollout") -> list[tuple[pathlib.Path, dict[str, Any]]]:
        """Return the dumped rows, each with its file."""
        paths = sorted((self.folder / "dumps" / kind).glob("*/*.jsonl"))
        return [(path, json.loads(line)) for path in paths for line in path.read_text(encoding="utf-8").splitlines()]

    def result(self, name: str) -> Any:
        """Return a file of the evaluation."""
        return json.loads((self.folder / "state/eval_results" / name).read_text(encoding="utf-8"))


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Where the built-in model is converted to, once."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module", params=EXAMPLES)
def finished(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, cache: pathlib.Path
) -> Iterator[Finished]:
    name: str = request.param
    if not os.environ.get(EVERY_EXAMPLE):
        pytest.skip(f"the examples were not asked for ({EVERY_EXAMPLE}=1)")
    runs = RunFolder(tmp_path_factory.mktemp(name), cache)
    try:
        code, output = runs.run(examples.EXAMPLES / f"{name}.yaml", timeout_s=600, settings=SETTINGS)
        assert code == 0, output
        yield Finished(name, EXAMPLES[name], runs)
    finally:
        runs.end()


def test_an_example_makes_its_steps_and_publishes_weights_after_each(finished: Finished) -> None:
    lines: list[dict[str, Any]] = finished.runs.steps()
    assert [line["step"] for line in lines] == list(range(1, STEPS + 1))
    assert [line["step"] for line in finished.runs.history() if line["kind"] == "version"] == [1, 2, 3]
    told = ACTOR if finished.example.rlvr else ACTOR - {"generate_avg_str_len"}
    for line in lines:
        assert {name for name in line if name.startswith("actor/")} == {f"actor/{name}" for name in told}
        assert (line["groups"], line["actor/num_data"]) == (PROMPTS, PROMPTS * MEMBERS)
        least, most = finished.example.shaped(line["reward_mean"])
        assert least - 1e-6 <= line["shaped_mean"] <= most + 1e-6
        norm, without_spread = line["stats"]["optim/grad_norm"], line["zero_advantage_groups"] == PROMPTS
        assert math.isfinite(norm)
        assert (norm == 0.0) == without_spread, "groups of equal rewards teach nothing, others do"
        assert line["stats"]["optim/skipped"] == 0
    assert finished.runs.audit() == ""


def test_an_example_dumps_every_row_under_its_newest_version_with_the_fields_of_the_reference(
    finished: Finished,
) -> None:
    rows = finished.rows()
    assert len({(row["task_id"], row["sample_idx"], row["attempt"]) for _, row in rows}) >= STEPS * PROMPTS * MEMBERS
    for path, row in rows:
        assert set(row) == DUMPED
        assert (path.parent.name, path.stem) == (str(row["tail_version"]), row["task_id"])
        versions = [version for version, _ in row["version_rle"]]
        assert versions == sorted(versions)
        assert (versions[0], versions[-1]) == (row["head_version"], row["tail_version"])
        if row["turns"] is None:
            assert sum(count for _, count in row["version_rle"]) == row["seqlen"] - row["prompt_len"]
        assert row["prompt"]
        assert row["raw_reward"] in (0.0, 1.0)


def test_an_example_evaluates_its_last_version_into_files_with_the_fields_of_the_reference(finished: Finished) -> None:
    suites = finished.example.suites
    if not suites:
        assert not (finished.folder / "state/eval_results").exists()
        return
    found = finished.result(f"{STEPS}.json")
    assert set(found["metrics"]) == {f"eval/{suite}/{name}" for suite in suites for name in EVALUATED} | {
        f"eval/average/{name}" for name in ("accuracy", "score", "response_tok_len")
    }
    for suite, (file, column) in suites.items():
        records = finished.result(f"{STEPS}_{suite}.json")
        assert len(records) == len((examples.EXAMPLES / "data" / file).read_text().splitlines())
        for record in records:
            assert set(record) >= RECORDED | {column, f"format_{column}"}
            assert record["version"] == found["version"] == STEPS
            assert record["generator"] == finished.name
        right = sum(record["scores"] == 1.0 for record in records)
        assert found["metrics"][f"eval/{suite}/accuracy"] == pytest.approx(right / len(records))
        assert found["metrics"][f"eval/{suite}/eval_count"] == len(records)
    assert {row["tail_version"] for _, row in finished.rows("eval-rollout")} == {STEPS}


@pytest.mark.parametrize("finished", [MATH_CODE], indirect=True)
def test_answers_to_tasks_of_code_are_read_as_programs_and_those_to_word_sums_are_not(finished: Finished) -> None:
    rows = [row for kind in ("rollout", "eval-rollout") for _, row in finished.rows(kind)]
    code = [row for row in rows if row["query_id"].startswith("code-")]
    assert 0 < len(code) < len(rows), "a quarter of the prompts are of code"
    assert {row["query_id"].partition("-")[0] for row in rows} == {"code", "train", "held"}
    for row in code:
        has_program = bool(blocks.programs_of(row["completion"], compat=False))
        assert (row["reason"] != "no_answer") == has_program, row["completion"]


@pytest.mark.parametrize("finished", [MULTI_TURN], indirect=True)
def test_a_conversation_is_one_row_with_feedback_between_its_turns_and_a_discounted_reward(finished: Finished) -> None:
    rows = [row for _, row in finished.rows()]
    conversations = [row for row in rows if row["turns"] is not None]
    assert conversations, "of 48 first answers of so small a model some are wrong"
    for row in conversations:
        first, second = row["turns"]
        assert not first["success"], "a right answer ends the conversation"
        assert row["reward"] == pytest.approx(0.9 * row["raw_reward"])
        assert row["raw_reward"] == second["raw_reward"]
        assert [part["role"] for part in row["segments"]] == ["prompt", "gen", "context", "gen"]
        prompt, answer, feedback, retry = (part["len"] for part in row["segments"])
        assert (prompt, answer, retry) == (first["prompt_len"], first["answer_len"], second["answer_len"])
        assert second["prompt_len"] == prompt + answer + feedback
        assert row["seqlen"] == prompt + answer + feedback + retry
        assert sum(count for _, count in row["version_rle"]) == answer + retry, "feedback was not sampled"
    said = {row["segments"][2]["text"].partition("<|im_start|>user")[2] for row in conversations}
    assert len(said) == 1, "feedback holds one bit"
    assert "Your answer is either wrong" in said.pop()
    at_once = [row for row in rows if row["turns"] is None]
    assert all(row["reward"] == row["raw_reward"] == 1.0 for row in at_once)
