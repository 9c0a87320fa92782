"""FAKE of the trainer, for tests of the runner: its steps and checkpoints are numbers in the files of `fake_roles`."""

import http.server
import threading

from rljob_api import enums, process_config
from rljob_testing.fake_roles import FOLDER, number, put, tell
from rljob_workers.runtime import health

STEP_S = 0.15
TOKEN = "of the fake trainer"


def trainer(config: process_config.TrainerConfig) -> int:
    """Make steps from the checkpoint on; stop after one on POST /stop; not the last one while there is `hold`."""
    asked = threading.Event()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            may = self.headers.get(health.STOP_HEADER) == TOKEN
            if may:
                tell("trainer asked to stop")
                asked.set()
            self.send_response(202 if may else 404)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """Silence."""

    server = http.server.ThreadingHTTPServer((config.health_host, config.health_port), Handler)
    token_file = health.stop_token_file(config)
    token_file.parent.mkdir(parents=True, exist_ok=True)
    token_file.write_text(TOKEN)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    put("step", number("checkpoint"))
    while number("step") < config.spec.max_steps and not asked.wait(STEP_S):
        if number("step") == config.spec.max_steps - 1 and (FOLDER / "hold").exists():
            continue
        put("step", number("step") + 1)
        if number("step") % config.spec.checkpoint.every_steps == 0:
            put("checkpoint", number("step"))
    put("checkpoint", number("step"))
    if asked.is_set():
        return int(enums.ExitCode.STOPPED_ON_REQUEST)
    (FOLDER / "final").touch()
    return 0


def run(config: str) -> int:
    """Play the trainer of a configuration."""
    parsed = process_config.TrainerConfig.model_validate_json(config)
    tell(f"attempt {parsed.attempt}")
    return trainer(parsed)
