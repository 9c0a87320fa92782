"""`python -m tests.bench.kills --kills 1000 --engine fake --folder DIR`: kill -9 at random, and what becomes of a run.

Each kill is of one process, drawn from the tree of one of the four roles (its guard, the role itself, or a process
below it: grading workers, torchrun's ranks, vLLM's engine), at a random time after the run has got over the one before.
After all of them, or `--limit-s`, the run is interrupted and looked at: nothing that a rollout was told to be accepted
is lost, no group is trained twice, no rollout served a half-applied version, and the ledger's audit is clean. Called
again with the same folder it goes on with the same run. Exit 1 if anything of it does not hold, or the run hung or
ended.
"""

import argparse
import contextlib
import dataclasses
import json
import math
import os
import pathlib
import random
import signal
import statistics
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence

from rljob_api import names
from rljob_testing import jobs, models, witnessed_rollout
from rljob_workers.coordinator.ledger import database, retention
from rljob_workers.local import processes
from rljob_workers.local.rundir import layout

ROLES = ("coordinator", "rollout", "verifier", "trainer")
# The longest time between a recovery and the next kill; how long a recovery may take before the run is said to hang.
PAUSE_S = 4.0
BOUND_S: Mapping[str, float] = {"fake": 180.0, "vllm": 420.0}
_POLL_S, _END_S = 0.1, 240.0
_DRIVER = """
import pathlib, sys
from rljob_workers.local import prepare, session
from rljob_workers.local.run import launch
def programs(role):
    witnessed = (sys.executable, "-m", "rljob_testing.witnessed_rollout")
    return witnessed if role == "rollout" else launch.own_programs(role)
manifest = prepare.read_manifest(pathlib.Path(sys.argv[1]))
path = pathlib.Path(sys.argv[2])
sys.exit(session.run_job(manifest, path=path, skip_check=True, stream=sys.stdout, programs=programs))
"""
_CHANGES: Mapping[str, object] = {
    "maxSteps": 1_000_000,
    "checkpoint": {"everySteps": 2, "keepLast": 2},
    "observability": {"trajectoryDump": "none"},
    "failurePolicy": {"stall": {"timeoutSeconds": 3600}},
}


class BrokenRunError(Exception):
    """The run hung, ended, or broke a promise."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    """One kill: whose process, which one of the tree, and how long the run took to be as before.

    ready_s: until the role answered that it is ready. recovered_s: until a step was completed after that. steps: those
    of the run so far, repeated ones included.
    """

    role: str
    what: str
    ready_s: float
    recovered_s: float
    steps: int


class Bench:
    """A run in a folder: started, killed at, ended, and looked at."""

    def __init__(self, folder: pathlib.Path, engine: str) -> None:
        """Make model, records and manifest, if they are not there yet."""
        self.folder, self._engine = folder.absolute(), engine
        self.run_dir = layout.RunDir(self.folder / "run")
        self.witness, self._log = self.folder / "witness.jsonl", self.folder / "kills.jsonl"
        self._manifest = self.folder / "job.yaml"
        self._process: subprocess.Popen[str] | None = None
        if not self._manifest.exists():
            self.folder.mkdir(parents=True, exist_ok=True)
            models.make_tiny_llama(self.folder / "model")
            task = jobs.make_task(self.folder, num_train=4096)
            self._manifest.write_text(json.dumps(jobs.manifest(task, dict(_CHANGES))))

    def kills(self) -> list[Kill]:
        """Return all kills of this folder's run."""
        lines = self._log.read_text().splitlines() if self._log.exists() else []
        return [Kill(**json.loads(line)) for line in lines]

    def start(self) -> None:
        """Start the run, or go on with it, and wait for a step."""
        before = self.num_steps()
        environment = {
            **os.environ,
            witnessed_rollout.WITNESS: str(self.witness),
            witnessed_rollout.ENGINE: self._engine,
            "PYTHONPATH": os.pathsep.join([str(pathlib.Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]),
        }
        output = (self.folder / "output.log").open("a")
        command = [sys.executable, "-c", _DRIVER, str(self._manifest), str(self.run_dir.path)]
        with output:
            self._process = subprocess.Popen(
                command, stdout=output, stderr=output, text=True, env=environment, start_new_session=True
            )
        self._wait(lambda: self.num_steps() > before, "the first step")

    def kill(self, chance: random.Random) -> Kill:
        """Kill one process at random, wait until the run is as before, and write it down. Raises BrokenRunError."""
        time.sleep(chance.uniform(0.0, PAUSE_S))
        role = chance.choice(ROLES)
        guard, own = self._pids(role)
        pid = chance.choice([guard, *processes.descendants(guard)])
        what = "guard" if pid == guard else "role" if pid == own else _name(pid)
        began, before = time.monotonic(), self.num_steps()
        processes.kill(pid)
        restarts = pid in (guard, own)
        self._wait(
            lambda: not processes.is_running(pid) and self._is_ready(role, old=own if restarts else None),
            f"{role} to be ready after its {what} was killed",
        )
        ready_s, at_ready = time.monotonic() - began, self.num_steps()
        # One that was under way may end as if nothing had happened.
        wanted = max(at_ready + 1, before + 2)
        self._wait(lambda: self.num_steps() >= wanted, f"a step after the {what} of {role} was killed")
        done = Kill(role=role, what=what, ready_s=ready_s, recovered_s=time.monotonic() - began, steps=self.num_steps())
        with self._log.open("a") as log:
            log.write(json.dumps(dataclasses.asdict(done)) + "\n")
        return done

    def stop(self) -> None:
        """Interrupt the run, as Ctrl-C does. Raises BrokenRunError if it does not end as it should."""
        assert self._process is not None, "it was started"
        self._process.send_signal(signal.SIGINT)
        try:
            code = self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            raise BrokenRunError(f"the run did not end within {_END_S:.0f} s of an interrupt") from None
        if code != int(names.ExitCode.INTERRUPTED):
            raise BrokenRunError(f"the interrupted run ended with {code}; {self.folder / 'output.log'}")

    def end(self) -> None:
        """Kill what is left, if the run was not stopped."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def num_steps(self) -> int:
        """Return how many steps the history tells of; a step that was made again after a kill counts again."""
        if not self.run_dir.history.exists():
            return 0
        return self.run_dir.history.read_bytes().count(b'"kind":"step"')

    def problems(self) -> list[str]:
        """Return what does not hold of the run that was stopped, as sentences."""
        audit = [sys.executable, "-m", "rljob_workers.coordinator.ledger.audit", str(self.run_dir.state)]
        audited = subprocess.run(audit, capture_output=True, text=True, check=False)
        found = (audited.stdout + audited.stderr).splitlines() if audited.returncode else []
        accepted, served = self._witnessed()
        file = database.SqliteDatabase(self.run_dir.state / "ledger.sqlite", read_only=True)
        known = {str(row["group_id"]) for row in file.all("SELECT group_id FROM answers WHERE outcome = 'accepted'")}
        known |= {member.group_id for member in retention.everything(file) if member.accepted}
        found += [f"group {group} was acknowledged and is lost" for group in sorted(accepted - known)]
        hashes = {int(row["version"]): row["state_hash"] for row in file.all("SELECT * FROM versions")}
        file.close()
        wrong = {version for version, held in served if version in hashes and hashes[version] != held}
        found += [f"version {version} was served half applied" for version in sorted(wrong)]
        if not accepted or not {version for version, _ in served} & hashes.keys():
            found.append("the witness saw nothing: no group was acknowledged, or no version of the ledger served")
        return found

    def _witnessed(self) -> tuple[set[str], set[tuple[int, str]]]:
        lines = [json.loads(line) for line in self.witness.read_text().splitlines()]
        accepted = {line["acknowledged"] for line in lines if line.get("outcome") == "accepted"}
        return accepted, {(line["served"], line["state_hash"]) for line in lines if "served" in line}

    def _pids(self, role: str) -> tuple[int, int]:
        """Return guard and own process of a role, once both run."""
        found: list[tuple[int, int]] = []

        def is_there() -> bool:
            with contextlib.suppress(OSError, ValueError, KeyError):
                entry = json.loads(self.run_dir.pids.read_text())[role]
                if entry["pid"] and all(map(processes.is_running, (entry["guard"], entry["pid"]))):
                    found.append((entry["guard"], entry["pid"]))
            return bool(found)

        self._wait(is_there, f"{role} to run")
        return found[-1]

    def _is_ready(self, role: str, *, old: int | None) -> bool:
        """Return whether a role says that it is ready, as another process than `old`."""
        try:
            entry = json.loads(self.run_dir.pids.read_text()).get(role)
            config = json.loads((self.run_dir.configs / f"{role}.json").read_text())
        except (OSError, ValueError):
            return False
        if entry is None or entry["pid"] in (None, old) or not processes.is_running(entry["pid"]):
            return False
        try:
            with urllib.request.urlopen(
                f"http://{config['health_host']}:{config['health_port']}/readyz", timeout=2.0
            ) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    def _wait(self, holds: Callable[[], bool], what: str) -> None:
        assert self._process is not None, "it was started"
        end = time.monotonic() + BOUND_S[self._engine]
        while not holds():
            if self._process.poll() is not None:
                raise BrokenRunError(f"the run ended with {self._process.returncode} before {what}; see {self.folder}")
            if time.monotonic() > end:
                raise BrokenRunError(f"hung: no sign of {what} in {BOUND_S[self._engine]:.0f} s; see {self.folder}")
            time.sleep(_POLL_S)


def _name(pid: int) -> str:
    """Return what a process below a role is: the module or the file that it runs."""
    try:
        words = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return "gone"
    named = [word for word in words if word.startswith("rljob_workers.") or word.endswith(".py")]
    return pathlib.Path(named[0]).name if named else pathlib.Path(words[0]).name


def summary(kills: Sequence[Kill]) -> list[str]:
    """Return a line per role: number of kills, and p50, p90 and the longest of seconds until ready and recovered."""
    lines = [f"{'role':12} {'kills':>5}  ready s: p50   p90   max  recovered s: p50   p90   max"]
    for role in (*ROLES, "all"):
        of_role = [kill for kill in kills if role in (kill.role, "all")]
        if of_role:
            ready = _quantiles([kill.ready_s for kill in of_role])
            recovered = _quantiles([kill.recovered_s for kill in of_role])
            lines.append(f"{role:12} {len(of_role):5}         {ready}               {recovered}")
    return lines


def _quantiles(values: Sequence[float]) -> str:
    p90 = statistics.quantiles(values, n=10, method="inclusive")[-1] if len(values) > 1 else values[0]
    return f"{statistics.median(values):5.1f} {p90:5.1f} {max(values):5.1f}"


def bench(
    folder: pathlib.Path, *, num_kills: int, engine: str, seed: int, limit_s: float = math.inf
) -> tuple[list[Kill], list[str]]:
    """Kill until there were `num_kills` in this folder or the time is up; return all kills, and what does not hold."""
    run = Bench(folder, engine)
    ends = time.monotonic() + limit_s
    done = len(run.kills())
    chance = random.Random(f"{seed} {done}")
    try:
        run.start()
        while done < num_kills and time.monotonic() < ends:
            kill = run.kill(chance)
            done += 1
            print(f"{done:5} {kill.role:12} {kill.what:24} {kill.recovered_s:6.1f} s", file=sys.stderr, flush=True)
        run.stop()
    except BrokenRunError as error:
        return run.kills(), [str(error)]
    finally:
        run.end()
    return run.kills(), run.problems()


def main() -> int:
    """Print a table; return 1 if anything does not hold."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.kills", description=__doc__)
    parser.add_argument("--kills", type=int, default=8, help="how many in all, those of earlier calls included")
    parser.add_argument("--engine", choices=list(BOUND_S), default="fake", help="fake: the engine without a model")
    parser.add_argument("--folder", type=pathlib.Path, default=pathlib.Path("build/kills"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit-s", type=float, default=math.inf, help="begin no further kill after so many seconds")
    given = parser.parse_args()
    kills, problems = bench(
        given.folder, num_kills=given.kills, engine=given.engine, seed=given.seed, limit_s=given.limit_s
    )
    print("\n".join([*summary(kills), *(f"does not hold: {problem}" for problem in problems)]))
    print(f"{len(kills)} kills, engine {given.engine}, {len(problems)} things do not hold")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
