"""vLLM's processes as forks of one that has imported vLLM, instead of interpreters that import it once more.

Importing vLLM takes most of the time in which a rollout of a small model starts, and its engine process imports the
same modules. A fork is safe while a process has one thread, and gRPC, the probes and vLLM's client start more: so a
copy of this process is forked off before any starts, which forks again for each process that vLLM asks for
(multiprocessing's fork server). What was imported is in memory once.
"""

import multiprocessing
import os
import signal
import socket
import sys
from collections.abc import Callable
from multiprocessing import connection, context, forkserver, util
from typing import Any, TypeVar

from rljob_workers.rollout.engines.vllm import patches
from rljob_workers.runtime import boot

T = TypeVar("T")


def start() -> None:
    """Import vLLM, fork the server off and have vLLM use it; only the import where CUDA has begun, since what began
    does not survive a fork, or where numba is imported: vLLM's CPU platform looks through all modules of an engine
    process, and fails at llvmlite's library, which answers to every attribute (vllm.triton_utils.dispatcher, 0.32).

    For a process with one thread; again, it does nothing. Once the server has ended, new processes are new
    interpreters, as without it.
    """
    # Left out of later collections, whose marks would copy the pages of what was imported into each process.
    with boot.importing():
        import torch
        import vllm.v1.engine.async_llm
        import vllm.v1.engine.core  # noqa: F401  # what the engine process runs

        from rljob_workers.rollout.engines.vllm import worker  # noqa: F401  # and with it what computes in there

    patches.read_pictures_without_torchvision()
    if torch.cuda.is_initialized() or "llvmlite" in sys.modules or _lives():
        return
    _fork()
    patches.start_processes_with(processes, call=call)


def _fork() -> None:
    # multiprocessing's own server begins as a new interpreter, and there is no public way to begin with a fork.
    client: Any = forkserver._forkserver
    with socket.socket(socket.AF_UNIX) as listener:
        address = f"{util.get_temp_dir()}/fork-server"
        listener.bind(address)
        os.chmod(address, 0o600)
        listener.listen()
        ended, alive = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(alive)
            _serve(listener.detach(), ended)
        os.close(ended)
    client._forkserver_address, client._forkserver_alive_fd, client._forkserver_pid = address, alive, pid


def _serve(listener: int, ended: int) -> None:
    try:
        boot.die_with_parent()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        forkserver.main(listener, ended, [])
    finally:
        os._exit(0)


class _Process(context.ForkServerProcess):
    """A process with the environment of the one that starts it; the server's is that of when it was forked."""

    def start(self) -> None:
        self._environment = dict(os.environ)
        super().start()

    def run(self) -> None:
        import torch

        for name in os.environ.keys() - self._environment:
            del os.environ[name]
        # Not all of them: what has a new place in memory is where `ps` would look for the name of the process.
        os.environ.update({k: v for k, v in self._environment.items() if os.environ.get(k) != v})
        # A new interpreter reads it when it imports torch.
        if threads := os.environ.get("OMP_NUM_THREADS"):
            torch.set_num_threads(int(threads))
        super().run()


class _Context(context.ForkServerContext):
    Process = _Process


def processes() -> context.SpawnContext | context.ForkServerContext:
    """Return what starts a process: the server, while it lives."""
    # Of a server that ended multiprocessing would start another, which outlives a rollout that is killed.
    return _Context() if _lives() else multiprocessing.get_context("spawn")


def _lives() -> bool:
    client: Any = forkserver._forkserver
    if client._forkserver_pid is not None and os.waitpid(client._forkserver_pid, os.WNOHANG)[0]:
        client._forkserver_pid = None
    return client._forkserver_pid is not None


def call(function: Callable[[], T]) -> T:
    """Return what `function` returns in a process of its own. Raises RuntimeError if that ends without an answer."""
    import cloudpickle

    starting = processes()
    reader, writer = starting.Pipe(duplex=False)
    process = starting.Process(target=_answer, args=(cloudpickle.dumps(function), writer), name="Inspection")
    process.start()
    writer.close()
    try:
        result: T = reader.recv()
    except EOFError as error:
        process.join()
        raise RuntimeError(f"a process of vLLM ended with exit code {process.exitcode} and no answer") from error
    process.join()
    return result


def _answer(function: bytes, writer: "connection.Connection[Any, Any]") -> None:
    import cloudpickle
    from vllm import plugins

    plugins.load_general_plugins()
    patches.read_pictures_without_torchvision()
    writer.send(cloudpickle.loads(function)())
