"""What a cluster installs: the chart's package, the definitions in one file, the bundle for the lifecycle manager."""

import pathlib

from generators import CHART, ROOT

from release import archives, olm_bundle, programs


def package(folder: pathlib.Path, *, helm: str, scratch: pathlib.Path, epoch: int) -> None:
    """Write the chart's package. scratch: an empty folder. Raises ReleaseError."""
    programs.run(helm, "package", CHART, "--destination", scratch)
    (source,) = scratch.glob("*.tgz")
    # Helm dates the files of a package with the time of packing.
    archives.repack(folder / source.name, source, epoch=epoch)


def definitions(folder: pathlib.Path, *, version: str) -> None:
    """Write the definitions of all kinds into one file, for who installs them without the chart."""
    texts = [path.read_text(encoding="utf-8").strip("-\n") for path in sorted((ROOT / "crds").glob("*.yaml"))]
    (folder / f"rljob-crds-{version}.yaml").write_text("\n---\n".join(texts) + "\n", encoding="utf-8")


def bundle(folder: pathlib.Path, *, helm: str, scratch: pathlib.Path, version: str, epoch: int) -> None:
    """Write the bundle's archive. scratch: an empty folder. Raises ReleaseError."""
    olm_bundle.write(scratch, helm=helm)
    archives.pack(folder / f"{olm_bundle.PACKAGE}-bundle-{version}.tar.gz", scratch, epoch=epoch)
