"""Real grading processes with graders that misbehave on command: killed, replaced, confined."""

import asyncio
import contextlib
import dataclasses
import errno
import os
import pathlib
import select
import subprocess
import sys
import sysconfig
import time
from collections.abc import AsyncIterator, Callable

import pytest
import pytest_asyncio

from rljob_api import enums, errors, process_config, types
from rljob_workers.runtime import metrics
from rljob_workers.verifier import grading, service
from rljob_workers.verifier import worker as grading_worker
from rljob_workers.verifier.graders import base, registry
from rljob_workers.verifier.sandbox.processes import launcher

R = enums.VerdictReason
O = enums.VerifyOutcome  # noqa: E741  # short in tables
REWARD = process_config.GraderConfig(name="r", type="obedient")


Grade = Callable[[str], "asyncio.Future[base.Grade]"]
Pooled = Callable[[], contextlib.AbstractAsyncContextManager[Grade]]
# Of `grade`, whose workers serve one test after the other.
in_one_loop = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture(scope="module")
def pooled(obedient: str, make_config: Callable[..., process_config.VerifierConfig]) -> Pooled:
    """Return what starts a worker and a spare one, and yields what gives them an order."""

    @contextlib.asynccontextmanager
    async def pool() -> AsyncIterator[Grade]:
        config = make_config(REWARD, cpu_limit_s=0.5, wall_limit_s=60.0, execution={"memory": "256Mi"})
        (grader,) = service.make_graders(config, [obedient])
        reported = metrics.Metrics(role=enums.Role.VERIFIER, job=config.job)
        workers = service.make_pool(config, num_slots=1, metrics=reported, extra=[obedient])
        await workers.start()

        def submit(order: str) -> "asyncio.Future[base.Grade]":
            item = types.VerifyItem(sample_id="s", attempt=0, prompt="", completion=order, columns={})
            request = grading.request_of(item, 0, config.rewards[0], grader)
            # Only what sleeps is to meet the wall cap, however busy this machine is.
            return workers.submit(dataclasses.replace(request, wall_s=1.0) if order == "sleep" else request)

        try:
            yield submit
        finally:
            await workers.close()

    return pool


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def grade(pooled: Pooled) -> AsyncIterator[Grade]:
    async with pooled() as submit:
        yield submit


# Far more than a limit, a kill and the start of a worker take on a busy machine, and far less than what misbehaves.
MOST_S = 90.0


@pytest.mark.covers("graders 2.1", "graders 2.2", "graders 11", "security")
@pytest.mark.parametrize(
    ("order", "reason", "outcome"),
    [
        ("right 5", R.OK, O.PASS),
        ("spin", R.TIMEOUT, O.TIMEOUT_CPU),
        ("native_spin", R.TIMEOUT, O.TIMEOUT_CPU),
        ("sleep", R.INFRA_FAILURE, O.INFRA_ERROR),
        ("die", R.CRASH, O.FAIL),
        ("exit", R.CRASH, O.FAIL),
        ("hoard", R.RESOURCE_LIMIT, O.OOM),
        ("raise", R.CRASH, O.FAIL),
        ("flood", R.OK, O.PASS),
    ],
)
@in_one_loop
async def test_misbehavior_is_a_verdict_and_the_next_answer_is_graded(
    grade: Grade, order: str, reason: enums.VerdictReason, outcome: enums.VerifyOutcome
) -> None:
    started_s = time.monotonic()
    result = await grade(order)
    assert (result.reason, result.outcome) == (reason, outcome)
    assert time.monotonic() - started_s < MOST_S
    after_s = time.monotonic()
    assert (await grade("right 5")).reason is R.OK
    assert time.monotonic() - after_s < MOST_S, "it waits for no more than the start of a worker"


@pytest.mark.covers("graders 11")
@in_one_loop
async def test_worker_killed_in_mid_answer_is_replaced_and_the_answer_graded_again(
    grade: Grade, tmp_path: pathlib.Path
) -> None:
    result = await grade(f"die_once {tmp_path / 'died'}")
    assert (result.reason, result.extracted) == (R.OK, "second time")


@pytest.mark.covers("graders 3.1")
@in_one_loop
async def test_worker_cannot_write_files(grade: Grade, tmp_path: pathlib.Path) -> None:
    target = tmp_path / "owned"
    result = await grade(f"write {target}")
    assert result.reason is R.CRASH
    assert not target.exists() or target.read_bytes() == b""


@pytest.mark.covers("graders 2.1")
@in_one_loop
async def test_texts_of_a_grade_are_cut(grade: Grade) -> None:
    result = await grade("flood")
    assert len(result.extracted) == base.MAX_EXTRACTED_CHARS


@pytest.mark.covers("sandbox P9")
@in_one_loop
async def test_worker_has_no_new_privileges_and_a_clean_environment(grade: Grade) -> None:
    assert (await grade("status NoNewPrivs")).extracted == "1"
    environment = set((await grade("environment")).extracted.split(","))
    assert environment == {
        "HOME", "LANG", "PYTHONHASHSEED", "PYTHONUTF8", "PYTHONPATH",
        "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS",
    }  # fmt: skip


async def test_folders_that_libraries_put_on_our_path_do_not_reach_a_worker(
    obedient: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vendored = tmp_path / "library" / "_vendor"
    vendored.mkdir(parents=True)
    (vendored / "typing_extensions.py").write_text("raise ImportError('a vendored copy shadows the real package')")
    monkeypatch.setattr(sys, "path", [*sys.path, str(vendored)])
    paths = sysconfig.get_paths()
    monkeypatch.setattr(sysconfig, "get_paths", lambda: {**paths, "elsewhere": str(tmp_path)})
    hello = grading_worker.Hello(rewards=(REWARD,), memory_bytes=256 << 20)
    worker = await launcher.start(module=service.WORKER_MODULE, arguments=["--grader", obedient], hello=hello.payload())
    await worker.teardown()


async def test_worker_inherits_no_descriptor_but_its_socket(pooled: Pooled) -> None:
    with open(os.devnull, "rb") as ours:
        inheritable = os.dup(ours.fileno())
        os.set_inheritable(inheritable, True)
        try:
            async with pooled() as grade:
                descriptors = (await grade("descriptors")).extracted.split(",")
        finally:
            os.close(inheritable)
    # Three standard streams, the socket, and the directory that is being listed.
    assert len(descriptors) == 5


@pytest.mark.covers("graders 3.1", "security")
async def test_whole_group_is_gone_after_teardown(obedient: str) -> None:
    hello = grading_worker.Hello(rewards=(REWARD,), memory_bytes=256 << 20)
    worker = await launcher.start(module=service.WORKER_MODULE, arguments=["--grader", obedient], hello=hello.payload())
    assert os.getpgid(worker.pid) == worker.pid
    assert os.getsid(worker.pid) == worker.pid
    assert await worker.teardown()
    assert not pathlib.Path(f"/proc/{worker.pid}").exists()
    assert await worker.teardown(), "ending it twice is fine"


async def test_worker_that_cannot_build_its_graders_says_why() -> None:
    hello = grading_worker.Hello(rewards=(REWARD,), memory_bytes=1 << 20)
    with pytest.raises(
        errors.SandboxError, match=f"type 'obedient'; expected one of {', '.join(sorted(registry.BUILT_IN))}"
    ):
        await launcher.start(module=service.WORKER_MODULE, arguments=[], hello=hello.payload())


@pytest.mark.parametrize(
    ("what", "error"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", errors.UnavailableError),
        ("os.kill(os.getpid(), signal.SIGTERM)", errors.UnavailableError),
        ("time.sleep(600)", errors.UnavailableError),
        ("os.kill(os.getpid(), signal.SIGSEGV)", errors.SandboxError),
        ("os._exit(3)", errors.SandboxError),
    ],
)
async def test_worker_that_was_killed_or_late_before_it_was_ready_may_start_another_time(
    what: str, error: type[errors.RLJobError], tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that failed by its own doing is not an accident: isolation may be why, and that ends the run."""
    (tmp_path / "ends_early.py").write_text(f"import os, signal, time\n{what}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    hello = grading_worker.Hello(rewards=(REWARD,), memory_bytes=256 << 20)
    with pytest.raises(error, match="did not become ready"):
        await launcher.start(
            module=service.WORKER_MODULE,
            arguments=["--grader", "obedient=ends_early:grader"],
            hello=hello.payload(),
            timeout_s=1.0 if "sleep" in what else 60.0,
        )


@pytest.mark.parametrize(
    ("number", "error"), [(errno.ENOMEM, errors.UnavailableError), (errno.EACCES, errors.SandboxError)]
)
async def test_worker_that_the_machine_has_no_room_for_may_start_another_time(
    number: int, error: type[errors.RLJobError], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_arguments: object, **_options: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(subprocess, "Popen", refused)
    with pytest.raises(error, match="cannot start a grading worker"):
        await launcher.start(module=service.WORKER_MODULE, arguments=[], hello={})


_PARENT = """
import asyncio, sys
from rljob_api import process_config
from rljob_workers.verifier import service, worker as grading_worker
from rljob_workers.verifier.sandbox.processes import launcher

async def main():
    reward = process_config.GraderConfig(name="r", type="exact")
    hello = grading_worker.Hello(rewards=(reward,), memory_bytes=1 << 28)
    worker = await launcher.start(module=service.WORKER_MODULE, arguments=[], hello=hello.payload())
    print(worker.pid, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


def test_worker_dies_with_a_verifier_that_is_killed() -> None:
    environment = {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    with subprocess.Popen([sys.executable, "-c", _PARENT], stdout=subprocess.PIPE, env=environment) as parent:
        assert parent.stdout is not None
        worker = int(parent.stdout.readline())
        exited = os.pidfd_open(worker)
        parent.kill()
    try:
        assert select.select([exited], [], [], 10)[0], "the worker outlived its verifier"
    finally:
        os.close(exited)


def test_worker_refuses_to_start_for_a_parent_that_is_gone() -> None:
    command = [sys.executable, "-m", service.WORKER_MODULE, "--fd", "3", "--parent", "1"]
    environment = {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    result = subprocess.run(command, env=environment, capture_output=True, timeout=60, check=False)
    assert result.returncode != 0
    assert b"ended before this worker was ready" in result.stderr
