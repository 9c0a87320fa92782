"""A coordinator with its store, a trainer and rollouts as far as their weights go: processes that are killed and
started again.

The coordinator is the program, with its store; trainer and rollouts are `weight_process`. A kill is SIGKILL.
"""

import contextlib
import pathlib
import socket
import time
from collections.abc import Sequence
from typing import Self

import numpy
from safetensors.numpy import save_file

from rljob_api import process_config
from rljob_testing import sections
from rljob_testing.coordinator_program import LIMIT_S, Program, on_free_ports
from rljob_testing.damaging_link import DamagingLink
from rljob_testing.nursery import Child, Nursery

PIECE_BYTES = 4096
_AGAIN_S = 0.1
PROGRAM = ("rljob_testing.weight_process", "rljob_testing.weight_trainer")
# The tiniest model that has one tensor of each kind. The head is tied to the embeddings: it is not in the files.
KINDS = {
    "embedding with a tied head": ("model.embed_tokens.weight", (512, 64)),
    "attention": ("model.layers.0.self_attn.q_proj.weight", (64, 64)),
    "bias": ("model.layers.0.self_attn.q_proj.bias", (64,)),
    "norm": ("model.layers.0.input_layernorm.weight", (64,)),
    "router of experts": ("model.layers.0.mlp.gate.weight", (4, 64)),
    "expert": ("model.layers.0.mlp.experts.3.up_proj.weight", (96, 64)),
    "last norm": ("model.norm.weight", (64,)),
}


def write_model(folder: pathlib.Path) -> pathlib.Path:
    """Write the model files, in float32."""
    folder.mkdir()
    rng = numpy.random.default_rng(0)
    tensors = {name: rng.standard_normal(shape, numpy.float32) for name, shape in KINDS.values()}
    save_file(tensors, folder / "model.safetensors")
    return folder


class Crew:
    """The processes of a run in `folder`, as a context. Bytes to and from the store go over `link`.

    nursery: of `PROGRAM`. begins_with: a checkpoint of another run, for a fork.
    """

    def __init__(
        self,
        folder: pathlib.Path,
        *,
        nursery: Nursery,
        model: pathlib.Path,
        dtype: str,
        rollouts: int,
        begins_with: pathlib.Path | None = None,
        transport: str = "grpc",
    ) -> None:
        self._folder, self._nursery, self.dtype = folder, nursery, dtype
        self._common = ("--model", str(model), "--dtype", dtype, "--transport", transport)
        folder.mkdir()
        (folder / "train.jsonl").write_text('{"prompt": "1+1=", "answer": "2"}\n' * 8)
        config = on_free_ports(sections.make_config(process_config.CoordinatorConfig, folder))
        self.link = DamagingLink(config.store_address)
        self.weights = pathlib.Path(config.weights_dir)
        self._ports = (config.control_port, config.store_port)
        self._children: list[Child] = []
        self.coordinator = Program(config.model_copy(update={"store_address": self.link.address}), folder)
        self.checkpoint = folder / "checkpoint"
        if begins_with is not None:
            self.checkpoint.write_bytes(begins_with.read_bytes())
        self._attempt, self._num_rollouts = 0, rollouts

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            stack.callback(self._close)
            self._wait()
            self.start_trainer()
            self.rollouts = [self.start_rollout(number) for number in range(self._num_rollouts)]
            stack.pop_all()
        return self

    def __exit__(self, *raised: object) -> None:
        self._close()

    def start_trainer(self) -> None:
        """Begin the next attempt, with the last checkpoint."""
        self._attempt += 1
        self.trainer = self._nursery.start(
            self._folder / "trainer.log", "trainer", "--coordinator", self.coordinator.address, "--store",
            self.link.address, "--piece-bytes", str(PIECE_BYTES), "--attempt", str(self._attempt), "--checkpoint",
            str(self.checkpoint), *self._common,
        )  # fmt: skip
        self._children.append(self.trainer)
        self.trainer.hear()

    def start_rollout(self, number: int) -> Child:
        started = self._nursery.start(
            self._folder / f"rollout-{number}.log", "rollout", "--coordinator", self.coordinator.address, "--pod",
            f"rollout-{number}", "--host", "127.0.0.1", *self._common,
        )  # fmt: skip
        self._children.append(started)
        started.hear()
        return started

    def follow(self, rollouts: Sequence[Child], version: int, *, tries: int = 50) -> list[str]:
        """Have rollouts stage a version at once, each as often as it takes; return what failed before it was there."""
        failures: list[str] = []
        left = list(rollouts)
        for _ in range(tries):
            for one in left:
                one.say(f"stage {version}")
            answers = [(one, one.hear()) for one in left]
            failures += [answer["failed"] for _, answer in answers if "failed" in answer]
            left = [one for one, answer in answers if "failed" in answer]
            if not left:
                return failures
            # As the step loop does while it waits for a batch.
            self.trainer.ask("supply")
            time.sleep(_AGAIN_S)
        raise AssertionError(f"{len(left)} rollouts did not get version {version}: {failures}")

    def restart_coordinator(self) -> None:
        """Kill it, and with it the store, and start it again."""
        self.coordinator.kill()
        self.coordinator.start()
        self._wait()

    def _wait(self) -> None:
        end = time.monotonic() + LIMIT_S
        for port in self._ports:
            while True:
                try:
                    socket.create_connection(("127.0.0.1", port), 1.0).close()
                    break
                except OSError:
                    assert self.coordinator.process.poll() is None, (self._folder / "log").read_text()
                    assert time.monotonic() < end, "the coordinator does not answer"
                    time.sleep(0.02)

    def _close(self) -> None:
        for one in self._children:
            one.kill()
        self.coordinator.kill()
        self.coordinator.close()
        self.link.close()
