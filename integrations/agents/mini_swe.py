"""The command `mini` of the package `mini-swe-agent`: a process for each session, whose shell is confined.

It runs what the model writes. mini_swe.yaml has that done by its own environment `bubblewrap`: no network, no file of
this machine but programs and libraries, a folder that goes with the session, limits on time, memory and processes.
"""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from typing import Any

import sessions

HERE = pathlib.Path(__file__).parent
RAN = 0.25
MOST_S = 300


def play(session: sessions.Session) -> float:
    """Return 1 if a command printed the sum, else 0.25 if one ran."""
    with tempfile.TemporaryDirectory() as scratch:
        saved = pathlib.Path(scratch) / "run.json"
        command = [
            str(pathlib.Path(sys.executable).with_name("mini")), "--agent-class", "default", "--output", str(saved),
            "--task", f"print the sum {session.question}",
            "--config", "mini_textbased.yaml", "--config", str(HERE / "mini_swe.yaml"),
            "--config", f"model.model_kwargs.api_base={session.base_url}",
        ]  # fmt: skip
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": scratch,
            "TMPDIR": scratch,
            "OPENAI_API_KEY": session.api_key,
            "MSWEA_CONFIGURED": "true",
            "MSWEA_SILENT_STARTUP": "true",
            "MSWEA_MODEL_RETRY_STOP_AFTER_ATTEMPT": "1",
            # A list of prices that litellm fetches when it is imported.
            "LITELLM_LOCAL_MODEL_COST_MAP": "true",
        }
        done = subprocess.run(
            command, env=environment, cwd=scratch, stdin=subprocess.DEVNULL, capture_output=True, text=True,
            timeout=MOST_S,
        )  # fmt: skip
        if not saved.is_file():
            raise RuntimeError(f"mini ended with exit code {done.returncode}: {done.stdout[-300:]}{done.stderr[-300:]}")
        run = json.loads(saved.read_text(encoding="utf-8"))
    return reward_of(run, session)


def reward_of(run: Mapping[str, Any], session: sessions.Session) -> float:
    """Return what a saved run has earned. Raises RuntimeError for one that failed: that is no answer of the model's."""
    status = run["info"]["exit_status"]
    if status not in ("Submitted", "LimitsExceeded", "RepeatedFormatError"):
        raise RuntimeError(f"mini ended with {status}: {run['info'].get('exception_str', '')}")
    outputs = [
        message["extra"]["raw_output"] for message in run["messages"] if "raw_output" in message.get("extra", {})
    ]
    if any(session.is_right(output) for output in outputs):
        return 1.0
    return RAN * bool(outputs)


if __name__ == "__main__":
    for program in ("bwrap", "prlimit"):
        if shutil.which(program) is None:
            # Never without: it would run what the model writes as it is.
            sys.exit(f"mini_swe.py needs the program {program}: install the package bubblewrap or util-linux")
    sessions.serve(play, num_sessions=2)
