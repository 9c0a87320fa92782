"""`python -m rljob_workers.models.serve --config judge.json`: gets the files of the judge's own model and becomes
vLLM's server of it, on loopback. A process of its own, so that the judge's stays small and without torch.
"""

import json
import os
import pathlib
import sys
from collections.abc import Iterator, Sequence

from rljob_api import enums, errors, process_config
from rljob_workers.models import builtin
from rljob_workers.runtime import boot, device, machine

# On processors vLLM would take nearly all of the memory for its key-value cache; what it takes it fills from the start.
CPU_KV_BYTES = 2 << 30
_SERVER = "vllm.entrypoints.launchers.api_server.entry"


def main(argv: Sequence[str] | None = None) -> int:
    """Become the server; return with `--check` once the model's files are there, or for a fault."""
    invocation = boot.parse(
        process_config.JudgeConfig,
        program="python -m rljob_workers.models.serve",
        about="Serves the model of spec.judge by vLLM.",
        argv=argv,
    )
    config, server = invocation.config, invocation.config.server
    problems = ["the config names no model to serve"] if server is None else _without_device(server)
    if problems or server is None:
        return boot.refuse(problems)
    if invocation.check:
        return _check(server)
    boot.configure_process(config)
    return boot.run_main(lambda: _become(server, num_threads=config.num_threads))


def _without_device(server: process_config.ModelServerConfig) -> list[str]:
    return device.problems(
        server.device,
        needed=server.num_gpus,
        because=f"spec.judge.tensorParallelSize {server.tensor_parallel_size}, times its copies and stages,",
        image=device.image_kind(),
        engine=device.engine_kind("vllm"),
        num_visible=len(device.gpus()),
    )


def _check(server: process_config.ModelServerConfig) -> int:
    try:
        _folder(server)
    except errors.ManifestError as error:
        return boot.refuse(error.problems)
    return int(enums.ExitCode.OK)


def _folder(server: process_config.ModelServerConfig) -> pathlib.Path:
    with builtin.named("spec.judge.model"):
        return builtin.ensure_model(server.model)


def _become(server: process_config.ModelServerConfig, *, num_threads: int) -> None:
    """Replace this process, whose parent it stays, with the server."""
    kind = device.engine_kind("vllm") or "cuda"
    words = arguments(server, _folder(server), kind=kind, cpu_dtype=machine.dtype_for_this_cpu("bfloat16"))
    environment = {**os.environ, **device.engine_environment(num_threads=num_threads, kind=kind)}
    # Its log is the judge's: what it says of its start, and what goes wrong.
    environment |= {"VLLM_CONFIGURE_LOGGING": "1", "VLLM_LOGGING_LEVEL": "INFO", "VLLM_LOGGING_COLOR": "0"}
    sys.stdout.flush()
    # Not by the command `vllm`, which asks for the version of a wheel that the one for processors is not.
    os.execve(sys.executable, [sys.executable, "-m", _SERVER, *words], environment)


def arguments(
    server: process_config.ModelServerConfig, folder: pathlib.Path, *, kind: device.Kind, cpu_dtype: str
) -> list[str]:
    """Return the words after `vllm serve`. kind: what the installed vLLM computes on. cpu_dtype: what bfloat16 is on a
    processor like this one.
    """
    options: dict[str, object] = {
        "tensor_parallel_size": server.tensor_parallel_size,
        "enable_log_requests": False,
        "disable_log_stats": True,
        "uvicorn_log_level": "warning",
    }
    if server.max_model_len:
        options["max_model_len"] = server.max_model_len
    if kind == "cpu":
        options |= {"dtype": cpu_dtype, "enforce_eager": True, "kv_cache_memory_bytes": CPU_KV_BYTES}
    options |= server.extra_args
    # The last word on an option counts, and these are not the manifest's to choose.
    fixed = {"served_model_name": process_config.OWN_JUDGE, "host": "127.0.0.1", "port": server.port}
    chosen = options | fixed
    return ["--model", str(folder), *(word for key, value in chosen.items() for word in _words(key, value))]


def _words(key: str, value: object) -> Iterator[str]:
    """Yield an option as vLLM reads it: a flag, one value, several, or an object as JSON."""
    name = key.replace("_", "-")
    if isinstance(value, bool):
        yield f"--{name}" if value else f"--no-{name}"
        return
    yield f"--{name}"
    if isinstance(value, list | tuple):
        yield from map(str, value)
    else:
        yield json.dumps(value) if isinstance(value, dict) else str(value)


if __name__ == "__main__":
    sys.exit(main())
