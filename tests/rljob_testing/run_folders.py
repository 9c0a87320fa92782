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


def dump_row(
    run: layout.RunDir, group: str, sample: int = 0, *, version: int = 0, kind: str = "rollout", **changes: object
) -> None:
    """Append a row to the dumps of a run, in the form of docs/design/workflows.md#s-10."""
    row = {
        "task_id": group, "group_id": group, "sample_idx": sample, "attempt": 0, "query_id": "p1", "seqlen": 5,
        "head_version": version, "tail_version": version, "version_rle": [[version, 2]], "prompt_len": 3,
        "reward": 0.0, "raw_reward": 0.0, "truncated": False, "stop_reason": "stop", "formatted": True,
        "reason": "wrong", "prompt": "1 + 1 = ", "completion": "3", "segments": None, "turns": None,
    }  # fmt: skip
    path = run.dumps / kind / str(version) / f"{group}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(row | changes) + "\n")
