"""`docs/coverage/sandbox.md` has every attack of the isolation reference, with a test or what is open."""

import pathlib
import re

import pytest

from rljob_testing import attack_rows

ROOT = pathlib.Path(__file__).parents[2]
PAGE = ROOT / "docs/coverage/sandbox.md"
TESTS = ROOT / "tests/unit/verifier"
NUM_ATTACKS = 70
OPEN, TABLE = "open: ", "table"


def rows() -> dict[str, str]:
    """Return what stands behind each id; an id that stands twice is an error."""
    cells = [line[2:-2].split(" | ") for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    found = [(cell[0], cell[2]) for cell in cells if cell[0] != "id"]
    assert len(found) == len(dict(found)), "an id stands twice"
    return dict(found)


def test_every_attack_requirement_and_property_of_the_reference_is_there() -> None:
    wanted = {f"A-{number:02}" for number in range(1, NUM_ATTACKS + 1)} | {f"S-{number}" for number in range(1, 7)}
    wanted |= {f"P{number}" for number in range(1, 10)}
    assert wanted <= set(rows())


@pytest.mark.parametrize(("id_", "tests"), rows().items(), ids=rows())
def test_row_names_tests_that_exist_or_says_what_is_missing(id_: str, tests: str) -> None:
    named = re.findall(r"`([^`]+)::([^`]+)`", tests)
    missing = tests.startswith(OPEN) and len(tests) > len(OPEN)
    assert named or missing or tests == TABLE, f"{id_} has neither"
    for file, function in named:
        text = (TESTS / file).read_text(encoding="utf-8")
        assert re.search(rf"^(async )?def {function}\(", text, re.MULTILINE), f"{file} has no {function}"


def test_row_stands_in_the_table_exactly_where_the_page_says_so() -> None:
    said = {id_ for id_, tests in rows().items() if tests.split(",")[0] == TABLE}
    machine_independent = {attack.id for attack in (*attack_rows.ATTACKS, *attack_rows.OF_X86_64)}
    assert said == machine_independent
