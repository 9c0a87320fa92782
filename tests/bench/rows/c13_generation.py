"""C-13: output tokens per second of the rollout inside a job whose trainer is idle, against bare vLLM.

Both engines hold the same model, prompts, sampling (24 tokens, no early end), threads, KV memory and 64 concurrent
sequences, and both are up all the time: one is stopped (SIGSTOP) while the other is measured for a window. The job is
real (coordinator, verifier, rollout, trainer); a step of 256 prompts keeps the trainer waiting for its first batch.
Left out on both sides: model load, and the first windows as warm-up.
"""

import contextlib
import json
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence

from tests.bench import runner
from tests.bench.rows import c14_addition

from rljob_testing.runs import RLJOB

MAX_TOKENS = 24
CONCURRENT = 64
START_S = 240.0
PROMPTS_PER_STEP = 256
SETTINGS = (
    "maxSteps=1",
    "evaluation.suites=[]",
    f"algorithm.promptsPerStep={PROMPTS_PER_STEP}",
    f"rollout.sampling.maxTokens={MAX_TOKENS}",
    "rollout.sampling.ignoreEos=true",
    "rollout.sampling.stop=[]",
    f"rollout.engine.maxNumSeqs={CONCURRENT}",
)
_GENERATED = re.compile(r"^vllm:generation_tokens_total\{[^}]*\} ([0-9.e+]+)$", re.MULTILINE)


def measure(size: str, out: pathlib.Path) -> Sequence[runner.Measured]:
    """Measure 5 pairs of windows after a discarded one (full: of 15 s, else 6 s)."""
    window_s = 15.0 if size == "full" else 6.0
    out.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        run_dir = stack.enter_context(_job(out))
        config = json.loads((run_dir / "configs/rollout.json").read_text())
        ours = _Side("ours", _rollout_tree(run_dir), lambda: _job_tokens(int(config["health_port"])))
        _wait(lambda: ours.tokens() > 0)
        ours.stop()
        # Resumed before the job is asked to end.
        stack.callback(ours.go)
        counter = out / "bare.tokens"
        bare = stack.enter_context(_bare(out, counter, int(config["num_threads"])))
        peer = _Side("peer", lambda: _tree(bare), lambda: int(counter.read_text() or 0))
        _wait(lambda: counter.exists() and peer.tokens() > 0)
        peer.stop()
        stack.callback(peer.go)
        pairs = [_pair(number, ours, peer, window_s) for number in range(6)][1:]
        assert ours.tokens() < PROMPTS_PER_STEP * 8 * MAX_TOKENS, "the first batch was full: the trainer was not idle"
    params = {
        "concurrent": CONCURRENT,
        "max_tokens": MAX_TOKENS,
        "window_s": window_s,
        "threads": config["num_threads"],
    }
    return [runner.Measured(row="C13", title="rollout tok/s, trainer idle", unit="tok/s", pairs=pairs, params=params)]


class _Side:
    """One engine: its processes, and how many tokens it has made."""

    def __init__(self, name: str, processes: Callable[[], Sequence[int]], tokens: Callable[[], float]) -> None:
        self.name, self._processes, self.tokens = name, processes, tokens

    def stop(self) -> None:
        """Freeze it."""
        self._signal(signal.SIGSTOP)

    def go(self) -> None:
        """Let it continue."""
        self._signal(signal.SIGCONT)

    def rate(self, window_s: float) -> float:
        """Return tokens per second of a window, from one second after it was let go."""
        self.go()
        time.sleep(1.0)
        began, before = time.monotonic(), self.tokens()
        time.sleep(window_s)
        after, ended = self.tokens(), time.monotonic()
        self.stop()
        return (after - before) / (ended - began)

    def _signal(self, number: int) -> None:
        for pid in self._processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)


def _pair(number: int, ours: _Side, peer: _Side, window_s: float) -> runner.Pair:
    sides = [ours, peer]
    random.Random(number).shuffle(sides)
    rates = {side.name: side.rate(window_s) for side in sides}
    print(f"pair {number}: ours {rates['ours']:.0f}, bare {rates['peer']:.0f} tok/s", flush=True)
    return runner.Pair(rates["ours"], rates["peer"], sides[0].name)


@contextlib.contextmanager
def _job(out: pathlib.Path) -> Iterator[pathlib.Path]:
    run_dir = out / "c13-run"
    shutil.rmtree(run_dir, ignore_errors=True)
    command = [RLJOB, "run", str(c14_addition.MANIFEST), "--run-dir", str(run_dir)]
    for setting in SETTINGS:
        command += ["--set", f"spec.{setting}"]
    print("+", " ".join(command), flush=True)
    with (out / "c13-run.log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            _wait(lambda: (run_dir / "configs/rollout.json").exists())
            yield run_dir
        finally:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()


@contextlib.contextmanager
def _bare(out: pathlib.Path, counter: pathlib.Path, threads: int) -> Iterator[int]:
    counter.unlink(missing_ok=True)
    script = pathlib.Path(__file__).with_name("bare_vllm.py")
    prompts = out / "c13-prompts.json"
    records = [json.loads(line) for line in c14_addition.TRAIN.read_text().splitlines()]
    prompts.write_text(json.dumps([record["prompt"] for record in records]))
    model = c14_addition.model_folder()
    words = [str(model), str(prompts), str(counter), str(CONCURRENT), str(MAX_TOKENS), str(threads)]
    command = [sys.executable, str(script), *words]
    print("+", " ".join(command), flush=True)
    with (out / "c13-bare.log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            yield process.pid
        finally:
            for pid in _tree(process.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            process.wait()


def _job_tokens(port: int) -> float:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
            found = _GENERATED.findall(answer.read().decode())
    except OSError:
        return 0.0
    return sum(float(value) for value in found)


def _rollout_tree(run_dir: pathlib.Path) -> Callable[[], Sequence[int]]:
    config = str(run_dir / "configs/rollout.json")

    def find() -> Sequence[int]:
        for entry in pathlib.Path("/proc").iterdir():
            if (
                entry.name.isdecimal()
                and _words(entry)[-2:] == ["--config", config]
                and "guard" not in str(_words(entry))
            ):
                return _tree(int(entry.name))
        return []

    return find


def _words(entry: pathlib.Path) -> list[str]:
    try:
        return (entry / "cmdline").read_bytes().decode(errors="replace").rstrip("\0").split("\0")
    except OSError:
        return []


def _tree(root: int) -> list[int]:
    """Return a process and its descendants, parents first."""
    found = [root]
    for pid in found:
        for children in pathlib.Path(f"/proc/{pid}/task").glob("*/children"):
            with contextlib.suppress(OSError):
                found += [int(child) for child in children.read_text().split()]
    return found


def _wait(ready: Callable[[], bool]) -> None:
    deadline = time.monotonic() + START_S
    while not ready():
        if time.monotonic() > deadline:
            raise TimeoutError(f"an engine was not up within {START_S:g} s")
        time.sleep(0.5)
