"""A whole environment, with processes: an episode by the rollout's client, over gRPC, in a place that is confined."""

import pathlib

import pytest

from rljob_api import enums, errors, process_config
from rljob_workers.environment import service
from rljob_workers.rpc import environment

PATIENT_S = 120.0


def config(folder: pathlib.Path, **changes: object) -> process_config.EnvironmentConfig:
    fields: dict[str, object] = {
        "job": process_config.JobIdentity(name="job", namespace="tests", uid="uid"),
        "role": enums.Role.ENVIRONMENT,
        "pod": "environment-0",
        "health_host": "127.0.0.1",
        "health_port": 0,
        "scratch_dir": str(folder),
        "bind_host": "127.0.0.1",
        "port": 0,
        "num_places": 1,
        "scratch_bytes": 4 << 20,
        "memory_bytes": 256 << 20,
    }
    return process_config.EnvironmentConfig.model_validate({**fields, **changes})


async def test_episodes_have_a_shell_and_files_and_nothing_of_one_another(tmp_path: pathlib.Path) -> None:
    # Of a process that was killed.
    (tmp_path / "places/worker-left/work").mkdir(parents=True)
    served = service.Service(config(tmp_path))
    try:
        await served.start()
    except errors.SandboxError as error:
        await served.close()
        pytest.skip(str(error))
    client = environment.EnvironmentClient(address=f"127.0.0.1:{served.port}", tls=None)
    try:
        assert served.ready() == (True, "ok")
        async with client.open("a", wait_s=PATIENT_S) as shell:
            await shell.write("dir/input", b"6\n7\n")
            reply = await shell.exec("sort dir/input | tail -1; exit 5", timeout_s=PATIENT_S, max_output=100)
            assert reply == environment.Reply(exit_code=5, stdout=b"7\n")
            assert await shell.read("dir/input", 2) == b"6\n"
            with pytest.raises(environment.RefusedError, match="/etc/passwd"):
                await shell.read("/etc/passwd", 10)
            for number in range(3):
                await shell.write(f"large{number}", b"x" * (1 << 20))
            with pytest.raises(environment.RefusedError, match="does not fit"):
                await shell.write("large3", b"x" * (1 << 20))
            long = await shell.exec("x" * 100_000, timeout_s=PATIENT_S, max_output=100)
            assert "at most 65536 characters" in long.refused
            await shell.reset()
            assert (await shell.exec("ls -A", timeout_s=PATIENT_S, max_output=100)).stdout == b""
            await shell.exec("sleep 600 & echo left > file", timeout_s=PATIENT_S, max_output=100)
            with pytest.raises(errors.UnavailableError, match="overloaded"):
                async with client.open("b", wait_s=0.0):
                    pytest.fail("there is one place alone")
        async with client.open("c", wait_s=PATIENT_S) as shell:
            assert (await shell.exec("ls -A", timeout_s=PATIENT_S, max_output=100)).stdout == b""
        with pytest.raises(errors.FencedError):
            await shell.exec("true", timeout_s=1.0, max_output=1)
    finally:
        await client.close()
        await served.close()
    assert list((tmp_path / "places").iterdir()) == []


def test_budget_of_an_episode_is_what_the_config_says(tmp_path: pathlib.Path) -> None:
    launch = service.launch_of(config(tmp_path, wall_s=7.0))
    budget = launch.keywords["hello"]["budget"]  # type: ignore[attr-defined]  # a partial
    assert (budget["wall_s"], budget["scratch_bytes"], budget["memory_bytes"]) == (7.0, 4 << 20, 256 << 20)
