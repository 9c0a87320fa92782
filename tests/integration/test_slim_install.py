"""The command line from its own lock alone, in a clean environment: what is there, what is not, and how large it is."""

import importlib.metadata
import json
import pathlib
import subprocess
import sys

import pytest

from rljob_testing.examples import ROOT

LOCK = ROOT / "workers/constraints/cli.txt"
COMMANDS = ("run", "eval", "plan", "submit", "status", "why", "logs", "trajectories", "report", "crd", "version")
HEAVY = ("torch", "vllm", "deepspeed", "transformers", "numpy", "matplotlib", "kubernetes", "kopf")
MOST_MB = 60
LIMIT_S = 120

Done = subprocess.CompletedProcess[str]


class Installed:
    """A virtual environment with the command line."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder

    def run(self, *words: str, program: str = "rljob") -> Done:
        command = [str(self.folder / "bin" / program), *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, cwd=self.folder)

    @property
    def packages(self) -> pathlib.Path:
        (packages,) = self.folder.glob("lib/python*/site-packages")
        return packages


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    uv = pathlib.Path(sys.executable).with_name("uv")
    if not uv.is_file():
        pytest.skip("needs uv in this environment: run `make setup`")
    folder = tmp_path_factory.mktemp("slim") / "env"
    python = str(folder / "bin/python")
    for words in (
        ["venv", "-q", "--python", sys.executable, str(folder)],
        ["pip", "sync", "-q", "--require-hashes", "--python", python, str(LOCK)],
        ["pip", "install", "-q", "--no-deps", "--python", python, str(ROOT)],
    ):
        subprocess.run([str(uv), *words], check=True, timeout=LIMIT_S, cwd=folder.parent)
    return Installed(folder)


@pytest.mark.parametrize("program", ["rljob", "kubectl-rljob"])
def test_every_command_prints_its_help(installed: Installed, program: str) -> None:
    for command in COMMANDS:
        done = installed.run(command, "--help", program=program)
        assert done.returncode == 0, done.stderr
        assert command in done.stdout


def test_a_manifest_is_planned(installed: Installed) -> None:
    done = installed.run("plan", str(ROOT / "crds/examples/dapo.yaml"), "--for-cluster", "-o", "json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["job"] == "dapo"


def test_a_bad_manifest_is_refused_by_field(installed: Installed) -> None:
    done = installed.run("plan", str(ROOT / "crds/examples/dapo.yaml"), "--set", "spec.maxSteps=0")
    assert done.returncode == 2
    assert "spec.maxSteps" in done.stderr


def test_a_command_that_trains_says_what_to_install(installed: Installed) -> None:
    done = installed.run("run", str(ROOT / "crds/examples/addition-cpu.yaml"))
    assert done.returncode == 2
    assert "install rljob[local,coordinator,verifier,trainer,cpu]" in done.stderr


def test_nothing_heavy_is_installed_and_all_of_it_is_small(installed: Installed) -> None:
    there = {
        name
        for distribution in importlib.metadata.distributions(path=[str(installed.packages)])
        for name in (distribution.metadata["Name"].lower(),)
    }
    assert "rljob" in there
    assert not there & set(HEAVY)
    files = [path for path in installed.packages.rglob("*") if path.is_file() and path.suffix != ".pyc"]
    megabytes = sum(path.stat().st_size for path in files) / 1e6
    print(f"\n{megabytes:.0f} MB in {len(there)} packages")
    assert megabytes < MOST_MB
