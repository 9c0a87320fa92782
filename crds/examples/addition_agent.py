"""The agent of addition-agents-cpu.yaml: takes tasks from the job's gateway and asks the model, by the standard library
alone. It gives no reward, so the job's own grade each answer.
"""

import json
import os
import pathlib
import threading
import time
import urllib.error
import urllib.request

GATEWAY = os.environ["RLJOB_GATEWAY"]
KEY = pathlib.Path(os.environ["RLJOB_GATEWAY_KEY_FILE"]).read_text(encoding="utf-8").strip()
# As many as the engine decodes at once: each waits for its own answers.
THREADS = 32


def post(url: str, key: str, body: object) -> dict[str, object] | None:
    """Return the JSON that is answered, None for an empty answer."""
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    request = urllib.request.Request(url, data=json.dumps(body).encode(), headers=headers, method="POST")
    with urllib.request.urlopen(request, timeout=600) as answer:
        return json.loads(answer.read() or "null")


def attempt() -> None:
    """Answer one task, if one comes within 20 seconds."""
    session = post(f"{GATEWAY}/v1/sessions", KEY, {"waitSeconds": 20})
    if session is None:
        return
    base, key = session["base_url"], str(session["api_key"])
    post(f"{base}/completions", key, {"model": "policy", "prompt": session["task"]["prompt_text"]})  # type: ignore[index]
    # Without a reward: the job's graders judge the last answer.
    post(f"{base}/close", key, {})


def work() -> None:
    """Answer tasks for as long as the process lives."""
    while True:
        try:
            attempt()
        except (urllib.error.URLError, ConnectionError):
            # A session that is over, or a rollout that starts or is gone: its attempt is offered again.
            time.sleep(1.0)


if __name__ == "__main__":
    for _ in range(THREADS):
        threading.Thread(target=work).start()
