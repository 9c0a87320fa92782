"""Runs TRL's side of a cell in an environment of its own, and scores it: our graders, our held-out questions."""

import json
import pathlib
import resource
import socket
import statistics
import subprocess
from collections.abc import Sequence

from tests.bench.learning import scoring, sides, tasks

PROGRAM = pathlib.Path(__file__).with_name("trl_program.py")


def train(
    cell: sides.Cell, task: tasks.Task, base: pathlib.Path, folder: pathlib.Path, command: Sequence[str]
) -> scoring.Outcome:
    """Return the outcome of a program that trains as `trl_program.py` does; `command` starts it.

    Tasks of several turns are not for it. Raises CalledProcessError if it fails.
    """
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    questions = tasks.order(task.train, seed=cell.seed, count=cell.steps * sides.PROMPTS_PER_STEP)
    listed, out = folder / "questions.json", folder / "peer"
    listed.write_text(json.dumps([record.prompt for record in questions]), encoding="utf-8")
    ours, theirs = socket.socketpair()
    arguments = [base, listed, out, cell.seed, cell.steps, sides.LEARNING_RATE, task.max_tokens, theirs.fileno()]
    rewards = []
    with (folder / "peer.log").open("w", encoding="utf-8") as log, ours:
        started = subprocess.Popen(
            [*command, *map(str, arguments)], pass_fds=[theirs.fileno()], stdout=log, stderr=subprocess.STDOUT
        )
        theirs.close()
        with ours.makefile("rw", encoding="utf-8") as channel:
            for line in channel:
                scores = _scores(task, questions, json.loads(line))
                rewards.append(statistics.fmean(scores))
                channel.write(json.dumps(scores) + "\n")
                channel.flush()
        if started.wait() != 0:
            raise subprocess.CalledProcessError(started.returncode, command, (folder / "peer.log").read_text()[-2000:])
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    sampler = scoring.sampler_of(out, base)
    return scoring.Outcome(
        rewards=tuple(rewards),
        held_out=scoring.score(sampler, task, greedy=True),
        sampled=scoring.score(sampler, task, greedy=False),
        gap=0.0,
        cpu_s=after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
    )


def _scores(task: tasks.Task, questions: Sequence[tasks.Record], request: dict[str, list[object]]) -> list[float]:
    pairs = zip(request["questions"], request["completions"], strict=True)
    return [task.begin(questions[int(str(index))]).respond(str(text)).reward for index, text in pairs]
