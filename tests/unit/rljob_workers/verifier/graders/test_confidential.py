"""Nothing that a verifier logs, counts, prints or refuses with quotes what it was given to grade."""

import contextlib
import dataclasses
import json
import logging
import pathlib
import textwrap
from collections.abc import AsyncIterator, Mapping, Sequence

import pytest

from rljob_api import enums, errors, process_config, types
from rljob_testing import certificates, marked
from rljob_testing.marked import COMPLETION, GOLD, HIDDEN_TEST, PROMPT
from rljob_workers.rpc import channel, verify, verify_service
from rljob_workers.runtime import clock, metrics
from rljob_workers.verifier import grading as gradings
from rljob_workers.verifier import pool, replies, service
from rljob_workers.verifier.graders import base
from rljob_workers.verifier.sandbox.processes import launcher

ITEM = types.VerifyItem(
    sample_id="s", attempt=1, prompt=PROMPT, completion=COMPLETION,
    columns={"id": "q", "query_id": "q", "answer": GOLD, "input_output": json.dumps({"inputs": [HIDDEN_TEST]})},
    prompt_ids=marked.IDS, completion_ids=marked.IDS,
)  # fmt: skip
REWARD = process_config.GraderConfig(name="right", type="exact")
GRADE = replies.grade_to(base.passed("5"))


class Babbling:
    """A worker whose reply has marked texts in one field, where none belongs."""

    def __init__(self, field: str) -> None:
        self._reply = {**GRADE, field: [COMPLETION, {COMPLETION: GOLD}]}
        if field in ("reason", "outcome"):
            self._reply[field] = COMPLETION

    async def exchange(self, request: bytes) -> dict[str, object]:
        return self._reply

    def note_programs(self) -> None:
        pass

    def cpu_s(self) -> float:
        return 0.0

    async def teardown(self) -> bool:
        return True


class InWorker(base.SingleTimeLimit):
    """A grader that leaves all to a worker. `fault`: what `check` raises."""

    needs_worker = True

    def __init__(self, fault: Exception | None = None) -> None:
        self._fault = fault

    def check(self, columns: Mapping[str, object]) -> None:
        if self._fault is not None:
            raise self._fault

    def warm(self) -> None:
        """Nothing."""

    def quick(self, answer: base.Answer) -> base.Grade | None:
        return None

    def grade(self, answer: base.Answer) -> base.Grade:
        raise AssertionError("runs in a worker")


@dataclasses.dataclass
class Bench:
    grading: gradings.Grading
    metrics: metrics.Metrics


@contextlib.asynccontextmanager
async def bench(grader: base.Grader, *, babbles: str = "detail") -> AsyncIterator[Bench]:
    counted = metrics.Metrics(role=enums.Role.VERIFIER, job=certificates.JOB)

    async def launch() -> launcher.Worker:
        return Babbling(babbles)

    size = pool.Size(num_slots=1, num_spares=1, max_waiting=10)
    workers = pool.Pool(size=size, launch=launch, metrics=counted, clock=clock.SystemClock())
    await workers.start()
    try:
        yield Bench(gradings.Grading(rewards=[REWARD], graders=[grader], workers=workers, metrics=counted), counted)
    finally:
        await workers.close()


@pytest.mark.parametrize("field", ["score", "reason", "outcome", "cpu_s", "parts", "case_results", "error_code"])
async def test_a_workers_malformed_reply_is_not_quoted(field: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with bench(InWorker(), babbles=field) as made:
        (verdict,) = await made.grading.verify([ITEM])
        told = made.metrics.exposition().decode()
    assert (verdict.reward, verdict.detail) == (0.0, "worker_killer")
    assert "lost a grading worker: malformed reply" in caplog.text
    marked.assert_untold(marked.lines_of(caplog.records) + told)


@pytest.mark.covers("security")
@pytest.mark.parametrize("field", ["extracted", "detail"])
async def test_what_a_verdict_carries_is_in_no_log_and_no_metric(field: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with bench(InWorker(), babbles=field) as made:
        (verdict,) = await made.grading.verify([ITEM])
        told = made.metrics.exposition().decode()
    assert marked.MARK in getattr(verdict, field)
    marked.assert_untold(marked.lines_of(caplog.records) + told)


@contextlib.asynccontextmanager
async def client_of(graded: gradings.Grading) -> AsyncIterator[verify.GradingClient]:
    serving = channel.aio_server(None)
    verify_service.serve(graded, serving)
    port = channel.bind(serving, "127.0.0.1:0", None)
    await serving.start()
    client = verify.GradingClient(
        addresses=[f"127.0.0.1:{port}"], tls=None, timeout_s=60.0, max_attempts=1, clock=clock.SystemClock()
    )
    try:
        yield client
    finally:
        await client.close()
        await serving.stop(None)


async def test_a_fault_of_a_grader_is_quoted_by_neither_end_of_the_call(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    fault = ValueError(f"invalid literal for int() with base 10: {GOLD!r}")
    async with bench(InWorker(fault)) as made, client_of(made.grading) as client:
        (verdict,) = await client.verify([ITEM])
    assert verdict.reason is enums.VerdictReason.INFRA_FAILURE
    assert "a servicer raised ValueError" in caplog.text, "the verifier's line"
    assert "verifier call failed" in caplog.text, "the rollout's line"
    marked.assert_untold(marked.lines_of(caplog.records) + verdict.detail)


USERS_CODE = """
    import sys
    import warnings

    def reward(prompt, completion, answer, case, **row):
        print(prompt, completion, answer)
        sys.stderr.write(prompt + completion + answer)
        warnings.warn(completion)
        if case == "raises":
            raise ValueError(prompt + completion + answer)
        return {
            "text": completion, "named": {completion: 1.0}, "list": [answer], "part": {"a": answer}, "right": 1.0,
        }[case]
"""
CASES = ("raises", "text", "named", "list", "part", "right")


@pytest.fixture
def config(tmp_path: pathlib.Path) -> process_config.VerifierConfig:
    file = tmp_path / "users_reward_of_this_test.py"
    file.write_text(textwrap.dedent(USERS_CODE))
    reward = process_config.GraderConfig(
        name="mine", type=f"{file.stem}:reward", user_code=str(file), wall_limit_s=60.0
    )
    return process_config.VerifierConfig.model_validate(
        {
            "job": certificates.JOB, "role": enums.Role.VERIFIER, "pod": "verifier-0", "health_port": 0,
            "scratch_dir": str(tmp_path), "bind_host": "127.0.0.1", "port": 0, "rewards": [reward],
            "num_slots": 1,
        }
    )  # fmt: skip


async def verdicts(made: gradings.Grading, cases: Sequence[str]) -> list[str]:
    """Return what is said of each case: the verdict's detail, or the refusal."""
    said = []
    for case in cases:
        columns = {"id": "q", "query_id": "q", "answer": GOLD, "case": case}
        try:
            (verdict,) = await made.verify([dataclasses.replace(ITEM, sample_id=case, columns=columns)])
            said.append(f"{verdict.reason} {verdict.detail} {sorted(verdict.parts)}")
        except errors.GraderError as error:
            said.append(str(error))
    return said


@pytest.mark.covers("security")
async def test_what_a_users_reward_prints_raises_or_returns_is_not_quoted(
    config: process_config.VerifierConfig, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    """A real grading process, whose standard streams are the verifier's until it sees its first answer."""
    caplog.set_level(logging.DEBUG)
    verifier = service.Service(config)
    try:
        await verifier.start()
        said = await verdicts(verifier.grading, CASES)
        told = verifier.metrics.exposition().decode()
    finally:
        await verifier.close()
    assert said[0].startswith("crash the grader raised ValueError")
    assert all("users_reward_of_this_test:reward returned" in refusal for refusal in said[1:-1])
    assert said[-1].startswith("ok")
    printed = capfd.readouterr()
    marked.assert_untold("\n".join([*said, told, printed.out, printed.err, marked.lines_of(caplog.records)]))
