"""FAKES of the four programs, for tests of the runner: they speak just enough of status, POST /stop and exit codes.

Run as `python -m rljob_testing.fake_roles ROLE --config FILE [--check ...]`. What a role does wrong on purpose comes
from files in $RLJOB_FAKE_DIR, where all of them also write what happened (`events`) and the state that the real
coordinator's ledger and the real trainer's checkpoints would hold.
"""

import asyncio
import http.server
import json
import os
import pathlib
import signal
import sys
import tempfile
import threading
import time
from typing import TypeAlias

import grpc.aio

from rljob_api import enums, process_config, types
from rljob_api.wire import codec
from rljob_api.wire.v1 import status_pb2, status_pb2_grpc
from rljob_workers.runtime import health

FOLDER = pathlib.Path(os.environ.get("RLJOB_FAKE_DIR", "."))
STEP_S = 0.15
TOKEN = "of the fake trainer"


def tell(event: str) -> None:
    """Append one event; appends of one line are atomic."""
    with (FOLDER / "events").open("a") as file:
        file.write(f"{event}\n")


def number(name: str) -> int:
    """Return the number in a state file, 0 if there is none."""
    path = FOLDER / name
    return int(path.read_text()) if path.exists() else 0


def put(name: str, value: int) -> None:
    """Write a number atomically."""
    (FOLDER / f"{name}.tmp").write_text(str(value))
    (FOLDER / f"{name}.tmp").replace(FOLDER / name)


def misbehave(role: str) -> None:
    """End at once with the code in `<role>.exit`, if there is such a file; only once if `<role>.once` exists."""
    path = FOLDER / f"{role}.exit"
    if path.exists():
        code = int(path.read_text())
        if (FOLDER / f"{role}.once").exists():
            path.unlink()
        print(f"{role} cannot go on", flush=True)
        raise SystemExit(code)


Context: TypeAlias = "grpc.aio.ServicerContext[status_pb2.StatusRequest, status_pb2.StatusReply]"


class RunStatus(status_pb2_grpc.RunStatusServicer):
    """Answers from the state files."""

    def __init__(self, config: process_config.CoordinatorConfig) -> None:
        """Keep the config."""
        self._config = config

    async def Status(self, request: status_pb2.StatusRequest, context: "Context") -> status_pb2.StatusReply:
        """Return what the files say."""
        step, now = number("step"), time.time()
        finished = (FOLDER / "final").exists()
        reply: status_pb2.StatusReply = codec.to_message(
            types.RunStatus(
                job=self._config.job.name,
                phase=enums.Phase.FINISHED if finished else enums.Phase.RUNNING,
                step=step,
                max_steps=self._config.max_steps,
                checkpoint_step=number("checkpoint"),
                reward_mean=step / 10,
                last_progress_at=now,
                rollout_wait_share=0.25,
                pods=(types.PodStatus(role="rollout", pod="rollout-0", ready=True),),
            )
        )
        return reply


async def coordinator(config: process_config.CoordinatorConfig) -> None:
    """Serve the status until SIGTERM; copy steps into the history."""
    server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    status_pb2_grpc.add_RunStatusServicer_to_server(RunStatus(config), server)
    server.add_insecure_port(f"{config.bind_host}:{config.control_port}")
    await server.start()
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    if config.max_steps == 0:
        write_evaluation(config)
        (FOLDER / "final").touch()
    while not stopped.is_set():
        write_history(config)
        try:
            await asyncio.wait_for(stopped.wait(), 0.05)
        except TimeoutError:
            continue
    write_history(config)
    await server.stop(None)


def write_history(config: process_config.CoordinatorConfig) -> None:
    """Write one line per finished step: 10 tokens each, reward step/10, always one step old."""
    lines = [
        {
            "kind": "step", "step": step, "at": step, "started_at": 10.0 * step, "finished_at": 10.0 * step + 8,
            "reward_mean": step / 10, "reward_std": 0.1, "staleness": {"1": 2}, "staleness_token_mean": 1.0,
            "tokens": 10, "tokens_generated": 12 * step, "generate": [[10.0 * step - 5, 10.0 * step + 5]],
            "trajectories": {"accepted": 16 * step},
            "stats": {"wait_s": 2.0, "forward_backward_s": 6.0, "mismatch/abs_diff": 0.03},
        }
        for step in range(1, number("step") + 1)
    ]  # fmt: skip
    path = pathlib.Path(config.state_dir) / "history.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def write_evaluation(config: process_config.CoordinatorConfig) -> None:
    """Write the results of an evaluation: half of each suite right; none of a suite whose file `missing` names."""
    folder = pathlib.Path(config.state_dir) / "eval_results"
    folder.mkdir(exist_ok=True)
    missing = (FOLDER / "missing").read_text().split() if (FOLDER / "missing").exists() else []
    metrics: dict[str, float] = {}
    for suite in config.spec.evaluation.suites:
        name = suite.name
        (folder / f"0_{name}.json").write_text("[]")
        if name not in missing:
            metrics |= {f"eval/{name}/accuracy": 0.5, f"eval/{name}/eval_count": 2.0}
    found = {"step": 0, "version": 0, "metrics": metrics, "missing": dict.fromkeys(missing, 1)}
    (folder / "0.json").write_text(json.dumps(found))


def trainer(config: process_config.TrainerConfig) -> int:
    """Make steps from the checkpoint on; stop after one on POST /stop; not the last one while there is `hold`."""
    asked = threading.Event()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            may = self.headers.get(health.STOP_HEADER) == TOKEN
            if may:
                tell("trainer asked to stop")
                asked.set()
            self.send_response(202 if may else 404)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """Silence."""

    server = http.server.ThreadingHTTPServer((config.health_host, config.health_port), Handler)
    token_file = health.stop_token_file(config)
    token_file.parent.mkdir(parents=True, exist_ok=True)
    token_file.write_text(TOKEN)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    put("step", number("checkpoint"))
    while number("step") < config.spec.max_steps and not asked.wait(STEP_S):
        if number("step") == config.spec.max_steps - 1 and (FOLDER / "hold").exists():
            continue
        put("step", number("step") + 1)
        if number("step") % config.spec.checkpoint.every_steps == 0:
            put("checkpoint", number("step"))
    put("checkpoint", number("step"))
    if asked.is_set():
        return int(enums.ExitCode.STOPPED_ON_REQUEST)
    (FOLDER / "final").touch()
    return 0


def wait_for_sigterm(role: str) -> None:
    """What a fake rollout or verifier does."""
    stopped = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    stopped.wait()


def check(role: str) -> int:
    """Print the problems in `<role>.problems`."""
    path = FOLDER / f"{role}.problems"
    if not path.exists():
        return 0
    print(path.read_text())
    return int(enums.ExitCode.BAD_INPUT)


def main() -> int:
    """Play one role."""
    role, config_file = sys.argv[1], pathlib.Path(sys.argv[3])
    # As libraries do, and no one removes it.
    tempfile.mkdtemp(prefix=f"fake_{role}_")
    if "--check" in sys.argv:
        return check(role)
    tell(f"{role} started")
    misbehave(role)
    text = config_file.read_text()
    code = 0
    if role == "coordinator":
        asyncio.run(coordinator(process_config.CoordinatorConfig.model_validate_json(text)))
    elif role == "trainer":
        config = process_config.TrainerConfig.model_validate_json(text)
        tell(f"attempt {config.attempt}")
        code = trainer(config)
    else:
        wait_for_sigterm(role)
    tell(f"{role} ended")
    return code


if __name__ == "__main__":
    sys.exit(main())
