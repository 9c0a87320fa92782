"""What can be known to be wrong before anything starts: the programs' own `--check`, run side by side."""

import dataclasses
import pathlib
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence

from rljob_api import enums, errors, process_config
from rljob_workers.local import prepare
from rljob_workers.local.run import launch

_POLL_S = 0.1
_ERROR, _WARNING = "error: ", "warning: "
_TAIL_LINES = 8


def check(
    configs: Mapping[str, process_config.ProcessConfig], *, programs: launch.Programs, waiting: Callable[[float], None]
) -> list[str]:
    """Let the coordinator check the data, one rollout the model, tokenizer and lengths, one verifier the gold answers;
    a judge ask its language model once, and an environment try its confinement, where there is one.

    Returns what they warn of. `waiting` is called with the elapsed seconds while they are at work. Raises ManifestError
    with all problems that they print (exit code 2), RLJobError if a check itself breaks. Faults of the data end the
    other checks: nobody should wait for the download of a model to hear of a file that is not there.
    """
    coordinator, rollout, verifier = (
        _first(configs, role) for role in (enums.Role.COORDINATOR, enums.Role.ROLLOUT, enums.Role.VERIFIER)
    )
    judges = [name for name, config in configs.items() if config.role is enums.Role.JUDGE]
    # They are alike.
    environments = [name for name, config in configs.items() if config.role is enums.Role.ENVIRONMENT][:1]
    with tempfile.TemporaryDirectory(prefix="rljob-check-") as folder:
        # The run's own folder is not there yet, and is not to be filled before it is taken.
        elsewhere = {"scratch_dir": str(pathlib.Path(folder) / "scratch")}
        checked = {name: configs[name] for name in (coordinator, rollout, verifier, *judges)}
        checked |= {name: configs[name].model_copy(update=elsewhere) for name in environments}
        paths = launch.write_configs(checked, pathlib.Path(folder) / "configs")
        sources = ("--sources", str(paths[coordinator]))
        commands = [
            (*programs(enums.Role.COORDINATOR), "--config", str(paths[coordinator]), "--check"),
            (*programs(enums.Role.ROLLOUT), "--config", str(paths[rollout]), "--check", *sources),
            (*programs(enums.Role.VERIFIER), "--config", str(paths[verifier]), "--check", *sources),
            *((*programs(enums.Role.ENVIRONMENT), "--config", str(paths[name]), "--check") for name in environments),
        ]
        of_judges = [(*programs(enums.Role.JUDGE), "--config", str(paths[name]), "--check") for name in judges]
        # The judge's alone has the keys of language models.
        checks: list[_Check] = [
            *((command, {}) for command in commands),
            *((command, launch.judge_keys()) for command in of_judges),
        ]
        env = launch.environment(
            pathlib.Path(folder), cache=prepare.cache_dir(), withheld=launch.agents_own(configs.values())
        )
        ended = _run(checks, pathlib.Path(folder), env, waiting, limit_s=_startup_deadline_s(configs))
    problems = [problem for program in ended for problem in _problems(program)]
    if problems:
        # Several of them read the data, so each may find the same fault.
        raise errors.ManifestError(*dict.fromkeys(problems))
    return list(dict.fromkeys(warning for program in ended for warning in _said(program, _WARNING)))


# A command, and what its environment has in addition to the others'.
_Check = tuple[Sequence[str], Mapping[str, str]]


@dataclasses.dataclass(frozen=True, slots=True)
class _Ended:
    command: Sequence[str]
    code: int
    lines: Sequence[str]


def _first(configs: Mapping[str, process_config.ProcessConfig], role: enums.Role) -> str:
    return next(name for name, config in configs.items() if config.role is role)


def _startup_deadline_s(configs: Mapping[str, process_config.ProcessConfig]) -> int:
    specs = [config.spec for config in configs.values() if isinstance(config, process_config.SpecConfig)]
    return specs[0].startup_deadline_seconds


def _run(
    checks: Sequence[_Check],
    folder: pathlib.Path,
    env: Mapping[str, str],
    waiting: Callable[[float], None],
    *,
    limit_s: float,
) -> list[_Ended]:
    """Return how each check ended, or that of the data alone, the first, if it found faults."""
    logs = [folder / f"check-{index}.log" for index in range(len(checks))]
    started = [_start(command, log, {**env, **keys}) for (command, keys), log in zip(checks, logs, strict=True)]
    begin = time.monotonic()
    try:
        data = started[0]
        while any(process.poll() is None for process in started) and not data.returncode:
            waiting(time.monotonic() - begin)
            if time.monotonic() - begin > limit_s:
                # The model may have to be downloaded first.
                raise errors.RLJobError(f"the checks did not end within spec.startupDeadlineSeconds = {limit_s:.0f}")
            time.sleep(_POLL_S)
    finally:
        for process in started:
            process.kill()
            process.wait()
    ended = [
        _Ended(command, process.returncode, log.read_text(encoding="utf-8", errors="replace").splitlines())
        for (command, _), process, log in zip(checks, started, logs, strict=True)
    ]
    return ended[:1] if data.returncode else ended


def _start(command: Sequence[str], log: pathlib.Path, env: Mapping[str, str]) -> "subprocess.Popen[bytes]":
    with log.open("wb") as output:
        return subprocess.Popen(list(command), stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=dict(env))


def _said(ended: _Ended, kind: str) -> list[str]:
    return [line.removeprefix(kind) for line in ended.lines if line.startswith(kind)]


def _problems(ended: _Ended) -> list[str]:
    if ended.code == 0:
        return []
    lines = _said(ended, _ERROR)
    if ended.code in (enums.ExitCode.BAD_INPUT, enums.ExitCode.CONFIGURATION) and lines:
        return lines
    tail = "\n".join(ended.lines[-_TAIL_LINES:])
    raise errors.RLJobError(f"the check {' '.join(ended.command)} ended with exit code {ended.code}:\n{tail}")
