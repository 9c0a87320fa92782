"""A real S3 server: MinIO (AGPL, for tests alone), built from its Go module. On the loopback, or where it is put."""

import os
import pathlib
import secrets
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Sequence

from rljob_testing.cluster import binaries
from rljob_testing.ports import free_ports

_START_S = 60.0


class Minio:
    """A server with a folder of its own, which survives `stop` and `start`."""

    def __init__(self, folder: pathlib.Path, *, enter: Sequence[str] = (), listen: str = "", reach: str = "") -> None:
        """Nothing runs before `start`.

        enter: the prefix of a command in a network namespace, where it is to `listen`; from here it is at `reach`.
        """
        self._folder, self._enter, self._listen = folder, enter, listen or f"127.0.0.1:{free_ports(1)[0]}"
        self._process: subprocess.Popen[bytes] | None = None
        self.endpoint = f"http://{reach or self._listen}"
        # What a client finds in its environment.
        self.keys = {"AWS_ACCESS_KEY_ID": "tester", "AWS_SECRET_ACCESS_KEY": secrets.token_hex(16)}

    def start(self) -> None:
        """Return once it answers."""
        data = self._folder / "data"
        data.mkdir(parents=True, exist_ok=True)
        own = {
            "MINIO_ROOT_USER": self.keys["AWS_ACCESS_KEY_ID"],
            "MINIO_ROOT_PASSWORD": self.keys["AWS_SECRET_ACCESS_KEY"],
            "MINIO_UPDATE": "off",
        }
        with (self._folder / "minio.log").open("ab") as log:
            self._process = subprocess.Popen(
                [*self._enter, str(binaries.find("minio")), "server", str(data), "--address", self._listen, "--quiet"],
                env={**os.environ, **own},
                stdout=log,
                stderr=log,
            )
        deadline = time.monotonic() + _START_S
        while not self._answers():
            assert self._process.poll() is None, (self._folder / "minio.log").read_text()
            assert time.monotonic() < deadline, "MinIO does not answer"
            time.sleep(0.05)

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.endpoint}/minio/health/ready", timeout=2):
                return True
        except (urllib.error.URLError, OSError):
            return False

    def stop(self) -> None:
        """End it; what it has acknowledged stays."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait(30)
            self._process = None

    def make_bucket(self, name: str) -> str:
        """Make a bucket: a server of one drive takes its folders for that. Return its URI."""
        (self._folder / "data" / name).mkdir(parents=True, exist_ok=True)
        return f"s3://{name}"
