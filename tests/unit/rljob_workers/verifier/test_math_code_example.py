"""areal-math-code-cpu.yaml: word sums and code in one job, each graded by its own reward."""

import collections
import contextlib
import re
from collections.abc import Callable, Mapping

import pytest

from rljob_api import process_config, resolve, types
from rljob_api.validation.load import load_manifest
from rljob_testing import examples
from rljob_workers.data import records
from rljob_workers.verifier import check, rubric, service


def resolved_example() -> resolve.ResolvedJob:
    job = load_manifest((examples.EXAMPLES / "areal-math-code-cpu.yaml").read_text(encoding="utf-8"))
    placement = resolve.local_placement(
        job, uid="u", run_dir="/r", base_dir=str(examples.EXAMPLES), cache_dir="/c", ports=range(20), num_cores=2
    )
    return resolve.resolve(job, placement)


def test_every_record_can_be_graded_and_names_its_task() -> None:
    job = resolved_example()
    sources = check.sources_of(job.coordinator)
    assert [source.source.name for source in sources] == ["word-sums", "code-tasks", "held-out", "held-out-code"]
    assert check.findings(job.verifiers[0], sources).problems == []
    assert check.findings(job.verifiers[0], sources).warnings == []


def test_word_sums_are_graded_as_mathematics_and_code_by_its_tests() -> None:
    job = resolved_example()
    rewards = job.verifiers[0].rewards
    graded: dict[str, collections.Counter[str]] = {}
    for source in check.sources_of(job.coordinator):
        for record in records.load_source(source.source).records:
            (index,) = rubric.graded_by(rewards, process_config.graders_of(rewards, source.suite), record.columns)
            graded.setdefault(source.source.name, collections.Counter())[rewards[index].type] += 1
    assert graded == {
        "word-sums": {"areal-math": 320},
        "code-tasks": {"areal-code": 24},
        "held-out": {"areal-math": 64},
        "held-out-code": {"areal-code": 8},
    }


@pytest.mark.usefixtures("confined")
async def test_a_right_answer_to_either_earns_1_and_a_wrong_one_0(
    running: Callable[..., contextlib.AbstractAsyncContextManager[service.Service]],
) -> None:
    def item(columns: Mapping[str, object], completion: str) -> types.VerifyItem:
        return types.VerifyItem(sample_id=completion, attempt=0, prompt="", completion=completion, columns=columns)

    def program(operator: str) -> str:
        return f"```python\nprint(int(input()) {operator} {number})\n```"

    job = resolved_example()
    words, code = (records.load_source(source).records for source in job.coordinator.spec.data.train)
    times = next(record for record in code if " times the integer" in str(record.columns["prompt"]))
    number = re.findall(r"(\d+) times", str(times.columns["prompt"]))[0]
    result = words[0].columns["result"]
    items = [
        item(words[0].columns, f"The answer is {result}."),
        item(words[0].columns, f"The answer is {result}0."),
        item(times.columns, program("*")),
        item(times.columns, program("-")),
    ]
    # One worker, and time: what is looked at here is who grades, not how fast.
    rewards = tuple(one.model_copy(update={"cpu_limit_s": 60.0}) for one in job.verifiers[0].rewards)
    async with running(job.verifiers[0].model_copy(update={"num_slots": 1, "rewards": rewards})) as verifier:
        verdicts = await verifier.grading.verify(items)
    assert [verdict.parts for verdict in verdicts] == [{"right": 1.0}, {"right": 0.0}, {"passes": 1.0}, {"passes": 0.0}]
    assert [verdict.grader for verdict in verdicts] == ["areal-math/Strict"] * 2 + ["areal-code/Strict"] * 2
