"""From resolved configs to running processes: config files, commands, environment, logs, trainer attempts."""

import os
import pathlib
import secrets
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from rljob_api import enums, process_config
from rljob_api.manifest.reward_options import JUDGE_KEY_PREFIX
from rljob_api.manifest.rollout import GATEWAY_VARIABLE, KEY_FILE_VARIABLE, KEY_VARIABLE
from rljob_workers.local.run import child, resources
from rljob_workers.local.rundir import journal, layout
from rljob_workers.runtime import atomic, device
from rljob_workers.runtime import clock as clocks

# Returns the command that starts a role, without `--config`.
Programs = Callable[[enums.Role], Sequence[str]]


def own_programs(role: enums.Role) -> Sequence[str]:
    """Return the programs as this installation has them; the same that a pod starts."""
    return (sys.executable, "-m", f"rljob_workers.{role}")


def process_names(configs: Sequence[process_config.ProcessConfig]) -> dict[str, process_config.ProcessConfig]:
    """Return configs by process name: the role, numbered where it has more than one process."""
    counts = {role: sum(config.role is role for config in configs) for role in enums.Role}
    numbers: dict[enums.Role, int] = {}
    named: dict[str, process_config.ProcessConfig] = {}
    for config in configs:
        index = numbers.get(config.role, 0)
        numbers[config.role] = index + 1
        named[f"{config.role}-{index}" if counts[config.role] > 1 else str(config.role)] = config
    return named


def environment(temporary: pathlib.Path, *, cache: pathlib.Path, withheld: Collection[str] = ()) -> dict[str, str]:
    """Return the environment of every process: ours, unbuffered output, death with its parent, and where files go. Keys
    of language models and of the gateway are left out, and what else is withheld.

    The folder that a run is started in is on no one's path: a `random.py` that lies there is not the library's.
    temporary: for files that no one needs after the run. cache: for compiled kernels, which the next run needs again.
    """
    own = {"PYTHONUNBUFFERED": "1", "PYTHONSAFEPATH": "1", "RLJOB_DIE_WITH_PARENT": "1"}
    caches = {"TORCHINDUCTOR_CACHE_DIR": str(cache / "torchinductor"), "TRITON_CACHE_DIR": str(cache / "triton")}
    private = {KEY_VARIABLE, *withheld}
    ours = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(JUDGE_KEY_PREFIX) and name not in private
    }
    return {**caches, **ours, **own, "TMPDIR": str(temporary)}


def agents_own(configs: Iterable[process_config.ProcessConfig]) -> set[str]:
    """Return the names of variables that agents have and no other process has."""
    return {
        name for config in configs if isinstance(config, process_config.AgentsConfig) for name in config.own_variables
    }


def judge_keys() -> dict[str, str]:
    """Return what the judge has in its environment and no other process has: the keys of language models."""
    return {name: value for name, value in os.environ.items() if name.startswith(JUDGE_KEY_PREFIX)}


class Launcher:
    """Starts the processes of one run. Each start of the trainer is a new attempt with a rendezvous of its own."""

    def __init__(
        self,
        *,
        configs: Mapping[str, process_config.ProcessConfig],
        directory: layout.RunDir,
        programs: Programs,
        log: journal.Journal,
        clock: clocks.Clock,
        attempt: int,
        env: Mapping[str, str],
        inherited_fds: Sequence[int] = (),
        gpus: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        """Keep what is needed. `attempt` is the newest trainer attempt of earlier segments, 0 if there was none.

        `env` is the environment of every process; guards keep `inherited_fds` open: the lock of the run dir;
        `gpus` are those that a process sees, where it is in there.
        """
        self._gpus = gpus or {}
        self._configs, self._directory, self._programs = dict(configs), directory, programs
        self._journal, self._clock, self._attempt = log, clock, attempt
        self._env, self._inherited_fds = env, inherited_fds
        has_agents = any(isinstance(config, process_config.AgentsConfig) for config in configs.values())
        # Of agents that the run starts nobody else needs to know it.
        self._gateway_key = os.environ.get(KEY_VARIABLE) or (secrets.token_urlsafe(32) if has_agents else "")

    def spawn(self, name: str, role: enums.Role) -> child.Child:
        """Write the config of `name` and start its process, or the agents' own program. Raises OSError."""
        config = self._configs[name]
        if isinstance(config, process_config.TrainerConfig):
            config = self._next_attempt(config)
        command: Sequence[str]
        directory, env = None, self._env_of(name, role)
        if isinstance(config, process_config.AgentsConfig):
            command, directory, env = config.command, config.directory, self._env_of_agent(config)
        else:
            path = self._directory.configs / f"{name}.json"
            atomic.write_text(path, config.model_dump_json(indent=1))
            command = [*self._programs(role), "--config", str(path)]
        # On disk before the process exists: an attempt number must never be given twice.
        self._journal.write(
            journal.Entry(
                event="started", at=self._clock.now(), name=name, role=str(role), attempt=self._attempt_of(config)
            )
        )
        return child.Child(
            role=role,
            name=name,
            command=command,
            log=self._directory.logs / f"{name}.jsonl",
            env=env,
            inherited_fds=self._inherited_fds,
            directory=directory,
        )

    def _env_of(self, name: str, role: enums.Role) -> Mapping[str, str]:
        gpus = {device.VISIBLE: ",".join(self._gpus[name])} if name in self._gpus else {}
        keys = {KEY_VARIABLE: self._gateway_key} if role is enums.Role.ROLLOUT and self._gateway_key else {}
        return {**self._env, **gpus, **keys, **(judge_keys() if role is enums.Role.JUDGE else {})}

    def _env_of_agent(self, config: process_config.AgentsConfig) -> Mapping[str, str]:
        """Return what a pod of the agents has too, in the environment of the run. Raises OSError."""
        key_file = pathlib.Path(config.scratch_dir) / "gateway.key"
        key_file.parent.mkdir(parents=True, exist_ok=True)
        with open(key_file, "w", opener=lambda path, flags: os.open(path, flags, 0o600), encoding="utf-8") as file:
            file.write(self._gateway_key)
        # Its folder is the user's, where its own modules are.
        ours = {name: value for name, value in self._env.items() if name != "PYTHONSAFEPATH"}
        own = {name: os.environ[name] for name in config.own_variables if name in os.environ}
        where = {GATEWAY_VARIABLE: config.gateway_url, KEY_FILE_VARIABLE: str(key_file), "RLJOB_POD": config.pod}
        return {**ours, **config.variables, **own, **where}

    def _next_attempt(self, config: process_config.TrainerConfig) -> process_config.TrainerConfig:
        self._attempt += 1
        return config.model_copy(update={"attempt": self._attempt, "rendezvous_port": resources.free_ports(1)[0]})

    def _attempt_of(self, config: process_config.ProcessConfig) -> int:
        return self._attempt if isinstance(config, process_config.TrainerConfig) else 0


def write_configs(configs: Mapping[str, process_config.ProcessConfig], folder: pathlib.Path) -> dict[str, pathlib.Path]:
    """Write every config as `<name>.json` and return the paths."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = {name: folder / f"{name}.json" for name in configs}
    for name, config in configs.items():
        atomic.write_text(paths[name], config.model_dump_json(indent=1))
    return paths
