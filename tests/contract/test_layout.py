"""Surfaces that stay true: import roots, stubs, slimness, fast help, metric declarations."""

import pathlib
import subprocess
import sys

import pytest

from rljob_api import gen_wire, names

ROOT = pathlib.Path(__file__).parents[2]
HEAVY = ("torch", "vllm", "deepspeed", "transformers", "numpy")


@pytest.mark.parametrize("root", ["operator", "workers", "proto"])
def test_import_root_holds_no_python_file_of_its_own(root: str) -> None:
    loose = sorted(path.name for path in (ROOT / root).glob("*.py"))
    assert not loose, f"move {loose} into a package: a loose file in {root}/ shadows other modules"


def test_test_folders_are_no_packages() -> None:
    inits = [
        path
        for path in (ROOT / "tests").rglob("__init__.py")
        if path.relative_to(ROOT / "tests").parts[0] not in ("rljob_testing", "bench")
    ]
    assert not inits, f"delete {inits}: test folders are collected by importlib"


def test_committed_stubs_are_what_the_proto_files_generate(tmp_path: pathlib.Path) -> None:
    stale = [
        path.name
        for path in gen_wire.generate(tmp_path)
        if path.read_bytes() != (gen_wire.WIRE / path.name).read_bytes()
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


@pytest.mark.parametrize("role", list(names.Role))
def test_help_of_a_program_does_not_load_its_engine(role: names.Role) -> None:
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
    for metric in names.METRICS:
        assert metric.name.startswith("rljob_"), metric.name
        assert (metric.kind == "c") == metric.name.endswith("_total"), metric.name
        assert (metric.kind == "h") == bool(metric.buckets), metric.name
        assert not {"job", "namespace", "pod", "instance", "container"} & set(metric.labels), metric.name
        assert metric.help.endswith("."), metric.name


def test_metric_is_declared_once() -> None:
    declared = [metric.name for metric in names.METRICS]
    assert len(declared) == len(set(declared))


LOCKS = ("cpu", "slim", "worker-cpu")


def _lock(name: str) -> str:
    return (ROOT / f"workers/constraints/{name}.txt").read_text()


@pytest.mark.parametrize("name", LOCKS)
def test_lock_names_no_index_host(name: str) -> None:
    text = _lock(name)
    assert "://" not in text
    assert "--hash=sha256:" in text


@pytest.mark.parametrize("name", LOCKS[1:])
def test_image_has_the_versions_that_the_tests_ran_with(name: str) -> None:
    tested = {line.split()[0] for line in _lock("cpu").splitlines() if "==" in line}
    packed = {line.split()[0] for line in _lock(name).splitlines() if "==" in line}
    assert packed
    assert packed <= tested
