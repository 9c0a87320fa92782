"""FAKE of the coordinator, for tests of the runner: what it says comes from the files of `fake_roles`."""

import asyncio
import json
import pathlib
import signal
import time
from typing import TypeAlias

import grpc.aio

from rljob_api import enums, process_config, types
from rljob_api.wire import codec
from rljob_api.wire.v1 import status_pb2, status_pb2_grpc
from rljob_testing.fake_roles import FOLDER, number

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


def run(config: str) -> int:
    """Play the coordinator of a configuration."""
    asyncio.run(coordinator(process_config.CoordinatorConfig.model_validate_json(config)))
    return 0
