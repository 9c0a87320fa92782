"""WP: what a version costs the coordinator's link, and how long it takes, when rollouts serve one another.

A real coordinator with its store, and the receiver's own code (Stager) in eight processes, in network namespaces of
their own whose links the kernel shapes to 200 Mbit/s in each direction; the trainer is in the coordinator's. An image
of 64 MiB in 128 pieces, as one of 1 GiB at 3 Gbit/s has in pieces of 8 MiB. Bytes are those that leave the
coordinator's link, with all headers. docs/design/weights.md#s-7, WT-11.
"""

import contextlib
import dataclasses
import json
import os
import pathlib
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy
from safetensors.numpy import save_file
from tests.bench import runner

from rljob_api import process_config
from rljob_testing import sections, shaped_links

IMAGE_BYTES, PIECE_BYTES = 64 << 20, 512 << 10
RECEIVERS, MBIT_PER_S = 8, 200
ROUNDS = {"smoke": 1, "full": 3}
CONTROL, STORE, HEALTH, PEER = 50051, 50052, 8080, 50054
TENSOR = "model.embed_tokens.weight"
_LIMIT_S = 120.0
# Both ports answer.
_PROBE = f"import socket; [socket.create_connection(('127.0.0.1', port), 1).close() for port in ({CONTROL}, {STORE})]"


class Process:
    """A program in a namespace that answers each line with one."""

    def __init__(self, place: shaped_links.Place, log: pathlib.Path, *arguments: str) -> None:
        command = [*place.enter, sys.executable, "-m", "rljob_testing.weight_process", *arguments]
        self._log = log.open("ab")
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(
                    [str(pathlib.Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
                ),
            },
        )  # fmt: skip

    def say(self, line: str) -> None:
        assert self._process.stdin is not None, "a pipe"
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def hear(self) -> dict[str, Any]:
        assert self._process.stdout is not None, "a pipe"
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self._process.args} ended with code {self._process.wait(_LIMIT_S)}: {self._log.name}")
        return dict(json.loads(line))

    def close(self) -> None:
        self._process.kill()
        self._process.wait(_LIMIT_S)
        self._log.close()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Late:
    """One that came late: what it took, the bytes that left the coordinator's link meanwhile, and those of the version
    that the store sent.
    """

    seconds: float
    num_bytes: int
    from_store: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """What was seen once. all_bytes: that left the coordinator's link; fetched: of all receivers, by kind of source.

    late: for an anchor; between: for the version after it, of which the store has the changes alone.
    """

    alone_s: float
    all_s: float
    all_bytes: int
    late: Late
    between: Late
    fetched: Mapping[str, int]
    failures: Mapping[str, int]


TITLES = {
    "WP-store": (f"bytes that leave the coordinator for {RECEIVERS} rollouts ÷ bytes of the version", "bytes"),
    "WP-time": (f"seconds until {RECEIVERS} rollouts have a version ÷ seconds of one alone", "s"),
    "WP-late": ("bytes of the version that a rollout which comes late takes from the store ÷ all of them", "bytes"),
    "WP-between": ("the same of a version that was never stored whole", "bytes"),
}


def measure(size: str, out: pathlib.Path) -> Sequence[runner.Measured]:
    if os.geteuid() != 0 or shutil.which("tc") is None:
        reason = "namespaces and shaped links need root and tc"
        return [
            runner.Measured(row=row, title=title, unit=unit, pairs=(), reason=reason)
            for row, (title, unit) in TITLES.items()
        ]
    rounds = [take_round(out / f"wp-{number}") for number in range(ROUNDS[size])]
    pairs = {
        "WP-store": [runner.Pair(ours=one.all_bytes, peer=IMAGE_BYTES) for one in rounds],
        "WP-time": [runner.Pair(ours=one.all_s, peer=one.alone_s) for one in rounds],
        "WP-late": [runner.Pair(ours=one.late.from_store, peer=IMAGE_BYTES) for one in rounds],
        "WP-between": [runner.Pair(ours=one.between.from_store, peer=IMAGE_BYTES) for one in rounds],
    }
    params: dict[str, object] = {
        "image_bytes": IMAGE_BYTES,
        "piece_bytes": PIECE_BYTES,
        "receivers": RECEIVERS,
        "link_mbit_per_s": MBIT_PER_S,
        "link_floor_s": round(8 * IMAGE_BYTES / (MBIT_PER_S * 1e6), 2),
        "shaped_by": "tc tbf at both ends of each veth pair",
    }
    return [
        runner.Measured(
            row=row,
            title=title,
            unit=unit,
            pairs=pairs[row],
            params=params,
            notes=[json.dumps(dataclasses.asdict(one)) for one in rounds],
            agreement="every tensor has its digest, in every receiver",
        )
        for row, (title, unit) in TITLES.items()
    ]


def take_round(folder: pathlib.Path) -> Round:
    """Stage a version on one rollout alone, the next on eight at once and on one that comes late; and the one after,
    which changes little, on all and on another one that comes late.
    """
    shutil.rmtree(folder, ignore_errors=True)
    model = folder / "model"
    model.mkdir(parents=True)
    save_file({TENSOR: numpy.zeros(IMAGE_BYTES // 2, numpy.float16)}, model / "model.safetensors")
    with contextlib.ExitStack() as stack:
        center, *others, ninth, tenth = stack.enter_context(shaped_links.star(RECEIVERS + 3, mbit_per_s=MBIT_PER_S))
        control = stack.enter_context(coordinator(center, folder))

        def started(place: shaped_links.Place, role: str, *arguments: str) -> Process:
            log = folder / f"{role}-{place.number}.log"
            process = Process(place, log, role, "--coordinator", control, "--model", str(model), *arguments)
            stack.callback(process.close)
            return process

        def rollout(place: shaped_links.Place) -> Process:
            return started(place, "rollout", "--host", place.address, "--port", str(PEER))

        store = f"{center.address}:{STORE}"
        trainer = started(center, "trainer", "--store", store, "--piece-bytes", str(PIECE_BYTES))
        receivers = [rollout(others[0])]
        heard([trainer, *receivers])
        publish(trainer, IMAGE_BYTES, seed=1)
        alone_s, _ = staged(receivers, 1, center)
        receivers += [rollout(place) for place in others[1:]]
        heard(receivers[1:])
        publish(trainer, IMAGE_BYTES, seed=2)
        all_s, all_bytes = staged(receivers, 2, center)
        answers = [transfers(one) for one in receivers]

        def come_late(place: shaped_links.Place, version: int) -> Late:
            late = rollout(place)
            heard([late])
            seconds, num_bytes = staged([late], version, center)
            return Late(seconds=seconds, num_bytes=num_bytes, from_store=transfers(late)["fetched"].get("store", 0))

        late = come_late(ninth, 2)
        publish(trainer, IMAGE_BYTES // 1000, seed=3)
        staged(receivers, 3, center)
        # Until a heartbeat of each has said what it holds.
        time.sleep(2.0)
        between = come_late(tenth, 3)
    fetched: Counter[str] = Counter()
    failures: Counter[str] = Counter()
    for one in answers:
        fetched.update(one["fetched"])
        failures.update(one["failures"])
    # The first one took the version before, too.
    fetched["store"] -= IMAGE_BYTES
    return Round(
        alone_s=alone_s, all_s=all_s, all_bytes=all_bytes, late=late, between=between, fetched=dict(fetched),
        failures=dict(failures),
    )  # fmt: skip


def heard(processes: Sequence[Process]) -> None:
    """Wait for the answer of each, and until the rollouts among them were heard of."""
    for process in processes:
        process.hear()
    time.sleep(1.0)


def publish(trainer: Process, num_weights: int, *, seed: int) -> None:
    """Publish a version that changes so many weights."""
    trainer.say(f"publish {TENSOR} {num_weights} {seed}")
    heard([trainer])


def transfers(receiver: Process) -> dict[str, Any]:
    receiver.say("transfers")
    return receiver.hear()


def staged(receivers: Sequence[Process], version: int, center: shaped_links.Place) -> tuple[float, int]:
    """Stage a version at once; return the seconds of the slowest, and the bytes that left the coordinator."""
    before = center.sent_bytes()
    for receiver in receivers:
        receiver.say(f"stage {version}")
    answers = [receiver.hear() for receiver in receivers]
    if failures := [answer["failed"] for answer in answers if "failed" in answer]:
        raise RuntimeError(f"version {version} was not taken: {failures}")
    return max(answer["seconds"] for answer in answers), center.sent_bytes() - before


@contextlib.contextmanager
def coordinator(place: shaped_links.Place, folder: pathlib.Path) -> Iterator[str]:
    """Run the program; yield the address of its control port once it answers there."""
    (folder / "train.jsonl").write_text('{"prompt": "1+1=", "answer": "2"}\n' * 8)
    config = sections.make_config(
        process_config.CoordinatorConfig, folder, bind_host="0.0.0.0", control_port=CONTROL, store_port=STORE,
        health_port=HEALTH, store_address=f"{place.address}:{STORE}",
    )  # fmt: skip
    path = folder / "coordinator.json"
    path.write_text(config.model_dump_json())
    command = [*place.enter, sys.executable, "-m", "rljob_workers.coordinator", "--config", str(path)]
    with (folder / "coordinator.log").open("ab") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        end = time.monotonic() + _LIMIT_S
        probe = [*place.enter, sys.executable, "-c", _PROBE]
        while subprocess.run(probe, capture_output=True, timeout=_LIMIT_S, check=False).returncode:
            if process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"the coordinator does not answer: {folder / 'coordinator.log'}")
        yield f"{place.address}:{CONTROL}"
    finally:
        process.terminate()
        process.wait(_LIMIT_S)
