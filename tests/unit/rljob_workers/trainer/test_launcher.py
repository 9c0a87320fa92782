"""The program's edges: exit codes, what ranks find in their environment, whose cores are whose."""

import os
import pathlib
import subprocess
import sys

import pytest

from rljob_api import enums, process_config
from rljob_api.manifest.trainer import DeepspeedSpec
from rljob_testing.sections import section
from rljob_testing.trainer_makers import make_trainer_config
from rljob_workers.trainer import __main__ as program
from rljob_workers.trainer import launch, stop, worker

PLACES = [worker.Place(rank=index, local_rank=index, local_world_size=2) for index in range(2)]


def config_of(**changes: object) -> process_config.TrainerConfig:
    return make_trainer_config(pathlib.Path("/nowhere"), **changes)


def test_help_does_not_load_torch() -> None:
    code = (
        "import sys\n"
        "from rljob_workers.trainer.__main__ import main\n"
        "try:\n    main(['--help'])\n"
        "except SystemExit as ended:\n    assert ended.code == 0\n"
        "assert 'torch' not in sys.modules\n"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0


def test_an_extra_key_that_we_set_ends_with_the_configuration_code(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    extra = section(DeepspeedSpec, extra={"gradient_clipping": 3.0})
    path = tmp_path / "role.json"
    path.write_text(config_of(deepspeed=extra).model_dump_json())
    assert program.main(["--config", str(path)]) == enums.ExitCode.CONFIGURATION
    assert "spec.trainer.deepspeed.extra.gradient_clipping" in capsys.readouterr().err
    assert program.main(["--config", str(path), "--check"]) == enums.ExitCode.BAD_INPUT


def test_a_trainer_for_gpus_where_there_is_none_says_so_and_does_not_train_on_processors(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    path = tmp_path / "role.json"
    path.write_text(config_of(device="cuda", processes_per_node=2).model_dump_json())
    assert program.main(["--config", str(path)]) == enums.ExitCode.CONFIGURATION
    assert "spec.trainer.processesPerNode 2 needs 2 GPUs in one place, but none is visible" in capsys.readouterr().err
    assert program.main(["--config", str(path), "--check"]) == enums.ExitCode.BAD_INPUT


def test_check_of_a_good_config_starts_nothing(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "role.json"
    path.write_text(config_of().model_dump_json())
    assert program.main(["--config", str(path), "--check"]) == enums.ExitCode.OK


def test_ranks_on_a_cpu_are_told_so_and_how_many_threads_they_have() -> None:
    variables = program.rank_environment(config_of(device="cpu", num_threads=2))
    assert variables["DS_ACCELERATOR"] == "cpu"
    assert variables["OMP_NUM_THREADS"] == "2"


def test_one_rank_without_a_thread_count_takes_what_the_machine_gives() -> None:
    assert "OMP_NUM_THREADS" not in program.rank_environment(config_of(num_threads=0))
    assert program.rank_environment(config_of(num_threads=0, processes_per_node=2))["OMP_NUM_THREADS"] == "1"


def test_each_rank_gets_its_own_cores_where_there_are_enough() -> None:
    shares = [worker.cores_of(config_of(cpu_affinity=(4, 5, 6, 7), num_threads=2), place) for place in PLACES]
    assert shares == [(4, 5), (6, 7)]


def test_ranks_share_the_cores_where_there_are_too_few() -> None:
    shares = [worker.cores_of(config_of(cpu_affinity=(0, 1), num_threads=2), place) for place in PLACES]
    assert shares == [(0, 1), (0, 1)]


def test_each_rank_is_told_who_it_is_among_all_and_where_they_meet() -> None:
    config = config_of(processes_per_node=2, changes={"trainer.nodes": 3}).model_copy(
        update={"node_rank": 2, "rendezvous_host": "first.pod", "rendezvous_port": 29500}
    )
    ranks = launch.environments(config)
    assert [each["RANK"] for each in ranks] == ["4", "5"]
    assert [each["LOCAL_RANK"] for each in ranks] == ["0", "1"]
    assert {(each["WORLD_SIZE"], each["LOCAL_WORLD_SIZE"], each["GROUP_RANK"]) for each in ranks} == {("6", "2", "2")}
    assert {(each["MASTER_ADDR"], each["MASTER_PORT"]) for each in ranks} == {("first.pod", "29500")}


def test_launcher_holds_no_torch() -> None:
    code = "import sys; from rljob_workers.trainer import launch; assert 'torch' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_rank_that_fails_ends_those_that_wait_for_it(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waits = tmp_path / "waits"
    os.mkfifo(waits)
    (tmp_path / "one_fails.py").write_text(
        "import os, signal, sys\n"
        "if os.environ['RANK'] == '1':\n"
        f"    with open({str(waits)!r}, 'w') as file:\n        file.write(str(os.getpid()))\n"
        "    signal.pause()\n"
        f"(waiting,) = open({str(waits)!r}).read().split()\n"
        f"open({str(tmp_path / 'pid')!r}, 'w').write(waiting)\n"
        "sys.exit(75)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert launch.run_ranks(config_of(processes_per_node=2), ["one_fails"]) == enums.ExitCode.INFRASTRUCTURE
    assert not pathlib.Path(f"/proc/{(tmp_path / 'pid').read_text()}").exists()


@pytest.mark.parametrize(("code", "expected"), [("3", 3), ("80", 80)])
def test_the_code_of_a_failed_rank_is_the_programs(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, code: str, expected: int, free_port: int
) -> None:
    (tmp_path / "ends_with.py").write_text(f"raise SystemExit({code})\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert launch.run_ranks(config_of(rendezvous_port=free_port), ["ends_with"]) == expected


def test_a_killed_rank_gives_128_and_the_signal(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, free_port: int
) -> None:
    (tmp_path / "is_killed.py").write_text("import os\nos.kill(os.getpid(), 9)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert launch.run_ranks(config_of(rendezvous_port=free_port), ["is_killed"]) == 137


def test_a_stop_before_there_are_ranks_ends_the_trainer_as_asked() -> None:
    with pytest.raises(SystemExit) as ended:
        stop.Stop().hand_on()
    assert ended.value.code == enums.ExitCode.STOPPED_ON_REQUEST


@pytest.mark.parametrize("code", [0, 1, 80, 137, 143])
def test_the_code_of_ranks_that_nobody_stopped_is_the_trainers(code: int) -> None:
    assert stop.Stop().code(code) == code


# A process of its own: a stop reaches all children of the one that it is handed on by.
ASKS_ONE_THAT_DOES_NOT_LISTEN = """
import os, sys, threading
from rljob_api import process_config
from rljob_workers.trainer import launch, stop
config = process_config.TrainerConfig.model_validate_json(sys.argv[1])
stopping = stop.Stop()
began = os.open(os.environ["BEGAN"], os.O_RDWR)
threading.Thread(target=lambda: (os.read(began, 1), stopping.hand_on())).start()
sys.exit(stopping.code(launch.run_ranks(config, ["does_not_listen"])))
"""


def test_a_rank_that_a_request_ends_before_it_listens_was_stopped_and_not_killed(
    tmp_path: pathlib.Path, free_port: int
) -> None:
    began = tmp_path / "began"
    os.mkfifo(began)
    (tmp_path / "does_not_listen.py").write_text(
        f"import signal\nwith open({str(began)!r}, 'w') as file:\n    file.write('.')\nsignal.pause()\n"
    )
    environment = {**os.environ, "BEGAN": str(began), "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    config = config_of(rendezvous_port=free_port).model_dump_json()
    done = subprocess.run(
        [sys.executable, "-c", ASKS_ONE_THAT_DOES_NOT_LISTEN, config], env=environment, timeout=120, check=False
    )
    assert done.returncode == enums.ExitCode.STOPPED_ON_REQUEST


def test_children_are_found_by_their_parent() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        assert child.pid in stop.children(os.getpid())
    finally:
        child.communicate(b"\n")


def test_a_pod_has_one_last_word_and_its_first_rank_writes_it() -> None:
    assert [worker.termination_log(place) for place in PLACES] == ["/dev/termination-log", "/dev/null"]
