"""`python -m tests.bench.kills --kills 1000 --engine fake --folder DIR`: kill -9 at random, and what becomes of a run.

Kills come in bursts. Every other burst is one kill of a role that runs as it should, so that each role has a time of
its own; the others are kills of one to four roles, spread at random over some seconds, and find the processes in
whatever state the kills before have left them: waiting to be started, starting, recovering. A kill is of one process,
drawn from the tree of a role: its guard, the role itself, or a process below it (grading workers, a trainer's ranks,
vLLM's engine). After each burst the run has to get over it: all roles are ready, and a step is completed after that.

After all of them, or `--limit-s`, the run is interrupted and looked at: nothing that a rollout was asked to be accepted
is lost, no group is trained twice, no rollout served a half-applied version, and the ledger's audit is clean. Called
again with the same folder it continues with the same runs; Ctrl-C ends it after the bursts under way. Exit 1 if
anything of it does not hold, or a run hung or ended.

With `--taught` the job learns from a teacher, which lives in the trainer (`--roles trainer` kills nothing else), and
every sampled token of every step must have been given the log-probability that the named model gives it.
"""

import argparse
import concurrent.futures
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
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

import psutil

from rljob_api import enums
from rljob_testing import jobs, models, witnessed_rollout, witnessed_trainer
from rljob_workers.coordinator.ledger import database, retention
from rljob_workers.local import processes
from rljob_workers.local.rundir import layout

ROLES = ("rollout", "trainer", "verifier", "coordinator")
STARTING, READY = "starting", "ready"
# The longest time between a recovery and the next burst.
PAUSE_S = 2.0
# How long a recovery may take before the run is said to hang; the machine may be busy with other work.
BOUND_S: Mapping[str, float] = {"fake": 300.0, "vllm": 600.0}
# Least and most kills of a burst, and over how many seconds: some more than a process takes to load.
_SIZE: Mapping[str, tuple[int, int]] = {"fake": (10, 40), "vllm": (3, 6)}
_SPREAD_S: Mapping[str, tuple[float, float]] = {"fake": (5.0, 30.0), "vllm": (10.0, 60.0)}
_POLL_S, _PROBE_S, _END_S = 0.1, 0.5, 240.0
_DRIVER = """
import pathlib, sys
from rljob_workers.local import prepare, session
from rljob_workers.local.run import launch
def programs(role):
    witnessed = (sys.executable, "-m", f"rljob_testing.witnessed_{role}")
    return witnessed if role in ("rollout", "trainer") else launch.own_programs(role)
manifest = prepare.read_manifest(pathlib.Path(sys.argv[1]))
path = pathlib.Path(sys.argv[2])
sys.exit(session.run_job(manifest, path=path, skip_check=True, stream=sys.stdout, programs=programs))
"""
_CHANGES: Mapping[str, object] = {
    "maxSteps": 1_000_000,
    "checkpoint": {"everySteps": 2, "keepLast": 2},
    "observability": {"trajectoryDump": "None"},
    "failurePolicy": {"stall": {"timeoutSeconds": 3600}},
    # It varies within each group, so that each group is trained on; a grading process of its own computes it.
    "verifier": {"rewards": [{"name": "parity", "type": "parity:parity"}]},
    "workflow": {"type": "rlvr", "code": {"path": "parity.py"}},
}
# In float32, so that a teacher and the named model differ by rounding alone; the random one is another than the policy.
_TAUGHT: Mapping[str, object] = {"trainer__dtype": "float32"}
_TEACHER_SEED, MOST_DISTANCE = 1, 1e-3
_PARITY = """def parity(completion_ids, **row):
    return float(sum(completion_ids) % 2)
"""


class BrokenRunError(Exception):
    """The run hung, ended, or broke a promise."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Strike:
    """A kill to be made, `after_s` after the burst began: of the first of `roles` that has a process then."""

    after_s: float
    roles: Sequence[str]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    """A kill that was made: in which burst, at what time (unix), whose process, which one of the tree.

    state: whether the role answered that it was ready just before, or was starting. nth: 1 is the first of its burst,
    which found the whole run as it should be.
    """

    burst: int
    nth: int
    at: float
    role: str
    what: str
    state: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """How long a run took, from the last kill of a burst, to be as before.

    ready_s: until all four roles answered that they are ready. recovered_s: until a step was completed after that.
    steps: those of the run so far, repeated ones included.
    """

    burst: int
    kills: int
    roles: Sequence[str]
    ready_s: float
    recovered_s: float
    steps: int


def plan(
    number: int, engine: str, chance: random.Random, *, most: int, of: Sequence[str] = ROLES, alone: bool = False
) -> list[Strike]:
    """Return the strikes of burst `number` (from 1): one for each role in turn, and in between many of some roles.
    alone: one each time.
    """
    if alone or number % 2 == 1 or most == 1:
        return [Strike(after_s=0.0, roles=[of[(number - 1) // 2 % len(of)]])]
    size, spread_s = min(most, chance.randint(*_SIZE[engine])), chance.uniform(*_SPREAD_S[engine])
    times = sorted(chance.uniform(0.0, spread_s) for _ in range(size))
    struck = chance.sample(of, chance.randint(1, len(of)))
    return [Strike(after_s=after_s, roles=chance.sample(struck, len(struck))) for after_s in times]


class Bench:
    """A run in a folder: started, killed at, ended, and looked at."""

    def __init__(self, folder: pathlib.Path, engine: str, *, taught: bool = False) -> None:
        """Make models, records and manifest, if they are not there yet. taught: with a teacher."""
        self.folder, self._engine, self._taught = folder.absolute(), engine, taught
        self.run_dir = layout.RunDir(self.folder / "run")
        self.witness = self.folder / "witness.jsonl"
        self._kills, self._recoveries = self.folder / "kills.jsonl", self.folder / "recoveries.jsonl"
        self._manifest, self._teacher = self.folder / "job.yaml", self.folder / "teacher"
        self._process: subprocess.Popen[str] | None = None
        self._steps, self._read_to = 0, 0
        self._struck: set[tuple[int, float]] = set()
        if not self._manifest.exists():
            self.folder.mkdir(parents=True, exist_ok=True)
            models.make_tiny_llama(self.folder / "model")
            task = jobs.make_task(self.folder, num_train=128, num_held_out=1)
            (self.folder / "parity.py").write_text(_PARITY)
            changes = dict(_CHANGES)
            if taught:
                models.make_tiny_llama(self._teacher, seed=_TEACHER_SEED)
                changes |= {**_TAUGHT, "teacher": {"model": str(self._teacher)}}
            self._manifest.write_text(json.dumps(jobs.manifest(task, changes)))

    def kills(self) -> list[Kill]:
        """Return all kills of this folder's run."""
        return [Kill(**line) for line in _lines(self._kills)]

    def recoveries(self) -> list[Recovery]:
        """Return how the run got over each burst."""
        return [Recovery(**line) for line in _lines(self._recoveries)]

    def start(self) -> None:
        """Start the run, or continue with it, and wait for a step."""
        before = self.num_steps()
        environment = {
            **os.environ,
            witnessed_trainer.WITNESS: str(self.witness),
            witnessed_rollout.ENGINE: self._engine,
            **({witnessed_trainer.TEACHER: str(self._teacher)} if self._taught else {}),
        }
        output = (self.folder / "output.log").open("a")
        command = [sys.executable, "-c", _DRIVER, str(self._manifest), str(self.run_dir.path)]
        with output:
            self._process = subprocess.Popen(
                command, stdout=output, stderr=output, text=True, env=environment, start_new_session=True
            )
        self._wait(lambda: self.num_steps() > before, "the first step")

    def burst(self, number: int, strikes: Sequence[Strike], chance: random.Random) -> Recovery:
        """Kill, wait until the run is as before, and write both down. Raises BrokenRunError."""
        time.sleep(chance.uniform(0.0, PAUSE_S))
        began, made = time.monotonic(), list[Kill]()
        for strike in strikes:
            time.sleep(max(0.0, began + strike.after_s - time.monotonic()))
            made += self._strike(strike.roles, chance, burst=number, nth=len(made) + 1)
        roles = sorted({kill.role for kill in made})
        told = f"burst {number}, {len(made)} kills of {', '.join(roles)}"
        last, before = time.monotonic(), self.num_steps()
        self._wait(lambda: all(map(self._is_ready, ROLES)), f"all roles ready after {told}")
        ready_s, at_ready = time.monotonic() - last, self.num_steps()
        # One that was under way may end as if nothing had happened.
        wanted = max(at_ready + 1, before + 2)
        self._wait(lambda: self.num_steps() >= wanted, f"a step after {told}")
        done = Recovery(
            burst=number,
            kills=len(made),
            roles=roles,
            ready_s=ready_s,
            recovered_s=time.monotonic() - last,
            steps=self.num_steps(),
        )
        _append(self._recoveries, done)
        return done

    def stop(self) -> None:
        """Ask the run to end, as Ctrl-C does. Raises BrokenRunError if it does not end as it should."""
        assert self._process is not None, "it was started"
        # Not SIGINT: started in the background, a run has it ignored.
        self._process.terminate()
        try:
            code = self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            raise BrokenRunError(f"the run did not end within {_END_S:.0f} s of SIGTERM") from None
        if code != int(enums.ExitCode.INTERRUPTED):
            raise BrokenRunError(f"the run that was asked to end ended with {code}; {self.folder / 'output.log'}")

    def end(self) -> None:
        """Kill what is left, if the run was not stopped."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def num_steps(self) -> int:
        """Return how many steps the history reports on; a step that was made again after a kill counts again."""
        if not self.run_dir.history.exists():
            return 0
        with self.run_dir.history.open("rb") as file:
            file.seek(self._read_to)
            whole = file.read().rpartition(b"\n")
        self._steps += whole[0].count(b'"kind":"step"')
        self._read_to += len(whole[0]) + len(whole[1])
        return self._steps

    def problems(self) -> list[str]:
        """Return what does not hold of the run that was stopped, as sentences."""
        audit = [sys.executable, "-m", "rljob_workers.coordinator.ledger.audit", str(self.run_dir.state)]
        audited = subprocess.run(audit, capture_output=True, text=True, check=False)
        found = (audited.stdout + audited.stderr).splitlines() if audited.returncode else []
        seen = _lines(self.witness)
        accepted = {line["acknowledged"] for line in seen if line.get("outcome") == "accepted"}
        served = {(line["served"], line["state_hash"]) for line in seen if "served" in line}
        file = database.Database(self.run_dir.state / "ledger.sqlite", read_only=True)
        known = {str(row["group_id"]) for row in file.all("SELECT group_id FROM answers WHERE outcome = 'accepted'")}
        known |= {member.group_id for member in retention.everything(file) if member.accepted}
        found += [f"group {group} was acknowledged and is lost" for group in sorted(accepted - known)]
        hashes = {int(row["version"]): row["state_hash"] for row in file.all("SELECT * FROM versions")}
        # Nobody publishes version 0: it is what all processes have read from the model files.
        initial = file.one("SELECT value FROM meta WHERE key = 'initial_state_hash'")
        hashes[0] = initial["value"] if initial else ""
        file.close()
        wrong = {version for version, held in served if version in hashes and hashes[version] != held}
        found += [f"version {version} was served half applied" for version in sorted(wrong)]
        found += trained_twice(line for line in seen if "trained" in line)
        if self._taught:
            found += taught_wrongly(line for line in seen if "trained" in line)
        trained = any(line["groups"] for line in seen if "trained" in line)
        if not (accepted and trained and {version for version, _ in served} & hashes.keys()):
            found.append(
                "the witnesses saw nothing: no group acknowledged or trained, or no version of the ledger served"
            )
        return found

    def _strike(self, roles: Sequence[str], chance: random.Random, *, burst: int, nth: int) -> list[Kill]:
        """Kill a process of the first of `roles` that has any now; return nothing if none has."""
        for role in roles:
            tree = self._tree(role)
            if not tree:
                continue
            state, pid = READY if self._answers(role) else STARTING, chance.choice(tree)
            what = self._name(role, pid)
            if self._shoot(role, pid):
                made = Kill(burst=burst, nth=nth, at=time.time(), role=role, what=what, state=state)
                _append(self._kills, made)
                return [made]
        return []

    def _shoot(self, role: str, pid: int) -> bool:
        """Send SIGKILL to a process that is still of this run; return whether there was one."""
        try:
            handle = os.pidfd_open(pid)
        except ProcessLookupError:
            return False
        try:
            # From here on the handle is that process and no other that gets its number.
            identity = _identity(pid)
            if identity is None or pid not in self._tree(role):
                return False
            signal.pidfd_send_signal(handle, signal.SIGKILL)
        except ProcessLookupError:
            return False
        finally:
            os.close(handle)
        self._struck.add(identity)
        return True

    def _entry(self, role: str) -> Mapping[str, int | None]:
        """Return guard and own process of a role; empty if it waits to be started."""
        with contextlib.suppress(OSError, ValueError, KeyError):
            entry: Mapping[str, int | None] = json.loads(self.run_dir.pids.read_text())[role]
            return entry
        return {}

    def _tree(self, role: str) -> list[int]:
        """Return the processes of a role: its guard, a child of this run's, and all below."""
        assert self._process is not None, "it was started"
        guard, parent_of = self._entry(role).get("guard"), processes.parents()
        if guard is None or parent_of.get(guard) != self._process.pid:
            return []
        return [guard, *processes.descendants(guard, parent_of)]

    def _name(self, role: str, pid: int) -> str:
        entry = self._entry(role)
        return "guard" if pid == entry.get("guard") else "role" if pid == entry.get("pid") else _program(pid)

    def _is_ready(self, role: str) -> bool:
        """Return whether a role, none of whose first two processes was killed, says that it is ready."""
        entry = self._entry(role)
        pids = [entry.get("guard"), entry.get("pid")]
        if not all(pid is not None and processes.is_running(pid) for pid in pids):
            return False
        return self._struck.isdisjoint(map(_identity, filter(None, pids))) and self._answers(role)

    def _answers(self, role: str) -> bool:
        try:
            config = json.loads((self.run_dir.configs / f"{role}.json").read_text())
            with urllib.request.urlopen(
                f"http://{config['health_host']}:{config['health_port']}/readyz", timeout=_PROBE_S
            ) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError, ValueError):
            return False

    def _wait(self, holds: Callable[[], bool], what: str) -> None:
        assert self._process is not None, "it was started"
        end = time.monotonic() + BOUND_S[self._engine]
        while not holds():
            if self._process.poll() is not None:
                raise BrokenRunError(f"the run ended with {self._process.returncode} before {what}; see {self.folder}")
            if time.monotonic() > end:
                self._explain()
                raise BrokenRunError(f"hung: no sign of {what} in {BOUND_S[self._engine]:.0f} s; see {self.folder}")
            time.sleep(_POLL_S)

    def _explain(self) -> None:
        """Keep what the run itself says of whom it waits for."""
        why = [sys.executable, "-m", "rljob_workers.cli", "why", "--run-dir", str(self.run_dir.path)]
        told = subprocess.run(why, capture_output=True, text=True, check=False)
        (self.folder / "why.txt").write_text(told.stdout + told.stderr)


def trained_twice(trained: Iterable[Mapping[str, object]]) -> list[str]:
    """Return, as sentences, which groups were in updates of two steps, and which steps were made of two batches.

    A step is made again after the trainer went back to a checkpoint: of the same batch, byte for byte.
    """
    batches: dict[object, tuple[object, object]] = {}
    steps: dict[object, set[object]] = {}
    found = list[str]()
    for line in trained:
        step, groups = line["trained"], line["groups"]
        assert isinstance(groups, list), "the witness wrote it"
        if batches.setdefault(step, (groups, line["digest"])) != (groups, line["digest"]):
            found.append(f"step {step} was made again of another batch")
        for group in groups:
            steps.setdefault(group, set()).add(step)
    many = {group: sorted(map(str, of)) for group, of in steps.items() if len(of) > 1}
    return found + [f"group {group} was trained in steps {', '.join(of)}" for group, of in many.items()]


def taught_wrongly(trained: Iterable[Mapping[str, object]]) -> list[str]:
    """Return, as sentences, which updates had a sampled token that the named teacher did not score."""
    sentences = map(_wrongly_taught, trained)
    return [sentence for sentence in sentences if sentence]


def _wrongly_taught(line: Mapping[str, object]) -> str:
    taught, sampled, distance = line["taught"], line["sampled"], line["distance"]
    assert isinstance(distance, float), "the witness wrote it"
    if not sampled or taught != sampled:
        return f"step {line['trained']}: the teacher scored {taught} of {sampled} tokens"
    if distance > MOST_DISTANCE:
        return f"step {line['trained']}: the teacher is {distance:.3g} nats from the model that is named"
    return ""


def _lines(path: pathlib.Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def _append(path: pathlib.Path, line: Kill | Recovery) -> None:
    with path.open("a") as log:
        log.write(json.dumps(dataclasses.asdict(line)) + "\n")


def _identity(pid: int) -> tuple[int, float] | None:
    """Return number and start of a process: after thousands of processes numbers come again."""
    try:
        return pid, psutil.Process(pid).create_time()
    except psutil.Error:
        return None


def _program(pid: int) -> str:
    """Return what a process below a role is: the module or the file that it runs."""
    try:
        words = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return "gone"
    named = [word for word in words if word.startswith(("rljob_workers.", "rljob_testing.")) or word.endswith(".py")]
    return pathlib.Path(named[0]).name if named else pathlib.Path(words[0]).name


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """Kills, recoveries and what does not hold, of one run or of several."""

    kills: Sequence[Kill] = ()
    recoveries: Sequence[Recovery] = ()
    problems: Sequence[str] = ()


def summary(result: Result) -> list[str]:
    """Return how many kills met what, and seconds until ready and recovered: of single kills by role, of bursts."""
    lines = [f"{'kills of':12} {'all':>5} {STARTING:>9} {READY:>6}  of which"]
    for role in (*ROLES, "all"):
        of_role = [kill for kill in result.kills if role in (kill.role, "all")]
        states = Counter(kill.state for kill in of_role)
        whats = Counter(kill.what for kill in of_role) if role != "all" else {}
        told = ", ".join(f"{what} {count}" for what, count in sorted(whats.items(), key=lambda pair: -pair[1]))
        lines.append(f"{role:12} {len(of_role):5} {states[STARTING]:9} {states[READY]:6}  {told}")
    lines.append(f"{'recovery of':14} {'times':>5}  ready s: p50   p90   max  recovered s: p50   p90   max")
    alone = {role: [one for one in result.recoveries if one.kills == 1 and list(one.roles) == [role]] for role in ROLES}
    kinds = {**alone, "bursts": [one for one in result.recoveries if one.kills > 1], "all": list(result.recoveries)}
    for kind, recoveries in kinds.items():
        if recoveries:
            ready = _quantiles([one.ready_s for one in recoveries])
            recovered = _quantiles([one.recovered_s for one in recoveries])
            lines.append(f"{kind:14} {len(recoveries):5}         {ready}               {recovered}")
    return lines


def _quantiles(values: Sequence[float]) -> str:
    p90 = statistics.quantiles(values, n=10, method="inclusive")[-1] if len(values) > 1 else values[0]
    return f"{statistics.median(values):5.1f} {p90:5.1f} {max(values):5.1f}"


def bench(
    folder: pathlib.Path,
    *,
    num_kills: int,
    engine: str,
    seed: int,
    limit_s: float = math.inf,
    runs: int = 1,
    interrupted: threading.Event | None = None,
    roles: Sequence[str] = ROLES,
    taught: bool = False,
    alone: bool = False,
) -> Result:
    """Kill until there were `num_kills` in all of this folder's runs, the time is up, or `interrupted` is set.

    The runs continue side by side.
    """
    ends = time.monotonic() + limit_s
    benches = [Bench(folder / f"run-{number}", engine, taught=taught) for number in range(runs)]

    def left() -> int:
        over = time.monotonic() > ends or (interrupted is not None and interrupted.is_set())
        return 0 if over else num_kills - sum(len(one.kills()) for one in benches)

    with concurrent.futures.ThreadPoolExecutor(runs) as threads:
        problems = threads.map(
            lambda pair: _kill_at(pair[1], f"{seed} {pair[0]}", engine, left, roles, alone), enumerate(benches)
        )
    return Result(
        kills=[kill for one in benches for kill in one.kills()],
        recoveries=[recovery for one in benches for recovery in one.recoveries()],
        problems=[problem for found in problems for problem in found],
    )


def _kill_at(
    run: Bench, seed: str, engine: str, left: Callable[[], int], roles: Sequence[str], alone: bool
) -> list[str]:
    """Kill at one run while `left` says that kills are; return what does not hold of it."""
    number = max((kill.burst for kill in run.kills()), default=0)
    chance = random.Random(f"{seed} {number}")
    try:
        run.start()
        while (most := left()) > 0:
            number += 1
            done = run.burst(number, plan(number, engine, chance, most=most, of=roles, alone=alone), chance)
            told = f"{run.folder.name} burst {number:4}: {done.kills:3} kills, {most - done.kills:5} to go"
            print(f"{told}, recovered in {done.recovered_s:6.1f} s", file=sys.stderr, flush=True)
        run.stop()
    except BrokenRunError as error:
        return [str(error)]
    finally:
        run.end()
    return run.problems()


def main() -> int:
    """Print tables; return 1 if anything does not hold."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.kills", description=__doc__)
    parser.add_argument("--kills", type=int, default=8, help="how many in all, those of earlier calls included")
    parser.add_argument("--engine", choices=list(BOUND_S), default="fake", help="fake: the engine without a model")
    parser.add_argument("--folder", type=pathlib.Path, default=pathlib.Path("build/kills"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit-s", type=float, default=math.inf, help="begin no further burst after so many seconds")
    parser.add_argument("--runs", type=int, default=1, help="how many runs at the same time")
    parser.add_argument("--roles", default=",".join(ROLES), help="whose processes are killed")
    parser.add_argument("--alone", action="store_true", help="one kill at a time, each of a run that has recovered")
    parser.add_argument("--taught", action="store_true", help="with a teacher, whose every word is checked")
    given = parser.parse_args()
    roles = given.roles.split(",")
    if unknown := [role for role in roles if role not in ROLES]:
        parser.error(f"--roles: {unknown[0]!r} is none of {', '.join(ROLES)}")
    interrupted = threading.Event()
    signal.signal(signal.SIGINT, lambda *_: interrupted.set())
    result = bench(
        given.folder,
        num_kills=given.kills,
        engine=given.engine,
        seed=given.seed,
        limit_s=given.limit_s,
        runs=given.runs,
        interrupted=interrupted,
        roles=roles,
        taught=given.taught,
        alone=given.alone,
    )
    print("\n".join([*summary(result), *(f"does not hold: {problem}" for problem in result.problems)]))
    print(f"{len(result.kills)} kills, engine {given.engine}, {len(result.problems)} things do not hold")
    return 1 if result.problems else 0


if __name__ == "__main__":
    sys.exit(main())
