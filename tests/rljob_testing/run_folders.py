"""Run directories as runs leave them, made by hand."""

import json
import pathlib

from rljob_workers.local.rundir import journal, layout


def finished_run(folder: pathlib.Path, name: str = "small") -> layout.RunDir:
    """Return the directory of a finished run below `folder`/runs: one step, one evaluation, no dumps and logs."""
    directory = layout.RunDir(folder / "runs" / name)
    identity = directory.admit(name=name, spec={"maxSteps": 1}, manifest_dir=folder)
    directory.claim(identity.model_copy(update={"finished": True}), "kind: RLJob\n")
    lines = [
        {"kind": "step", "step": 1, "started_at": 10.0, "finished_at": 19.0, "reward_mean": 0.375},
        {"kind": "checkpoint", "step": 1},
        {"kind": "evaluation", "suite": "held-out", "step": 1, "version": 1, "accuracy": 0.25, "n": 8},
    ]
    directory.history.write_text("".join(json.dumps(line) + "\n" for line in lines))
    log = journal.Journal(directory.journal)
    log.write(journal.Entry(event="segment", at=0.0))
    log.write(journal.Entry(event="segment_end", at=30.0, detail="finished"))
    log.close()
    return directory
