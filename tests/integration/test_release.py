"""Everything of a release but images, made twice: the same bytes, complete, and installed by krew in a clean home."""

import json
import os
import pathlib
import platform
import subprocess
import sys
import tarfile
import zipfile
from typing import Any

import pytest
import yaml
from generators import CHART
from release import archives, krew, olm_bundle, sbom
from release.__main__ import main
from release.programs import ReleaseError

import rljob_api
from rljob_api.validation import definitions
from rljob_testing.charts import TIMEOUT_S, Helm, program_or_skip
from rljob_testing.examples import ROOT

VERSION = rljob_api.__version__
DOWNLOAD_URL = "https://example.com/rljob/v0"
# krew's own guide asks for a description that fits on a line of its list.
LONGEST_DESCRIPTION = 50
MOST_MB = 25
# How wheels name a platform of krew's.
TAGS = {
    ("linux", "amd64"): ("manylinux", "x86_64"),
    ("linux", "arm64"): ("manylinux", "aarch64"),
    ("darwin", "amd64"): ("macosx", "x86_64 universal2"),
    ("darwin", "arm64"): ("macosx", "arm64 universal2"),
}
ON_LINUX = pytest.mark.skipif(
    not (sys.platform.startswith("linux") and platform.machine() == "x86_64"),
    reason="runs the archive for Linux on amd64",
)
pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def releases(tmp_path_factory: pytest.TempPathFactory) -> tuple[pathlib.Path, pathlib.Path]:
    """Two folders, each with a release of this tree."""
    helm = str(program_or_skip("helm"))
    if not pathlib.Path(sys.executable).with_name("uv").is_file():
        pytest.skip("needs uv in this environment: run `make setup`")
    folders = tmp_path_factory.mktemp("first") / "release", tmp_path_factory.mktemp("second")
    with pytest.MonkeyPatch.context() as environment:
        # A test downloads nothing.
        environment.setenv("UV_OFFLINE", "1")
        try:
            krew.fetch()
        except ReleaseError as error:
            pytest.skip(f"needs the plug-in's packages in uv's cache, where `make test` brings them: {error}")
        for folder in folders:
            assert main([str(folder), "--unsigned", "--download-url", DOWNLOAD_URL, "--helm", helm]) == 0
    return folders


@pytest.fixture(scope="module")
def release(releases: tuple[pathlib.Path, pathlib.Path]) -> pathlib.Path:
    return releases[0]


def _archive(release: pathlib.Path, target: krew.Platform) -> pathlib.Path:
    return release / f"kubectl-rljob-{VERSION}-{target.os}-{target.arch}.tar.gz"


def test_a_release_is_the_same_bytes_each_time(releases: tuple[pathlib.Path, pathlib.Path]) -> None:
    first, second = ((folder / archives.CHECKSUMS).read_text() for folder in releases)
    assert first == second


def test_a_release_is_complete_and_its_checksums_hold(release: pathlib.Path) -> None:
    names = {file.relative_to(release).as_posix() for file in release.rglob("*") if file.is_file()}
    assert names == {
        archives.CHECKSUMS,
        f"rljob-{VERSION}.tar.gz",
        f"rljob-{VERSION}-py3-none-any.whl",
        f"rljob-operator-{VERSION}.tgz",
        f"rljob-operator-bundle-{VERSION}.tar.gz",
        f"rljob-crds-{VERSION}.yaml",
        *(_archive(release, target).name for target in krew.PLATFORMS),
        "plugins/rljob.yaml",
        *(f"sbom-{lock}.cdx.json" for lock in sbom.LOCKS),
    }
    checked = subprocess.run(
        ["sha256sum", "--check", "--strict", archives.CHECKSUMS], cwd=release, capture_output=True, text=True
    )
    assert checked.returncode == 0, checked.stdout
    assert checked.stdout.count(": OK") == len(names) - 1


@pytest.fixture(scope="module")
def plugin(release: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a user who has kubectl, the plug-in as krew installed it and Python 3.11."""
    home = tmp_path_factory.mktemp("home")
    environment = {
        "HOME": str(home),
        "KREW_ROOT": str(home / ".krew"),
        # It would ask the network for a newer krew.
        "KREW_NO_UPGRADE_CHECK": "1",
        "PATH": f"{home}/.krew/bin:{program_or_skip('kubectl').parent}:/usr/bin:/bin",
        # The interpreter that this environment was made from.
        "RLJOB_PYTHON": os.path.realpath(sys.executable),
    }
    installed = subprocess.run(
        [
            program_or_skip("krew"), "install", f"--manifest={release / 'plugins' / 'rljob.yaml'}",
            f"--archive={_archive(release, krew.Platform('linux', 'amd64'))}",
        ],
        env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=TIMEOUT_S,
    )  # fmt: skip
    assert installed.returncode == 0, installed.stderr
    assert "Needs Python 3.11" in installed.stderr
    return environment


def _kubectl(environment: dict[str, str], *words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        ["kubectl", "rljob", *words], env=environment, cwd=environment["HOME"], capture_output=True, text=True,
        timeout=TIMEOUT_S,
    )  # fmt: skip


@ON_LINUX
def test_kubectl_starts_what_krew_installed_under_its_name(plugin: dict[str, str]) -> None:
    ended = _kubectl(plugin, "--help")
    assert ended.returncode == 0, ended.stderr
    assert "Usage: kubectl rljob" in ended.stdout
    planned = _kubectl(plugin, "plan", str(ROOT / "crds/examples/dapo.yaml"), "--for-cluster", "-o", "json")
    assert planned.returncode == 0, planned.stderr
    assert json.loads(planned.stdout)["job"] == "dapo"


@ON_LINUX
def test_the_plug_in_uses_its_own_packages_alone_and_hands_none_to_programs(plugin: dict[str, str]) -> None:
    # A module of the folder that kubectl is called in, or of PYTHONPATH, is not ours.
    (pathlib.Path(plugin["HOME"]) / "yaml.py").write_text("raise SystemExit('a yaml of somewhere else')\n")
    ended = _kubectl({**plugin, "PYTHONPATH": plugin["HOME"]}, "version")
    assert (ended.returncode, ended.stdout) == (0, f"rljob {VERSION}\n"), ended.stderr
    assert "PYTHONPATH" not in (pathlib.Path(plugin["KREW_ROOT"]) / "bin" / "kubectl-rljob").read_text()


@ON_LINUX
def test_without_its_python_the_plug_in_says_what_it_needs(plugin: dict[str, str]) -> None:
    ended = _kubectl({**plugin, "RLJOB_PYTHON": "no-such-python"}, "version")
    assert ended.returncode == 1
    assert "needs Python 3.11, and no-such-python is none" in ended.stderr
    assert "RLJOB_PYTHON" in ended.stderr


def test_the_manifest_names_each_archive_with_its_checksum(release: pathlib.Path) -> None:
    """The rules of krew's guide for manifests; krew itself holds the manifest against them where the plug-in is run."""
    manifest = yaml.safe_load((release / "plugins" / "rljob.yaml").read_text())
    assert manifest["apiVersion"] == "krew.googlecontainertools.github.com/v1alpha2"
    assert (manifest["kind"], manifest["metadata"]) == ("Plugin", {"name": "rljob"})
    spec = manifest["spec"]
    assert set(spec) == {
        "version", "homepage", "shortDescription", "description", "caveats", "platforms",
    }  # fmt: skip
    assert spec["version"] == f"v{VERSION}"
    assert len(spec["shortDescription"]) <= LONGEST_DESCRIPTION
    by_platform = {krew.Platform(**each["selector"]["matchLabels"]): each for each in spec["platforms"]}
    assert list(by_platform) == list(krew.PLATFORMS)
    for target, entry in by_platform.items():
        assert set(entry) == {"selector", "uri", "sha256", "files", "bin"}
        archive = _archive(release, target)
        assert entry["uri"] == f"{DOWNLOAD_URL}/{archive.name}"
        assert entry["sha256"] == archives.sha256(archive)
        with tarfile.open(archive) as tar:
            assert {entry["bin"], "LICENSE"} <= set(tar.getnames())


@pytest.mark.parametrize("target", krew.PLATFORMS, ids="-".join)
def test_an_archive_has_the_pinned_packages_as_wheels_of_its_platform(
    release: pathlib.Path, target: krew.Platform
) -> None:
    system, machines = TAGS[target]
    packed = dict[str, str]()
    with tarfile.open(_archive(release, target)) as tar:
        for member in tar.getmembers():
            assert member.isfile()
            if not member.name.endswith(".dist-info/WHEEL"):
                continue
            name, version = member.name.split("/")[1].removesuffix(".dist-info").split("-")
            packed[name.lower().replace("_", "-")] = version
            wheel = tar.extractfile(member)
            assert wheel is not None
            for line in wheel.read().decode().splitlines():
                tag = line.removeprefix("Tag: ").rsplit("-", 1)[-1]
                if line.startswith("Tag: ") and tag != "any":
                    assert tag.startswith(system), f"{name} is for {tag}"
                    assert any(tag.endswith(machine) for machine in machines.split()), f"{name} is for {tag}"
    assert packed == {"rljob": VERSION, **_pins("cli")}
    assert _archive(release, target).stat().st_size < MOST_MB * 1e6


def _pins(lock: str) -> dict[str, str]:
    lines = (ROOT / f"workers/constraints/{lock}.txt").read_text().splitlines()
    pins = (line.split()[0].split("==") for line in lines if "==" in line)
    return {pin[0]: pin[1] for pin in pins}


@pytest.mark.parametrize("lock", sbom.LOCKS)
def test_a_bill_of_materials_lists_the_packages_of_its_lock_with_their_hashes(release: pathlib.Path, lock: str) -> None:
    bill: dict[str, Any] = json.loads(sbom.path(release, lock).read_text())
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", sbom.CYCLONEDX)
    assert bill["metadata"]["component"]["name"] == "rljob"
    assert bill["metadata"]["component"]["version"] == VERSION
    assert {each["name"]: each["version"] for each in bill["components"]} == _pins(lock)
    hashes = {
        digest["content"] for each in bill["components"] for reference in each["externalReferences"]
        for digest in reference["hashes"]
    }  # fmt: skip
    text = (ROOT / f"workers/constraints/{lock}.txt").read_text()
    assert len(hashes) > len(bill["components"])
    assert all(f"--hash=sha256:{digest}" in text for digest in hashes)


def test_a_bill_of_materials_keeps_the_schema_of_cyclonedx(release: pathlib.Path) -> None:
    # The grammars that it makes at import take two seconds.
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    bill = sbom.path(release, "cli").read_text()
    assert JsonStrictValidator(SchemaVersion.from_version(sbom.CYCLONEDX)).validate_str(bill) is None


def test_the_package_of_the_chart_renders_what_its_folder_renders(
    release: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    helm = Helm(program_or_skip("helm"), tmp_path)
    package = release / f"rljob-operator-{VERSION}.tgz"
    shown = yaml.safe_load(helm.run("show", "chart", str(package)))
    assert shown == yaml.safe_load((CHART / "Chart.yaml").read_text())
    rendered = [
        helm.run("template", "rljob", str(chart), "--namespace=rljob-system", "--kube-version=1.36.0")
        for chart in (package, CHART)
    ]
    assert rendered[0] == rendered[1]


def test_the_definitions_are_in_one_file(release: pathlib.Path) -> None:
    documents = list(yaml.safe_load_all((release / f"rljob-crds-{VERSION}.yaml").read_text()))
    found = {each["spec"]["names"]["plural"]: each for each in documents}
    assert len(found) == len(documents)
    assert found == definitions.definitions()


def test_the_bundle_is_what_the_chart_makes_of_it(release: pathlib.Path) -> None:
    files = olm_bundle.bundle(olm_bundle.rendered(str(program_or_skip("helm"))))
    with tarfile.open(release / f"rljob-operator-bundle-{VERSION}.tar.gz") as tar:
        packed = {member.name: tar.extractfile(member).read().decode() for member in tar.getmembers()}  # type: ignore[union-attr]
    assert packed == files


def test_wheel_and_source_distribution_hold_the_packages_and_no_test(release: pathlib.Path) -> None:
    with zipfile.ZipFile(release / f"rljob-{VERSION}-py3-none-any.whl") as wheel:
        roots = {name.split("/")[0] for name in wheel.namelist()}
        entry_points = wheel.read(f"rljob-{VERSION}.dist-info/entry_points.txt").decode()
    assert roots == {"rljob", "rljob_api", "rljob_operator", "rljob_workers", f"rljob-{VERSION}.dist-info"}
    assert "kubectl-rljob = " in entry_points
    with tarfile.open(release / f"rljob-{VERSION}.tar.gz") as tar:
        folders = {"/".join(name.split("/")[1:2]) for name in tar.getnames()}
    assert {"proto", "operator", "workers", "sdk", "pyproject.toml", "LICENSE", "README.md"} <= folders
    assert not folders & {"tests", "docs", "build", "runs", ".git"}


def test_no_file_of_a_release_names_the_machine_that_made_it(release: pathlib.Path) -> None:
    here = [path.encode() for path in (str(ROOT), str(release.parent), sys.executable)]
    for file in (file for file in release.rglob("*") if file.is_file()):
        contents = {file.name: file.read_bytes()}
        if file.suffix in (".gz", ".tgz"):
            with tarfile.open(file) as tar:
                for member in tar.getmembers():
                    opened = tar.extractfile(member)
                    if opened is not None:
                        contents[member.name] = opened.read()
        elif file.suffix == ".whl":
            with zipfile.ZipFile(file) as wheel:
                contents.update({name: wheel.read(name) for name in wheel.namelist()})
        for name, content in contents.items():
            assert not [path for path in here if path in content], f"{file.name}: {name}"
