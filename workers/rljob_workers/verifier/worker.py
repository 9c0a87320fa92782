"""The process in which graders run: reads one answer at a time, replies with a grade, and may be killed at any moment.

`python -m rljob_workers.verifier.worker --fd N --parent P [--grader name=module:attribute]...`, started by the
verifier. It imports what its graders need, confines itself, reports that it is ready, and only then sees model text."""

import argparse
import dataclasses
import gc
import json
import os
import pathlib
import time
from collections.abc import Collection, Mapping, Sequence
from typing import BinaryIO

from rljob_api import enums, errors, process_config
from rljob_api.manifest.verifier import FORKED_REWARDS, PROGRAM_REWARDS, IsolationSpec
from rljob_workers.verifier import canaries, frames, replies
from rljob_workers.verifier.graders import base, registry
from rljob_workers.verifier.graders.code import code_grader
from rljob_workers.verifier.graders.repository import record
from rljob_workers.verifier.sandbox import probe, programs, repository
from rljob_workers.verifier.sandbox.confinement import profile
from rljob_workers.verifier.sandbox.processes import confine, procfs, warm


class Runner:
    """Runs programs and tests of repositories, one at a time. A `RunFn`."""

    def __init__(
        self,
        confined: profile.Confinement | None,
        *,
        canary_programs: Sequence[canaries.Canary] = canaries.CANARIES,
        packages: Collection[tuple[str, ...]] = (),
    ) -> None:
        """Start nothing yet. `confined`: None for isolation none. `canary_programs`: the canaries.

        packages: those of each reward with programs, which have an interpreter of their own for each set.
        """
        self._confined = confined
        self._interpreters = {names: warm.Interpreter(names) for names in sorted(set(packages)) or [()]}
        run: code_grader.RunFn = programs.run if confined is None else self._run_warm
        self._canaries = canaries.Watch(run, canaries=canary_programs, packages=tuple(self._interpreters))

    def __call__(
        self, program: programs.Program | repository.Suite, *, stdin: bytes, limits: programs.Limits
    ) -> programs.Run:
        """Run a program, or tests in an interpreter that nothing was imported into. Raises CannotRunError."""
        if isinstance(program, repository.Suite):
            self._canaries.count()
            return programs.run(program, stdin=stdin, limits=limits, confined=self._confined)
        return self._canaries(program, stdin=stdin, limits=limits)

    def _run_warm(self, program: programs.Program, *, stdin: bytes, limits: programs.Limits) -> programs.Run:
        start = self._interpreters[program.packages].start
        return programs.run(program, stdin=stdin, limits=limits, confined=self._confined, start=start)

    def verify(self) -> None:
        """Try what must not succeed, and programs of known outcome. Raises SandboxError for what came out otherwise."""
        if self._confined is None:
            return
        for packages, interpreter in self._interpreters.items():
            probe.verify(self._confined, start=interpreter.start, packages=packages)
        wrong = self._canaries.wrong()
        if wrong:
            raise errors.SandboxError(
                f"isolation {profile.LEVEL} does not hold: canary {wrong} had an unexpected outcome"
            )

    @property
    def canaries_due_soon(self) -> bool:
        """Return whether the canaries are to be asked for while nothing waits."""
        return self._confined is not None and self._canaries.are_due_soon

    def wrong_canary(self, *, now: bool = False) -> str:
        """Run the canaries if they are due again, or now; return the one that is wrong, empty if there is none."""
        if self._confined is None:
            return ""
        return self._canaries.wrong() if now else self._canaries.wrong_if_due()

    def survivors(self) -> frozenset[int]:
        """Return the processes that programs left, which would slow the next one or write into it."""
        own = (interpreter.pids for interpreter in self._interpreters.values())
        return procfs.children(os.getpid()).difference(*own)

    def close(self) -> None:
        for interpreter in self._interpreters.values():
            interpreter.close()


# Libraries cache: a worker is replaced before its caches can meet its memory limit.
MAX_ITEMS = 20_000


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """The supervisor's first frame. isolation: of programs of the policy, as in the manifest.

    scratch: a folder of this worker's own, where the repositories lie whose tests it runs; empty where it runs none.
    """

    rewards: tuple[process_config.GraderConfig, ...]
    memory_bytes: int
    isolation: IsolationSpec = dataclasses.field(default_factory=IsolationSpec)
    scratch: str = ""

    @classmethod
    def parse(cls, payload: Mapping[str, object]) -> "Hello":
        rewards, memory_bytes = payload["rewards"], payload["memory_bytes"]
        isolation, scratch = payload["isolation"], payload["scratch"]
        assert isinstance(rewards, list)
        assert isinstance(scratch, str)
        assert isinstance(memory_bytes, int)
        configs = tuple(process_config.GraderConfig.model_validate_json(json.dumps(reward)) for reward in rewards)
        return cls(
            rewards=configs,
            memory_bytes=memory_bytes,
            isolation=IsolationSpec.model_validate(isolation),
            scratch=scratch,
        )

    def payload(self) -> dict[str, object]:
        return {
            "rewards": [reward.model_dump(mode="json") for reward in self.rewards],
            "memory_bytes": self.memory_bytes,
            "isolation": self.isolation.model_dump(mode="json", exclude_none=True),
            "scratch": self.scratch,
        }


def main(argv: Sequence[str] | None = None) -> int:
    """Run until the supervisor closes the connection."""
    parser = argparse.ArgumentParser(prog="grading_worker", description="Grades answers for rljob-verifier.")
    parser.add_argument("--fd", type=int, required=True, help="the inherited socket")
    parser.add_argument("--parent", type=int, required=True, help="the verifier's process id")
    parser.add_argument("--grader", action="append", default=[], help="name=module:attribute of a further grader type")
    arguments = parser.parse_args(argv)
    confine.die_with(arguments.parent)
    confine.close_fds_except(arguments.fd)
    with open(arguments.fd, "rb", closefd=False) as requests, open(arguments.fd, "wb", buffering=0) as stream:
        return _run(requests, stream, arguments.grader)


def _run(requests: BinaryIO, stream: BinaryIO, extra: Sequence[str]) -> int:
    first = frames.read(requests, max_bytes=frames.MAX_REQUEST_BYTES)
    if first is None:
        return int(enums.ExitCode.OK)
    hello = Hello.parse(first)
    try:
        # The tests of repositories have fresh interpreters.
        of_programs = {reward.packages for reward in hello.rewards if reward.type in FORKED_REWARDS}
        run = Runner(_confinement(hello), packages=of_programs)
        graders = _ready_graders(hello, extra, run)
    except (errors.RLJobError, ImportError) as error:
        _send(stream, {"ready": False, "error": f"{type(error).__name__}: {error}"[:1000]})
        return int(enums.ExitCode.CONFIGURATION)
    _send(stream, {"ready": True})
    return _serve(requests, stream, graders, hello, run)


def _ready_graders(hello: Hello, extra: Sequence[str], run: Runner) -> tuple[base.Grader, ...]:
    """Raises SandboxError if isolation is not what it must be."""
    scratch = pathlib.Path(hello.scratch) if hello.scratch else None
    all_graders = {**registry.running_by(run, scratch=scratch), **registry.imported(extra)}
    graders = registry.build(hello.rewards, all_graders)
    for grader in graders:
        if grader.needs_worker:
            grader.warm()
    # What the libraries hold stays: the collector need not look through it again and again.
    gc.freeze()
    confine.adopt()
    confine.silence()
    file_bytes = record.MAX_BYTES if hello.scratch else 0
    confine.confine(memory_bytes=hello.memory_bytes, file_bytes=file_bytes)
    # Last, with this process as it will be: what holds now holds for every program.
    run.verify()
    return graders


def _confinement(hello: Hello) -> profile.Confinement | None:
    """Return how programs of the policy are confined, None if there are none, or nothing is to confine them."""
    if hello.isolation.type == "None" or not any(reward.type in PROGRAM_REWARDS for reward in hello.rewards):
        return None
    return profile.of_this_machine(runtime_class=hello.isolation.runtime_class)


def _serve(
    requests: BinaryIO,
    stream: BinaryIO,
    graders: Sequence[base.Grader],
    hello: Hello,
    run: Runner,
) -> int:
    # Grown by half of its limit it is replaced: an answer must not meet a limit that others before it used up.
    ceiling = procfs.mapped_bytes(os.getpid()) + hello.memory_bytes // 2
    for count in range(1, MAX_ITEMS + 1):
        request = frames.read(requests, max_bytes=frames.MAX_REQUEST_BYTES)
        if request is None:
            return int(enums.ExitCode.OK)
        is_canaries = request == replies.CANARIES
        # Before the answer: a worker whose canaries are wrong grades nothing any more.
        wrong = run.wrong_canary(now=is_canaries)
        if wrong or is_canaries:
            _send(stream, replies.wrong_canary_to(wrong))
        if wrong:
            break
        if is_canaries:
            continue
        cpu_limit_s = request["cpu_limit_s"]
        assert isinstance(cpu_limit_s, int | float)
        confine.allow_cpu_s(cpu_limit_s)
        try:
            grade = _answer(graders, request)
        except errors.GraderError as error:
            _send(stream, replies.error_to(error))
            continue
        exhausted = grade.outcome is enums.VerifyOutcome.OOM or procfs.mapped_bytes(os.getpid()) > ceiling
        retire = exhausted or count == MAX_ITEMS or (_ran_program(hello, request) and bool(run.survivors()))
        _send(stream, replies.grade_to(grade, _then(retire=retire, canaries=run.canaries_due_soon)))
        if retire:
            break
    return int(enums.ExitCode.OK)


def _then(*, retire: bool, canaries: bool) -> replies.Then:
    if retire:
        return replies.Then.RETIRE
    return replies.Then.CANARIES if canaries else replies.Then.SERVE


def _ran_program(hello: Hello, request: Mapping[str, object]) -> bool:
    index = request["reward"]
    assert isinstance(index, int)
    return hello.rewards[index].type in PROGRAM_REWARDS


def _answer(graders: Sequence[base.Grader], request: Mapping[str, object]) -> base.Grade:
    index, prompt, completion, columns = (request[key] for key in ("reward", "prompt", "completion", "columns"))
    prompt_ids, completion_ids, cpu_factor = (request[key] for key in ("prompt_ids", "completion_ids", "cpu_factor"))
    assert isinstance(index, int)
    assert isinstance(prompt, str)
    assert isinstance(completion, str)
    assert isinstance(columns, dict)
    assert isinstance(prompt_ids, list)
    assert isinstance(completion_ids, list)
    assert isinstance(cpu_factor, int | float)
    answer = base.Answer(
        prompt=prompt,
        completion=completion,
        columns=columns,
        prompt_ids=tuple(prompt_ids),
        completion_ids=tuple(completion_ids),
        cpu_factor=cpu_factor,
    )
    started_s = time.process_time()
    grade = base.guarded(graders[index].grade, answer)
    assert grade is not None, "grade decides"
    return dataclasses.replace(grade, cpu_s=time.process_time() - started_s)


def _send(stream: BinaryIO, payload: Mapping[str, object]) -> None:
    frames.write(stream, payload, max_bytes=frames.MAX_REPLY_BYTES)


if __name__ == "__main__":
    raise SystemExit(main())
