"""Builders for the verifier's tests, and real pools that are always torn down."""

import contextlib
import ctypes
import pathlib
from collections.abc import AsyncIterator, Callable, Iterator

import pytest

from rljob_api import enums, errors, process_config, types
from rljob_testing import ports
from rljob_workers.runtime import metrics
from rljob_workers.verifier import service
from rljob_workers.verifier.sandbox.confinement import profile
from rljob_workers.verifier.sandbox.processes import confine, spawn, warm

# linux/prctl.h.
PR_SET_CHILD_SUBREAPER = 36
JOB = process_config.JobIdentity(name="job", namespace="tests", uid="uid")


@pytest.fixture(scope="session")
def make_config() -> Callable[..., process_config.VerifierConfig]:
    def build(
        *rewards: process_config.GraderConfig, cpu_limit_s: float = 10.0, wall_limit_s: float = 0.0, **changes: object
    ) -> process_config.VerifierConfig:
        limits = {"cpu_limit_s": cpu_limit_s, "wall_limit_s": wall_limit_s or 3 * cpu_limit_s}
        fields: dict[str, object] = {
            "job": JOB,
            "role": enums.Role.VERIFIER,
            "pod": "verifier-0",
            "health_host": "127.0.0.1",
            "health_port": 0,
            "scratch_dir": "/nonexistent",
            "bind_host": "127.0.0.1",
            "port": 0,
            "rewards": [reward.model_copy(update=limits) for reward in rewards],
            "num_slots": 2,
        }
        return process_config.VerifierConfig.model_validate({**fields, **changes})

    return build


@pytest.fixture(scope="session")
def make_item() -> Callable[..., types.VerifyItem]:
    def build(
        completion: str,
        *,
        gold: object = "5",
        sample_id: str = "s",
        attempt: int = 0,
        completion_ids: tuple[int, ...] = (),
    ) -> types.VerifyItem:
        return types.VerifyItem(
            sample_id=sample_id,
            attempt=attempt,
            prompt="",
            completion=completion,
            columns={"answer": gold, "id": "q"},
            completion_ids=completion_ids,
        )

    return build


@pytest.fixture
def verifier_metrics() -> metrics.Metrics:
    return metrics.Metrics(role=enums.Role.VERIFIER, job=JOB)


@pytest.fixture(scope="module")
def obedient() -> Iterator[str]:
    """Return the `name=module:attribute` of the test grader, importable by workers."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(pathlib.Path(__file__).parent))
        yield "obedient=hostile_graders:Obedient"


@pytest.fixture(scope="session")
def running() -> Callable[..., contextlib.AbstractAsyncContextManager[service.Service]]:
    @contextlib.asynccontextmanager
    async def run(config: process_config.VerifierConfig, *extra: str) -> AsyncIterator[service.Service]:
        verifier = service.Service(config, extra=extra)
        try:
            await verifier.start()
            yield verifier
        finally:
            await verifier.close()

    return run


@pytest.fixture
def free_port() -> int:
    (port,) = ports.free_ports(1)
    return port


@pytest.fixture(scope="session")
def confined() -> profile.Confinement:
    """Return the confinement of this machine; a test that needs it is skipped where the kernel has none."""
    try:
        return profile.of_this_machine()
    except errors.SandboxError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def adopting() -> Iterator[None]:
    """Have this process adopt orphans, as a grading worker does, and no longer than its tests take."""
    confine.adopt()
    yield
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


@pytest.fixture
def interpreter() -> Iterator[warm.Interpreter]:
    """Return an interpreter that forks programs, which is ended with all that it started."""
    with contextlib.closing(warm.Interpreter()) as made:
        yield made


@pytest.fixture(params=["fresh", "warm"])
def start(request: pytest.FixtureRequest, interpreter: warm.Interpreter) -> spawn.Start:
    """Return both ways to begin a program's process."""
    return interpreter.start if request.param == "warm" else spawn.fresh
