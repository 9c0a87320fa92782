"""Everything of a release into an empty folder, signed: `python -m release build/release --download-url URL`."""

import argparse
import os
import pathlib
import sys
import tempfile
from collections.abc import Mapping, Sequence

from release import archives, chart, distributions, images, krew, programs, sbom, signing, source
from release.programs import ReleaseError


def main(words: Sequence[str] | None = None) -> int:
    """Make a release; return the exit code."""
    options = _options(words)
    try:
        make(options, os.environ)
    except ReleaseError as error:
        print(f"no release: {error}", file=sys.stderr)
        return 1
    return 0


def make(options: argparse.Namespace, environment: Mapping[str, str]) -> None:
    """Make a release. Raises ReleaseError."""
    # What could end it after minutes is looked at first.
    version, epoch = source.version(), source.epoch(environment)
    signer = None if options.unsigned else signing.signer(environment)
    if signer is not None:
        source.require_committed()
    helm = programs.path_of(options.helm, remedy="put it on the PATH, or name its path by --helm")
    if not krew.is_download_url(options.download_url):
        raise ReleaseError(
            f"--download-url is {options.download_url!r}, but must be an address that begins with https://"
        )
    folder: pathlib.Path = options.folder.resolve()
    if folder.exists() and any(folder.iterdir()):
        raise ReleaseError(f"{options.folder} is not empty: what an earlier release left there would be signed too")
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        published = _write(folder, options, _Scratch(pathlib.Path(name)), version=version, epoch=epoch, helm=helm)
    checksums = archives.write_checksums(folder)
    if signer is None:
        print(f"{version}: not signed, as --unsigned says")
    else:
        programs.run(*signing.file_command(signer, checksums))
        for image, built in published.items():
            for command in signing.image_commands(signer, image, sbom.path(folder, built.lock)):
                programs.run(*command)
    print(f"{version}: {options.folder} holds {len(checksums.read_text().splitlines())} files and {checksums.name}")


def _write(
    folder: pathlib.Path, options: argparse.Namespace, scratch: "_Scratch", *, version: str, epoch: int, helm: str
) -> Mapping[str, images.Image]:
    """Write all files but checksums and signatures; return the images that were pushed, by their names with digest."""
    wheel = distributions.build(folder, scratch=scratch.folder("distributions"), epoch=epoch)
    chart.package(folder, helm=helm, scratch=scratch.folder("chart"), epoch=epoch)
    chart.definitions(folder, version=version)
    chart.bundle(folder, helm=helm, scratch=scratch.folder("bundle"), version=version, epoch=epoch)
    plugins = {
        platform: krew.archive(
            folder, platform, wheel=wheel, scratch=scratch.folder(f"{platform.os}-{platform.arch}"), epoch=epoch
        )
        for platform in krew.PLATFORMS
    }
    krew.write_manifest(folder, plugins, version=version, download_url=options.download_url)
    for lock in sbom.LOCKS:
        sbom.write(folder, lock, epoch=epoch)
    if not options.registry:
        print(f"{version}: no images, without --registry")
        return {}
    return images.publish(
        folder, registry=options.registry, version=version, base=options.base_image, scratch=scratch.folder("images"),
        epoch=epoch,
    )  # fmt: skip


class _Scratch:
    """Empty folders, by name, which are gone when the release is made."""

    def __init__(self, root: pathlib.Path) -> None:
        self._root = root

    def folder(self, name: str) -> pathlib.Path:
        """Make an empty folder."""
        path = self._root / name
        path.mkdir()
        return path


def _options(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m release", description=__doc__)
    parser.add_argument("folder", type=pathlib.Path, help="where the files go: an empty folder, or one to be made")
    parser.add_argument("--download-url", required=True, help="where the files will be; the krew manifest names it")
    parser.add_argument("--registry", help="build the images and push them there; without it there are none")
    parser.add_argument("--base-image", help="base of the images in place of the one that their Dockerfiles name")
    parser.add_argument("--helm", default="helm", help="the program, where it is not on the PATH")
    parser.add_argument("--unsigned", action="store_true", help="sign nothing, and take uncommitted changes too")
    return parser.parse_args(words)


if __name__ == "__main__":
    sys.exit(main())
