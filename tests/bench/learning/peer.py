"""Runs TRL's side of a cell in an environment of its own, and scores it: our graders, our held-out questions."""

import json
import os
import pathlib
import socket
import statistics
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any

from tests.bench.learning import scoring, sides, tasks

PROGRAM = pathlib.Path(__file__).with_name("trl_program.py")
# By which our processes of torch find each other, and a peer would wait for them.
_OURS = frozenset({"RANK", "LOCAL_RANK", "WORLD_SIZE"})
# In the program's output, a number: what its steps took of the processor. Our grading, milliseconds, is not in it.
CPU_SECONDS = "cpu_s.json"


def train(
    cell: sides.Cell, task: tasks.Task, base: pathlib.Path, folder: pathlib.Path, command: Sequence[str]
) -> scoring.Outcome:
    """Return the outcome of a program that trains as `trl_program.py` does; `command` starts it.

    Tasks of several turns are not for it. Raises RuntimeError with its last words if it fails, and ValueError if its
    steps are not of the same samples as ours: each question of the step, `sides.GROUP_SIZE` times.
    """
    questions = tasks.order(task.train, seed=cell.seed, count=cell.steps * sides.PROMPTS_PER_STEP)
    listed, out = folder / "questions.json", folder / "peer"
    listed.write_text(json.dumps([record.prompt for record in questions]), encoding="utf-8")
    ours, theirs = socket.socketpair()
    arguments = [base, listed, out, cell.seed, cell.steps, sides.LEARNING_RATE, task.max_tokens, theirs.fileno()]
    rewards = []
    with (
        (folder / "peer.log").open("w", encoding="utf-8") as log,
        subprocess.Popen(
            [*command, *map(str, arguments)],
            pass_fds=[theirs.fileno()],
            stdout=log,
            stderr=subprocess.STDOUT,
            env={name: value for name, value in os.environ.items() if name not in _OURS},
        ) as started,
    ):
        theirs.close()
        # Closed before the program is waited for: it ends where no rewards come any more.
        with ours, ours.makefile("rw", encoding="utf-8") as channel:
            for line in channel:
                request = json.loads(line)
                _check(request["questions"], step=len(rewards))
                scores = _scores(task, questions, request)
                rewards.append(statistics.fmean(scores))
                channel.write(json.dumps(scores) + "\n")
                channel.flush()
    if started.returncode != 0:
        said = (folder / "peer.log").read_text(encoding="utf-8", errors="replace")[-2000:]
        raise RuntimeError(f"{' '.join(command)} ended with {started.returncode}: {said}")
    if len(rewards) != cell.steps:
        raise ValueError(f"{len(rewards)} of {cell.steps} steps asked for rewards")
    sampler = scoring.sampler_of(out, base)
    return scoring.Outcome(
        rewards=tuple(rewards),
        held_out=scoring.score(sampler, task, greedy=True),
        sampled=scoring.score(sampler, task, greedy=False),
        gap=0.0,
        cpu_s=json.loads((out / CPU_SECONDS).read_text(encoding="utf-8")),
    )


def _check(asked: Sequence[int], *, step: int) -> None:
    first = step * sides.PROMPTS_PER_STEP
    ours = [index for index in range(first, first + sides.PROMPTS_PER_STEP) for _ in range(sides.GROUP_SIZE)]
    if sorted(asked) != ours:
        raise ValueError(f"step {step + 1} asks about questions {min(asked)} to {max(asked)}, {len(asked)} answers")


def _scores(task: tasks.Task, questions: Sequence[tasks.Record], request: Mapping[str, Any]) -> list[float]:
    pairs = zip(request["questions"], request["completions"], strict=True)
    return [task.begin(questions[index]).respond(text).reward for index, text in pairs]
