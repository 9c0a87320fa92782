"""`docs/coverage/graders.md` names a test for every rule and every table row of the graders reference."""

import collections
import dataclasses
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).parents[2]
PAGE = ROOT / "docs/coverage/graders.md"
TESTS = ROOT / "tests/unit/verifier"
TABLES = ROOT / "tests/rljob_testing/grader_rows.py"
OPEN = "open: "
# How many numbered entries each table or list of the reference has.
WANTED = {
    "2.1": 15, "2.2": 6, "2.3": 2, "2.4": 4, "3.1": 7, "3.2": 3, "3.3": 5, "4.1": 7, "5.3": 8, "M": 10,
    "5.5": 24, "C": 10, "6.5": 5, "6.8": 9, "7.1": 5, "G": 4, "7.3": 9, "8.2": 4, "O": 3, "8.4": 23, "9": 6, "11": 5,
}  # fmt: skip
EXAMPLES = ("5.5", "6.8", "7.3", "8.4", "9")


@dataclasses.dataclass(frozen=True)
class Row:
    """One line of the page."""

    id: str
    what: str
    cases: str

    @property
    def section(self) -> str:
        """Return what the id counts in: 5.5 of 5.5-03, M of M1."""
        return re.sub(r"-.*$", "", self.id) if "-" in self.id else self.id.rstrip("0123456789")

    @property
    def tests(self) -> list[tuple[pathlib.Path, str]]:
        """Return file and function of each test; none if the row is open."""
        named = re.findall(r"`([^`]+)::([^`]+)`", self.cases)
        return [((TESTS / file).resolve(), function) for file, function in named]


def rows() -> list[Row]:
    cells = [re.split(r"(?<!\\) \| ", line[2:-2]) for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    # Three cells: the tables of coverage. The table of differences has another shape, and a test of its own.
    return [Row(*cell) for cell in cells if len(cell) == 3 and cell[0] != "id"]


def test_every_table_and_list_of_the_reference_is_there_in_full() -> None:
    ids = [row.id for row in rows()]
    assert len(ids) == len(set(ids)), "an id stands twice"
    found = collections.Counter(row.section for row in rows())
    assert {section: found[section] for section in WANTED} == WANTED


@pytest.mark.parametrize("row", rows(), ids=lambda row: row.id)
def test_row_names_tests_that_exist_or_says_what_is_missing(row: Row) -> None:
    if row.cases.startswith(OPEN):
        assert len(row.cases) > len(OPEN)
        return
    assert row.tests, f"{row.id} names no test"
    for path, function in row.tests:
        assert re.search(rf"^(async )?def {function}\(", path.read_text(), re.MULTILINE), f"{path} has no {function}"


@pytest.mark.parametrize(
    "row", [row for row in rows() if row.section in EXAMPLES and row.tests], ids=lambda row: row.id
)
def test_example_stands_in_the_file_of_its_test(row: Row) -> None:
    text = "".join(path.read_text() for path in (TABLES, *(path for path, _ in row.tests)))
    missing = [quoted for quoted in re.findall(r"`([^`]+)`", row.what) if quoted not in text]
    assert not missing, f"{row.id}: {missing} neither in its tests nor in the tables"
