"""The README's file map and targets are what the tree has."""

import pathlib
import re

ROOT = pathlib.Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
NOT_MAPPED = {"__pycache__"}


def mapped() -> set[str]:
    table = README.split("## Where everything is")[1].split("## ")[0]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    return {name.rstrip("/") for row in rows for name in re.findall(r"`([^`]+)`", row)}


def test_every_folder_of_the_file_map_exists() -> None:
    workers = ROOT / "workers/rljob_workers"
    missing = [name for name in mapped() if not (ROOT / name).is_dir() and not (workers / name).is_dir()]
    assert not missing, f"the README maps {missing}, which do not exist"


def test_every_package_of_the_workers_is_in_the_file_map() -> None:
    workers = ROOT / "workers/rljob_workers"
    folders = {path.name for path in workers.iterdir() if path.is_dir()} - NOT_MAPPED
    named = {name.rsplit("/", 1)[-1] for name in mapped()}
    assert folders <= named, f"add {sorted(folders - named)} to the README's file map"


def test_every_make_target_of_the_readme_is_in_the_makefile() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    named = set(re.findall(r"\bmake ([a-z-]+)\b", README))
    assert named <= targets | {"and"}, f"the README names {sorted(named - targets)}"
