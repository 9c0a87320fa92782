"""Whole runs through the real command, and what they left behind."""

import contextlib
import json
import os
import pathlib
import sqlite3
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from rljob_testing import jobs

RLJOB = str(pathlib.Path(sys.executable).with_name("rljob"))


class RunFolder:
    """Runs manifests with the real command, each in a folder below `folder`. `cache` keeps converted models."""

    def __init__(self, folder: pathlib.Path, cache: pathlib.Path | None = None) -> None:
        self.folder, self._cache = folder, cache or folder / "cache"
        self._started: list[subprocess.Popen[str]] = []

    def start(
        self,
        manifest: pathlib.Path,
        run_dir: str = "run",
        settings: Sequence[str] = (),
        variables: Mapping[str, str] = MappingProxyType({}),
    ) -> "subprocess.Popen[str]":
        command = [RLJOB, "run", str(manifest), "--run-dir", str(self.folder / run_dir)]
        command += [part for setting in settings for part in ("--set", setting)]
        environment = {**os.environ, **variables, "RLJOB_CACHE_DIR": str(self._cache)}
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment,
            start_new_session=True,
        )
        self._started.append(process)
        return process

    def end(self) -> None:
        """Kill what a failed test left running; the roles end with their runner."""
        for process in self._started:
            process.kill()
            process.communicate()

    def run(
        self,
        manifest: pathlib.Path,
        run_dir: str = "run",
        timeout_s: float = 600,
        settings: Sequence[str] = (),
        variables: Mapping[str, str] = MappingProxyType({}),
    ) -> tuple[int, str]:
        process = self.start(manifest, run_dir, settings, variables)
        output, _ = process.communicate(timeout=timeout_s)
        return process.returncode, output

    def history(self, run_dir: str = "run") -> list[dict[str, Any]]:
        lines = (self.folder / run_dir / "state/history.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]

    def steps(self, run_dir: str = "run") -> list[dict[str, Any]]:
        """Return the last line of each step: a step repeated after a rewind has one line per attempt."""
        by_step = {int(str(line["step"])): line for line in self.history(run_dir) if line["kind"] == "step"}
        return [line for _, line in sorted(by_step.items())]

    def summary(self, run_dir: str = "run") -> dict[str, Any]:
        return dict(json.loads((self.folder / run_dir / "summary.json").read_text()))

    def audit(self, run_dir: str = "run") -> str:
        command = [sys.executable, "-m", "rljob_workers.coordinator.ledger.audit", str(self.folder / run_dir / "state")]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        return "" if done.returncode == 0 else done.stdout + done.stderr

    def wait_for_step(self, step: int, run_dir: str = "run", limit_s: float = 480) -> None:
        end = time.monotonic() + limit_s
        while time.monotonic() < end:
            path = self.folder / run_dir / "state/history.jsonl"
            if path.exists() and sum('"kind":"step"' in line for line in path.read_text().splitlines()) >= step:
                return
            time.sleep(0.2)
        raise AssertionError(f"step {step} was not reached in {limit_s} s")

    def leftovers(self, run_dir: str = "run") -> list[str]:
        """Return command lines of processes that belong to the run."""
        listing = subprocess.run(["ps", "-eo", "pid,args"], capture_output=True, text=True, check=True).stdout
        return [line for line in listing.splitlines() if str(self.folder / run_dir) in line and "ps -eo" not in line]

    def trained_prompts(self, run_dir: str = "run") -> list[tuple[int, str]]:
        """Return (step, prompt id) in the order of training."""
        uri = f"file:{self.folder / run_dir}/state/ledger.sqlite?mode=ro"
        with contextlib.closing(sqlite3.connect(uri, uri=True)) as ledger:
            sql = "SELECT step, prompt_id FROM groups WHERE state = 'trained' ORDER BY step, step_position"
            return list(ledger.execute(sql))


class Runs(RunFolder):
    """Writes manifests of the tiny task and runs them."""

    def __init__(self, folder: pathlib.Path, task: jobs.TinyTask) -> None:
        super().__init__(folder)
        self.task = task

    def manifest(self, **changes: object) -> pathlib.Path:
        path = self.folder / "job.yaml"
        path.write_text(json.dumps(jobs.manifest(self.task, changes)))
        return path
