"""How a program of a job starts and ends: --config, logging, exit codes, the last line, and dying with its parent."""

import argparse
import asyncio
import contextlib
import ctypes
import dataclasses
import functools
import gc
import json
import logging
import os
import pathlib
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Generic, Protocol, TypeVar

import pydantic

from rljob_api import enums, errors, process_config
from rljob_workers.runtime import logs

logger = logging.getLogger(__name__)

ConfigT = TypeVar("ConfigT", bound=process_config.ProcessConfig)

_NUMBERS = {"RLJOB_ATTEMPT": ("attempt", 1), "RLJOB_NODE_RANK": ("node_rank", 0)}
_PR_SET_PDEATHSIG = 1
# What a kubelet reads of a container that has ended.
TERMINATION_LOG = "/dev/termination-log"
# With log level debug and 1 in this variable, lines may hold the start of a text that code of a user's raised.
LOG_TEXTS = "RLJOB_LOG_TEXTS"
_EXIT_BY_ERROR: tuple[tuple[type[errors.RLJobError], enums.ExitCode], ...] = (
    (errors.ManifestError, enums.ExitCode.CONFIGURATION),
    (errors.DataError, enums.ExitCode.CONFIGURATION),
    (errors.SandboxError, enums.ExitCode.ISOLATION_REFUSED),
    (errors.UnavailableError, enums.ExitCode.INFRASTRUCTURE),
    (errors.WeightsError, enums.ExitCode.INFRASTRUCTURE),
    (errors.StorageAccessError, enums.ExitCode.CONFIGURATION),
    (errors.StorageError, enums.ExitCode.INFRASTRUCTURE),
)


def with_pod_variables(config: ConfigT, environment: Mapping[str, str]) -> ConfigT:
    """Return the config with the variables that are set in its place. A variable that is empty counts as unset.

    Raises ManifestError that names a variable which is not a number in its range.
    """
    resolved: dict[str, object] = {}
    if environment.get("RLJOB_POD"):
        resolved["pod"] = environment["RLJOB_POD"]
    address = environment.get("RLJOB_POD_IP")
    if isinstance(config, process_config.RolloutConfig) and config.peers is not None and address:
        resolved["peers"] = config.peers.model_copy(update={"host": address})
    if isinstance(config, process_config.RolloutConfig) and config.gateway is not None and address:
        resolved["gateway"] = config.gateway.in_pod(address)
    if isinstance(config, process_config.TrainerConfig) and config.broadcasts is not None and address:
        resolved["broadcasts"] = config.broadcasts.model_copy(update={"host": address})
    if isinstance(config, process_config.TrainerConfig):
        resolved |= {
            field: _number(name, environment[name], least)
            for name, (field, least) in _NUMBERS.items()
            if environment.get(name)
        }
        if environment.get("RLJOB_RENDEZVOUS_HOST"):
            resolved["rendezvous_host"] = environment["RLJOB_RENDEZVOUS_HOST"]
    return config.model_copy(update=resolved)


def _number(name: str, text: str, least: int) -> int:
    if not (text.isascii() and text.isdecimal()) or int(text) < least:
        raise errors.ManifestError(f"{name} = {text!r}: it must be an integer of at least {least}")
    return int(text)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Invocation(Generic[ConfigT]):
    """A parsed command line."""

    config: ConfigT
    config_path: pathlib.Path
    check: bool
    sources: pathlib.Path | None


def parse(
    config_type: type[ConfigT], *, program: str, about: str, argv: Sequence[str] | None = None
) -> Invocation[ConfigT]:
    """Read `--config role.json` and what RLJOB_* variables say of this pod.

    Ends the process with exit code 78 and a sentence per problem if the file is no good.
    """
    parser = argparse.ArgumentParser(prog=program, description=about)
    parser.add_argument("--config", required=True, type=pathlib.Path, help="the role's resolved config, JSON")
    parser.add_argument("--check", action="store_true", help="check inputs, print one problem a line, start nothing")
    parser.add_argument(
        "--sources", type=pathlib.Path, help="with --check: the coordinator's config, for its data sources"
    )
    arguments = parser.parse_args(argv)
    return Invocation(
        config=_of_this_pod(read_config(config_type, arguments.config)),
        config_path=arguments.config,
        check=arguments.check,
        sources=arguments.sources,
    )


def _of_this_pod(config: ConfigT) -> ConfigT:
    try:
        return with_pod_variables(config, os.environ)
    except errors.ManifestError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(int(enums.ExitCode.CONFIGURATION)) from error


def read_config(config_type: type[ConfigT], path: pathlib.Path) -> ConfigT:
    """Return the config in `path`. Raises SystemExit(78) with a message that names the file and field."""
    try:
        return config_type.model_validate_json(path.read_bytes())
    except OSError as error:
        print(f"error: cannot read --config {path}: {error.strerror}", file=sys.stderr)
    except pydantic.ValidationError as error:
        for problem in error.errors():
            field = ".".join(str(part) for part in problem["loc"])
            print(f"error: {path}: {field}: {problem['msg']}", file=sys.stderr)
    raise SystemExit(int(enums.ExitCode.CONFIGURATION))


def configure_process(config: process_config.ProcessConfig) -> None:
    """Set up logging and cores, and make this process die with the one that started it, where that one asked for it."""
    identity: dict[str, object] = {
        "rljob_namespace": config.job.namespace,
        "rljob": config.job.name,
        "role": str(config.role),
        "pod": config.pod,
    }
    logs.configure(
        level=config.log_level,
        identity=identity,
        secrets=logs.secrets_of(os.environ),
        texts=os.environ.get(LOG_TEXTS) == "1",
    )
    if config.cpu_affinity:
        os.sched_setaffinity(0, config.cpu_affinity)
    if os.environ.get("RLJOB_DIE_WITH_PARENT"):
        die_with_parent()


def die_with_parent() -> None:
    """Ask the kernel to SIGKILL this process when its parent THREAD ends (Linux prctl); call it at a child's start."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


async def end_child(process: asyncio.subprocess.Process | None, *, grace_s: float) -> None:
    """End a child, if one runs, and wait until it is gone; one that takes more than `grace_s` is killed."""
    if process is None or process.returncode is not None:
        return
    process.terminate()
    try:
        await asyncio.wait_for(process.wait(), grace_s)
    except TimeoutError:
        process.kill()
        await process.wait()


@contextlib.contextmanager
def importing() -> Iterator[None]:
    """Import large libraries with no garbage collection among it, and leave what they made out of every later one.

    vLLM takes a quarter less time so; DeepSpeed, which collects a dozen times while an engine is made, would look at
    half a million objects of torch each time.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.freeze()


def run_main(main: Callable[[], int | None], *, termination_log: str = TERMINATION_LOG) -> int:
    """Run `main` and return its exit code; an error becomes a code, one log line with its stack, and a termination
    message. Of the tree it has a code of its own; any other is a fault of ours.
    """
    code, reason = _outcome(main)
    _leave(code, reason, termination_log)
    return code


class Service(Protocol):
    """What a program serves: `start`, then `run` until `stop`, then `close`."""

    async def start(self) -> None: ...

    async def run(self) -> None: ...

    def stop(self) -> None: ...

    async def close(self) -> None: ...


class Probes(Protocol):
    """The server of a program's probes, on a thread of its own."""

    def start(self) -> None: ...

    def close(self) -> None: ...


async def serve(service: Service, make_probes: Callable[[Callable[[], None]], Probes]) -> None:
    """Serve until a signal or a probe's caller asks for a stop. make_probes: given what asks for it."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, service.stop)
    probes = make_probes(functools.partial(_stop_from_thread, loop, service.stop))
    probes.start()
    try:
        await service.start()
        await service.run()
    finally:
        await service.close()
        probes.close()


def _stop_from_thread(loop: asyncio.AbstractEventLoop, stop: Callable[[], None]) -> None:
    loop.call_soon_threadsafe(stop)


def run_check(check: Callable[[], None], *, termination_log: str = TERMINATION_LOG) -> int:
    """Run what must hold before the work begins: 0 without a word if it does; if not, it ends as `run_main` would."""
    code, reason = _outcome(check)
    if code:
        _leave(code, reason, termination_log)
    return code


def _outcome(main: Callable[[], int | None]) -> tuple[int, str]:
    """Return the exit code of `main` and why it is not 0, which is logged."""
    try:
        return int(main() or 0), ""
    except errors.RLJobError as error:
        code = exit_code(error)
        logger.error("ended: %s", error, extra={"error_class": error.name}, exc_info=code == enums.ExitCode.FAILED)
        return code, f"{error.name}: {error}"
    except KeyboardInterrupt:
        return int(enums.ExitCode.INTERRUPTED), "interrupted"
    except Exception as error:  # boundary: the process; Python itself would write many lines, and mask nothing
        reason = f"{type(error).__name__}: {error}"
        logger.critical("ended: %s", reason, extra={"error_class": type(error).__name__}, exc_info=True)
        return int(enums.ExitCode.FAILED), reason


def _leave(code: int, reason: str, termination_log: str) -> None:
    logger.info("exited with code %d%s", code, f" ({reason})" if reason else "", extra={"event": "exit"})
    _leave_message(pathlib.Path(termination_log), code, reason)


def refuse(problems: Sequence[str], *, termination_log: str = TERMINATION_LOG) -> int:
    """Tell why a program does not start with its config, to a person and to the operator; return exit code 78."""
    for problem in problems:
        print(f"error: {problem}", file=sys.stderr)
    code = int(enums.ExitCode.CONFIGURATION)
    _leave_message(pathlib.Path(termination_log), code, "; ".join(problems))
    return code


def exit_code(error: errors.RLJobError) -> int:
    """Return the exit code of an error: 78 for configuration, 79 isolation, 75 infrastructure, else 1."""
    return next((int(code) for kind, code in _EXIT_BY_ERROR if isinstance(error, kind)), int(enums.ExitCode.FAILED))


def _leave_message(path: pathlib.Path, code: int, reason: str) -> None:
    # Only a pod has this file; elsewhere no one reads it.
    if path.is_file() and os.access(path, os.W_OK):
        message = logs.masked(reason, logs.secrets_of(os.environ))
        path.write_text(json.dumps({"code": code, "reason": message[:3000]}), encoding="utf-8")
