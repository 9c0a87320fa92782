"""Attacks whose effect shows outside the program: in sockets, signals, files, memory and verdicts of others."""

import asyncio
import contextlib
import json
import pathlib
import secrets
import signal
import socket
from collections.abc import AsyncIterator, Callable, Iterator

import pytest
import pytest_asyncio

from rljob_api import enums, errors, process_config, types
from rljob_workers.verifier import frames, grading, service
from rljob_workers.verifier import worker as grading_worker
from rljob_workers.verifier.sandbox.confinement import profile
from rljob_workers.verifier.sandbox.processes import launcher, procfs

MakeConfig = Callable[..., process_config.VerifierConfig]
Running = Callable[..., contextlib.AbstractAsyncContextManager[service.Service]]
O = enums.VerifyOutcome  # noqa: E741  # short
RIGHT = "print(sum(map(int, input().split())))"
COLUMNS = {"query_id": "q", "input_output": json.dumps({"inputs": ["1 2"], "outputs": ["3"]})}
pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def graded(
    make_config: MakeConfig, running: Running, confined: profile.Confinement
) -> AsyncIterator[grading.Grading]:
    reward = process_config.GraderConfig(name="passes", type="areal-code")
    async with running(make_config(reward, cpu_limit_s=10.0, wall_limit_s=200.0, num_slots=2)) as verifier:
        yield verifier.grading


def item(program: str, name: str = "") -> types.VerifyItem:
    return types.VerifyItem(
        sample_id=name or secrets.token_hex(8),
        attempt=0,
        prompt="",
        completion=f"```python\n{program}\n```",
        columns=COLUMNS,
    )


@contextlib.contextmanager
def listening(address: str, kind: int) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, kind) as listener:
        listener.bind(address)
        if kind == socket.SOCK_STREAM:
            listener.listen()
        listener.setblocking(False)
        yield listener


@pytest.mark.covers("sandbox A-49", "sandbox P1")
@pytest.mark.parametrize("kind", [socket.SOCK_STREAM, socket.SOCK_DGRAM], ids=["stream", "datagram"])
@pytest.mark.parametrize("abstract", [False, True], ids=["path", "abstract"])
async def test_a_49_nothing_reaches_a_listener_outside(
    graded: grading.Grading, tmp_path: pathlib.Path, kind: int, abstract: bool
) -> None:
    address = f"\0rljob-{secrets.token_hex(8)}" if abstract else str(tmp_path / "socket")
    program = f"""
import socket
ways = [
    lambda: socket.socket(socket.AF_UNIX, {int(kind)}).connect({address!r}),
    lambda: socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)[0].sendto(b'x', {address!r}),
    lambda: socket.socketpair()[0].sendto(b'x', {address!r}),
    lambda: socket.socketpair()[0].sendmsg([b'x'], [], 0, {address!r}),
    lambda: socket.socketpair()[0].connect({address!r}),
]
for way in ways:
    try:
        way()
    except OSError:
        continue
    print(3)
"""
    with listening(address, kind) as listener:
        (verdict,) = await graded.verify([item(program)])
        with pytest.raises(BlockingIOError):
            listener.accept() if kind == socket.SOCK_STREAM else listener.recv(1)
    assert (verdict.reward, verdict.outcome) == (0.0, O.FAIL)


@pytest.mark.covers("sandbox A-42", "sandbox P4")
async def test_a_42_signal_to_everybody_arrives_nowhere(graded: grading.Grading) -> None:
    # SIGURG is ignored where no one asks for it: a hole would harm nothing.
    arrived: list[int] = []
    before = signal.signal(signal.SIGURG, lambda number, _: arrived.append(number))
    try:
        program = "import os, signal\nfor target in (-1, 0):\n    os.kill(target, signal.SIGURG)\nprint(4)"
        (verdict,) = await graded.verify([item(program)])
    finally:
        signal.signal(signal.SIGURG, before)
    assert (verdict.outcome, arrived) == (O.FAIL, [])


@pytest.mark.covers("sandbox A-26", "sandbox A-41", "sandbox P3")
async def test_a_26_and_a_41_a_program_finds_nothing_of_the_one_before(
    graded: grading.Grading, tmp_path: pathlib.Path
) -> None:
    path = str(tmp_path / "left")
    leaves = f"""
import os, signal, sys, types
sys.modules['left'] = types.ModuleType('left')
for way in (lambda: open({path!r}, 'w'), lambda: open('/dev/shm/rljob-left', 'w'), lambda: os.mkdir({path!r})):
    try:
        way()
    except OSError:
        pass
print(3, flush=True)
if os.fork() == 0:
    os.close(1)
    signal.pause()
"""
    finds = f"""
import os, sys
found = [name for name in ({path!r}, '/dev/shm/rljob-left') if os.path.exists(name)]
print(3 if found or 'left' in sys.modules else 4)
"""
    (first,) = await graded.verify([item(leaves)])
    (second,) = await graded.verify([item(finds)])
    assert (first.outcome, second.outcome) == (O.PASS, O.FAIL)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.covers("sandbox A-32")
async def test_a_32_flood_does_not_grow_its_runner(confined: profile.Confinement) -> None:
    reward = process_config.GraderConfig(name="r", type="code", cpu_limit_s=60.0, wall_limit_s=200.0)
    hello = grading_worker.Hello(rewards=(reward,), memory_bytes=512 << 20)
    worker = await launcher.start(module=service.WORKER_MODULE, arguments=[], hello=hello.payload())

    async def ask(program: str) -> dict[str, object]:
        request = {
            "reward": 0, "prompt": "", "completion": f"```python\n{program}\n```", "columns": COLUMNS,
            "prompt_ids": [], "completion_ids": [], "cpu_limit_s": 60.0, "cpu_factor": 1.0,
        }  # fmt: skip
        return await worker.exchange(frames.encode(request, max_bytes=frames.MAX_REQUEST_BYTES))

    try:
        assert (await ask(RIGHT))["outcome"] == O.PASS
        before = procfs.resident_bytes(worker.pid)
        for stream in ("stdout", "stderr"):
            flood = f"import sys\nwhile True:\n    sys.{stream}.write('x' * (1 << 20))"
            assert (await ask(flood))["outcome"] == O.OUTPUT_FLOOD
        assert procfs.resident_bytes(worker.pid) - before < 8 << 20
    finally:
        assert await worker.teardown()


HOSTILE = (
    "import os\nos._exit(0)",
    "import os\nos.kill(os.getppid(), 9)",
    "import ctypes\nctypes.CDLL(None).ptrace(16, 1, 0, 0)",
    "while True:\n    print('x' * 100000)",
)


@pytest.mark.covers("sandbox A-69")
async def test_a_69_honest_half_of_64_is_graded_as_when_alone(graded: grading.Grading) -> None:
    programs = [HOSTILE[n // 2 % len(HOSTILE)] if n % 2 else RIGHT for n in range(64)]
    verdicts = await asyncio.gather(*(graded.verify([item(program)]) for program in programs))
    rewards = [verdict.reward for (verdict,) in verdicts]
    assert rewards == [0.0 if n % 2 else 1.0 for n in range(64)]


@pytest.mark.covers("sandbox A-70")
async def test_a_70_request_beyond_its_bounds_is_refused_by_size(graded: grading.Grading) -> None:
    with pytest.raises(errors.WireError, match="exceeds"):
        await graded.verify([item("#" * (frames.MAX_REQUEST_BYTES + 1))])
    (verdict,) = await graded.verify([item(RIGHT, name="../../etc/passwd")])
    assert verdict.reward == 1.0


@pytest.mark.covers("sandbox A-66")
async def test_a_66_other_expression_is_wrong(make_config: MakeConfig, running: Running) -> None:
    pairs = {"a+b": "c+b", "m^2": "s^2", "5000": "50", "[1,2]": "(1,2)"}
    items = [
        types.VerifyItem(
            sample_id=answer, attempt=0, prompt="", completion=rf"\boxed{{{answer}}}", columns={"answer": gold}
        )
        for answer, gold in pairs.items()
    ]
    async with running(make_config(process_config.GraderConfig(name="m", type="math"), num_slots=1)) as verifier:
        verdicts = await verifier.grading.verify(items)
    assert [(verdict.reward, verdict.outcome) for verdict in verdicts] == [(0.0, O.FAIL)] * len(pairs)
