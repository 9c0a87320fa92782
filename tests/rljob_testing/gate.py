"""A reward that holds a run at a step: from it on answers are graded only once a file is there. So a test that does
something to a run in time need not race it, however fast or slow the machine is. About half of any model's answers are
right, so that nearly every group of four has spread.
"""

import dataclasses
import pathlib

STEM = "gate"
CODE = '''"""Whether the ids of the tokens have an even sum: at once before a step, from it on when the gate is open."""

import pathlib
import time


def even(query_id, prompt, completion, prompt_ids, completion_ids, *, config, **row):
    history, opened = pathlib.Path(config["history"]), pathlib.Path(config["opened"])

    def steps():
        return history.read_bytes().count(b'"kind":"step"') if history.exists() else 0

    while steps() >= config["steps"] and not opened.exists():
        time.sleep(0.05)
    return float(sum(completion_ids) % 2 == 0)
'''


@dataclasses.dataclass(frozen=True, slots=True)
class Gate:
    """A run in `folder`/`run_dir` that makes no more than about `steps` steps before `open` is called."""

    folder: pathlib.Path
    steps: int
    run_dir: str = "run"

    def changes(self) -> dict[str, object]:
        """Return what to change of a manifest, with the reward's file written."""
        (self.folder / f"{STEM}.py").write_text(CODE)
        history = self.folder / self.run_dir / "state/history.jsonl"
        config = {"history": str(history), "opened": str(self._opened), "steps": self.steps}
        # Limits of grading are not a part of what waits: an hour of CPU means three of waiting.
        return {
            "workflow": {"type": "rlvr", "code": {"path": f"{STEM}.py", "configMap": STEM}},
            "verifier": {
                "rewards": [{"name": "even", "type": f"{STEM}:even", "config": config}],
                "timeoutSeconds": 3600,
            },
        }

    @property
    def _opened(self) -> pathlib.Path:
        return self.folder / "opened"

    def open(self) -> None:
        """Let the run continue to its end."""
        self._opened.touch()
