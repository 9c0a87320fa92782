"""`kubectl rljob` for krew: an archive for each platform, and the manifest that names them with their checksums.

An archive holds the packages of workers/constraints/cli.txt as wheels for its platform, our own wheel, and a launcher
that starts them with the Python 3.11 of the machine.
"""

import pathlib
import re
import shutil
import tempfile
import zipfile
from collections.abc import Mapping
from typing import NamedTuple

import yaml
from generators import ROOT

from release import archives, programs

PLUGIN = "rljob"
LOCK = ROOT / "workers" / "constraints" / "cli.txt"
PYTHON = "3.11"


class Platform(NamedTuple):
    """What krew calls a platform."""

    os: str
    arch: str


# By uv's name of the same platform.
PLATFORMS: Mapping[Platform, str] = {
    Platform("linux", "amd64"): "x86_64-manylinux_2_28",
    Platform("linux", "arm64"): "aarch64-manylinux_2_28",
    Platform("darwin", "amd64"): "x86_64-apple-darwin",
    Platform("darwin", "arm64"): "aarch64-apple-darwin",
}
_PROGRAM = "kubectl-rljob"
# -I and -S: no module comes from PYTHONPATH, the folder that kubectl was called in or the packages of the machine; and
# programs that kubectl starts to log in, some of which are in Python, see none of ours.
_LAUNCHER = f"""#!/bin/sh
# krew links to this file from a folder of the PATH.
folder=$(dirname "$(readlink -f "$0")")
python=${{RLJOB_PYTHON:-python{PYTHON}}}
if ! "$python" -c 'import sys; sys.exit("%d.%d" % sys.version_info[:2] != "{PYTHON}")' 2> /dev/null; then
  echo "kubectl rljob needs Python {PYTHON}, and $python is none: install it, or set RLJOB_PYTHON to its path" >&2
  exit 1
fi
exec "$python" -I -S "$folder/packages" "$@"
"""
_MAIN = f'''"""Starts the command line under the name of a plug-in."""

import sys

sys.argv[0] = "{_PROGRAM}"

from rljob_workers.cli.__main__ import main

main()
'''
# What an installer notes about the machine that it ran on, and programs that name its Python.
_OF_THE_INSTALLER = ("bin", "*.dist-info/RECORD", "*.dist-info/INSTALLER", "*.dist-info/REQUESTED", ".lock")


def archive(
    folder: pathlib.Path, platform: Platform, *, wheel: pathlib.Path, scratch: pathlib.Path, epoch: int
) -> pathlib.Path:
    """Write the archive of a platform and return it. scratch: an empty folder.

    Raises ReleaseError where a package of the lock has no wheel for the platform.
    """
    packages = scratch / "packages"
    _install(packages, platform)
    for pattern in _OF_THE_INSTALLER:
        for path in packages.glob(pattern):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    with zipfile.ZipFile(wheel) as ours:
        ours.extractall(packages)
    (packages / "__main__.py").write_text(_MAIN)
    (scratch / _PROGRAM).write_text(_LAUNCHER)
    (scratch / _PROGRAM).chmod(0o755)
    shutil.copyfile(ROOT / "LICENSE", scratch / "LICENSE")
    version = wheel.name.split("-")[1]
    path = folder / f"{_PROGRAM}-{version}-{platform.os}-{platform.arch}.tar.gz"
    archives.pack(path, scratch, epoch=epoch)
    return path


def fetch() -> None:
    """Bring the packages of every platform into uv's cache, so that archives can be made without a network.

    Raises ReleaseError where a package of the lock has no wheel for a platform.
    """
    for platform in PLATFORMS:
        with tempfile.TemporaryDirectory() as name:
            _install(pathlib.Path(name) / "packages", platform)


def _install(packages: pathlib.Path, platform: Platform) -> None:
    programs.run(
        programs.uv(), "pip", "install", "-q", "--target", packages, "--python-platform", PLATFORMS[platform],
        "--python-version", PYTHON, "--only-binary", ":all:", "--link-mode", "copy", "--require-hashes", "-r", LOCK,
    )  # fmt: skip


def manifest(archives_by_platform: Mapping[Platform, pathlib.Path], *, version: str, download_url: str) -> str:
    """Return the manifest. download_url: the address below which the archives will be."""
    platforms = [
        {
            "selector": {"matchLabels": platform._asdict()},
            "uri": f"{download_url.rstrip('/')}/{path.name}",
            "sha256": archives.sha256(path),
            "files": [{"from": "*", "to": "."}],
            "bin": _PROGRAM,
        }
        for platform, path in archives_by_platform.items()
    ]
    body = {
        "apiVersion": "krew.googlecontainertools.github.com/v1alpha2",
        "kind": "Plugin",
        "metadata": {"name": PLUGIN},
        "spec": {
            "version": f"v{version}",
            "homepage": "https://rljob.dev",
            "shortDescription": "Submit RL training runs and see why they wait",
            "description": (
                "Checks and submits RLJobs, shows their status, explains what they wait for, and merges the logs of\n"
                "their pods.\n"
            ),
            "caveats": f"Needs Python {PYTHON}, and rights to read RLJobs, pods, their logs and Events.\n",
            "platforms": platforms,
        },
    }
    return yaml.safe_dump(body, sort_keys=False, width=120)


def write_manifest(
    folder: pathlib.Path, archives_by_platform: Mapping[Platform, pathlib.Path], *, version: str, download_url: str
) -> None:
    """Write the manifest where a repository of manifests has it, under the name that krew wants of it."""
    path = folder / "plugins" / f"{PLUGIN}.yaml"
    path.parent.mkdir()
    path.write_text(manifest(archives_by_platform, version=version, download_url=download_url), encoding="utf-8")


def is_download_url(address: str) -> bool:
    """Return whether krew can download from below an address."""
    return re.fullmatch(r"https://[^\s/?#]+(?:/[^\s?#]*)?", address) is not None
