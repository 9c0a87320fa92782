"""The judge's own model, by a program in place of vLLM's server: it answers once a file is there."""

import asyncio
import pathlib
import sys
from collections.abc import Callable

import pytest

from rljob_api import enums, errors, process_config
from rljob_testing import judges
from rljob_testing.ports import free_ports
from rljob_workers.judge import model_server, service
from rljob_workers.runtime import clock

SERVER = """
import http.server, json, os, pathlib, sys

config = json.loads(pathlib.Path(sys.argv[sys.argv.index("--config") + 1]).read_text())
folder = pathlib.Path(config["scratch_dir"])
(folder / "seen").write_text(" ".join(name for name in os.environ if name.startswith("RLJOB_JUDGE_KEY_")))

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.reply(200 if (folder / "loaded").exists() else 503, {})

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        right = self.headers["Authorization"] == "Bearer " + os.environ["VLLM_API_KEY"]
        said = {"choices": [{"index": 0, "message": {"role": "assistant", "content": "Score: 10"}}]}
        self.reply(200 if right and self.path == "/v1/chat/completions" else 401, said)

    def reply(self, status, content):
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *words):
        pass

http.server.ThreadingHTTPServer(("127.0.0.1", config["server"]["port"]), Handler).serve_forever()
"""
STUBBORN = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
)


class Judge:
    """A judge with a program of a test as its server."""

    def __init__(self, folder: pathlib.Path, program: str) -> None:
        self.folder = folder
        (port,) = free_ports(1)
        own = {"model": {"name": "org/judge", "cache_dir": "/nonexistent"}, "port": port}
        self.config = process_config.JudgeConfig.model_validate(
            {
                "job": judges.JOB,
                "role": enums.Role.JUDGE,
                "pod": "judge-0",
                "health_host": "127.0.0.1",
                "health_port": 0,
                "scratch_dir": str(folder),
                "bind_host": "127.0.0.1",
                "port": 0,
                "rewards": [judges.reward(url=f"http://127.0.0.1:{port}/v1", model="judge")],
                "server": own,
            }
        )
        path = folder / "judge.json"
        path.write_text(self.config.model_dump_json())
        assert self.config.server is not None
        self.model = model_server.ModelServer(
            self.config.server,
            config_path=path,
            environment={"RLJOB_JUDGE_KEY_A_B": "of another judge"},
            clock=clock.SystemClock(),
            program=(sys.executable, "-c", program),
        )
        self.service = service.Service(self.config, environment={}, model=self.model)


Make = Callable[[str], Judge]


@pytest.fixture
def make(tmp_path: pathlib.Path) -> Make:
    return lambda program: Judge(tmp_path, program)


async def test_questions_wait_until_the_model_is_loaded_and_have_its_key(make: Make) -> None:
    judge = make(SERVER)
    await judge.service.start()
    run = asyncio.ensure_future(judge.service.run())
    try:
        asked = asyncio.ensure_future(judge.service.judging.verify([judges.item("five")]))
        while not (judge.folder / "seen").exists():
            assert not run.done()
            await asyncio.sleep(0.02)
        assert judge.service.ready() == (False, "its model is being loaded")
        assert not asked.done()
        (judge.folder / "loaded").touch()
        (verdict,) = await asked
        assert verdict.reward == 1.0
        while not judge.service.ready()[0]:
            await asyncio.sleep(0.02)
        assert (judge.folder / "seen").read_text() == "", "keys of other judges are not the server's"
    finally:
        judge.service.stop()
        await run
        await judge.service.close()
    assert judge.model.pid is None, "it ends with its judge"


@pytest.mark.parametrize(
    ("code", "error"), [(2, errors.ManifestError), (78, errors.ManifestError), (1, errors.UnavailableError)]
)
async def test_a_judge_ends_with_its_model(make: Make, code: int, error: type[Exception]) -> None:
    judge = make(f"raise SystemExit({code})")
    await judge.service.start()
    with pytest.raises(error):
        await judge.service.run()
    await judge.service.close()


async def test_a_server_that_does_not_stop_is_killed(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_server, "_GRACE_S", 0.05)
    judge = make(STUBBORN)
    await judge.model.start()
    await judge.model.close()
    assert judge.model.pid is None
