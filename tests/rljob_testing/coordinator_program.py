"""The real coordinator program with its weight store, as a child process on loopback."""

import pathlib
import subprocess
import sys
from typing import Any

from rljob_api import process_config
from rljob_testing.ports import free_ports
from rljob_testing.sections import with_spec

LIMIT_S = 100.0


class Program:
    """The coordinator as a child process."""

    def __init__(self, config: process_config.CoordinatorConfig, folder: pathlib.Path) -> None:
        self.address, self.store = f"127.0.0.1:{config.control_port}", config.store_address
        self.config, self._path = config, folder / "coordinator.json"
        self._path.write_text(config.model_dump_json(), encoding="utf-8")
        self._log = (folder / "log").open("ab")
        self.start()

    def start(self) -> None:
        command = [sys.executable, "-m", "rljob_workers.coordinator", "--config", str(self._path)]
        self.process = subprocess.Popen(command, stdout=self._log, stderr=self._log)

    def edit(self, **changes: Any) -> None:
        job = self.config.job.model_copy(update={"config_generation": 2})
        part = self._path.with_suffix(".part")
        changed = with_spec(self.config, **changes).model_copy(update={"job": job})
        part.write_text(changed.model_dump_json(), encoding="utf-8")
        part.replace(self._path)

    def children(self) -> list[int]:
        listed = pathlib.Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text(encoding="ascii")
        return [int(pid) for pid in listed.split()]

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(LIMIT_S)

    def close(self) -> int:
        self.process.terminate()
        code = self.process.wait(LIMIT_S)
        self._log.close()
        return code


def on_free_ports(config: process_config.CoordinatorConfig) -> process_config.CoordinatorConfig:
    """Return the config with ports of loopback that are free."""
    control, store, health = free_ports(3)
    return config.model_copy(
        update={
            "control_port": control,
            "store_port": store,
            "store_address": f"127.0.0.1:{store}",
            "health_port": health,
            "health_host": "127.0.0.1",
        }
    )
