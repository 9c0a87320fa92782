"""docs/manifest.md has a row for every field of the models; names elsewhere are of fields that exist."""

import collections

import pytest
from generators import manifest_page

from rljob_api.manifest.job import JobSpec
from rljob_api.validation import fields, migration

OURS = [path for path, _ in fields.all_paths(JobSpec)]
LAST_PARTS = collections.Counter(migration.folded(path.rsplit(".", 1)[-1]) for path in OURS)


def test_the_page_is_made_from_the_models() -> None:
    written = manifest_page.PAGE.read_text(encoding="utf-8")
    assert written == manifest_page.text(), "run `make gen` and commit"


def test_every_field_without_fields_of_its_own_has_a_row() -> None:
    inner = {path.rsplit(".", 1)[0] for path in OURS} | {path.rsplit(".", 1)[0].removesuffix("[]") for path in OURS}
    leaves = {path for path in OURS if path not in inner}
    # A list that may be unset has no [] in the walk over the models.
    shown = [path.replace("[]", "") for path in manifest_page.paths()]
    leaves = {path.replace("[]", "") for path in leaves}
    pods = {path for path in leaves if ".pod." in path}
    assert leaves - pods <= set(shown)
    assert {path.split(".", 1)[1] for path in pods} <= set(shown)
    assert len(shown) == len(set(shown))


@pytest.mark.parametrize("path", ["maxSteps", "model.name", "data.train[].name", "verifier.rewards[].type"])
def test_what_must_be_written_is_told(path: str) -> None:
    (row,) = [line for line in manifest_page.text().splitlines() if line.startswith(f"| `{path}` |")]
    assert row.split(" | ")[2] == "*required*"


def test_bounds_defaults_and_choices_stand_in_a_row() -> None:
    lines = manifest_page.text().splitlines()
    (row,) = [line for line in lines if line.startswith("| `algorithm.groupSize` |")]
    assert row.startswith("| `algorithm.groupSize` | 1 to 4096 | `8` | Episodes per prompt. | verl: ")
    (row,) = [line for line in lines if line.startswith("| `verifier.isolation.type` |")]
    assert "| `Sandbox`, `RuntimeClass`, `None` |" in row


@pytest.mark.parametrize("each", migration.foreign_fields(), ids=lambda each: f"{each.system} {each.name} {each.path}")
def test_a_name_elsewhere_is_of_a_field_that_exists(each: migration.ForeignField) -> None:
    assert each.path in OURS


def test_a_name_elsewhere_stands_once() -> None:
    named = [(each.path, each.system, each.name) for each in migration.foreign_fields()]
    assert len(named) == len(set(named))


def test_a_hint_leads_to_what_the_page_says() -> None:
    """Where one last part stands for several fields, the hint is one of them, or the block that they are in."""
    meant: dict[str, set[str]] = {}
    for each in migration.foreign_fields():
        meant.setdefault(each.name.rsplit(".", 1)[-1], set()).add(each.path)
    wrong = {
        name: hint
        for name, ours in meant.items()
        if (hint := migration.our_path(name)) is not None and not any(path.startswith(hint) for path in ours)
    }
    assert wrong == {"loss_type": "algorithm.loss.type"}, "there it names loss and aggregation at once"


def test_a_last_part_that_several_fields_of_ours_have_is_no_hint() -> None:
    derived = [each.name.rsplit(".", 1)[-1] for each in migration.foreign_fields()]
    several = {name for name in derived if LAST_PARTS[migration.folded(name)] > 1}
    assert several
    assert {name for name in several if migration.our_path(name) is not None} == set()
