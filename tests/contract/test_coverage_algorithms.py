"""`docs/coverage/algorithms.md` has a row with code and tests for everything that the algorithms reference asks for."""

import ast
import dataclasses
import functools
import pathlib
import re
import typing

import pytest
from pydantic import BaseModel

from rljob_api import names, not_yet
from rljob_api.spec import algorithm, loss

ROOT = pathlib.Path(__file__).parents[2]
PAGE = ROOT / "docs/coverage/algorithms.md"
CODE_ROOTS = (ROOT / "workers/rljob_workers", ROOT / "proto/rljob_api")
# Rows of the reference's last table.
WORKED_NUMBERS = 42
HEADS = {"rule", "key", "row", "recipe", "field"}


@dataclasses.dataclass(frozen=True)
class Row:
    """One line of the page: the rule in words, where it stands, which tests hold it."""

    section: int
    rule: str
    code: str
    tests: tuple[str, ...]


def rows() -> list[Row]:
    made, section = [], 0
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            section = int(line.removeprefix("## ").split(".")[0])
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if line.startswith("|") and not line.startswith("|--") and cells[0] not in HEADS:
            assert len(cells) == 3, f"a row has {len(cells)} cells: {line}"
            made.append(Row(section, cells[0], cells[1].strip("`"), tuple(re.findall(r"`([^`]+)`", cells[2]))))
    return made


ROWS = rows()


@functools.cache
def names_in(path: pathlib.Path) -> frozenset[str]:
    """Return what a module defines at its top level, without importing it."""
    found = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(node.name)
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        found |= {target.id for target in targets if isinstance(target, ast.Name)}
    return frozenset(found)


def test_page_has_every_section_of_the_reference() -> None:
    assert {row.section for row in ROWS} == set(range(1, 16))


def test_page_has_every_worked_number_of_the_reference() -> None:
    assert sum(row.section == 15 for row in ROWS) == WORKED_NUMBERS


@pytest.mark.parametrize("code", sorted({row.code for row in ROWS}))
def test_code_of_a_row_exists_or_is_refused(code: str) -> None:
    place, _, name = code.partition(":")
    if place == "refused":
        assert name.strip() in {entry.path for entry in not_yet.NOT_YET}, f"{name} is served: write where"
        return
    found = [root / place for root in CODE_ROOTS if (root / place).is_file()]
    assert found, f"{place} is no module"
    assert name in names_in(found[0]), f"{place} has no {name}"


@pytest.mark.parametrize("test", sorted({test for row in ROWS for test in row.tests}))
def test_test_of_a_row_exists(test: str) -> None:
    place, _, name = test.partition("::")
    folder = ROOT / "tests" if place.startswith("integration/") else ROOT / "tests/unit"
    assert (folder / place).is_file(), f"{place} is no test file"
    assert name in names_in(folder / place), f"{place} has no {name}"


def test_every_row_names_a_test() -> None:
    assert [row.rule for row in ROWS if not row.tests] == []


def choices(model: type[BaseModel], field: str) -> tuple[str, ...]:
    return tuple(
        value
        for part in (model.model_fields[field].annotation, *typing.get_args(model.model_fields[field].annotation))
        for value in typing.get_args(part)
        if isinstance(value, str)
    )


@pytest.mark.parametrize(
    ("word", "values"),
    [
        ("estimator", typing.get_args(algorithm.Estimator)),
        ("loss", choices(loss.LossSpec, "type")),
        ("proximal", choices(loss.LossSpec, "proximal")),
    ],
)
def test_every_value_of_the_schema_has_a_row(word: str, values: tuple[str, ...]) -> None:
    assert values
    text = "\n".join(row.rule for row in ROWS)
    assert [value for value in values if f"{word} `{value}`" not in text] == []


def statistics() -> set[str]:
    """Return the keys that section 11's rows name, their shared beginnings written out."""
    found = set()
    for row in ROWS:
        group = ""
        for key in re.findall(r"`([^`]+)`", row.rule) if row.section == 11 else ():
            group = key.split("/")[0] if "/" in key and not key.startswith("/") else group
            found.add(group + key if key.startswith("/") else key)
    return found


def test_every_statistic_of_the_trainer_has_a_row() -> None:
    measured = {str(stat) for stat in names.StepStat if "/" in stat}
    assert measured <= statistics(), f"write rows for {sorted(measured - statistics())}"


def leaves(model: type[BaseModel], path: str) -> set[str]:
    found = set()
    for name, field in model.model_fields.items():
        here = f"{path}.{field.alias or name}"
        inner = [
            part
            for part in (field.annotation, *typing.get_args(field.annotation))
            if isinstance(part, type) and issubclass(part, BaseModel)
        ]
        found |= leaves(inner[0], here) if inner else {here}
    return found


def test_every_field_of_the_algorithm_section_has_a_row() -> None:
    """Section 14: `a.{b,c}` stands for a.b and a.c, `a.*` for all below a."""
    written: set[str] = set()
    for row in ROWS:
        for text in re.findall(r"`([^`]+)`", row.rule) if row.section == 14 else ():
            head, _, inner = text.partition("{")
            written |= {head + name for name in inner.rstrip("}").split(",")} if inner else {text}
    fields = leaves(algorithm.AlgorithmSpec, "algorithm")
    known = {path for path in fields if path in written or any(path.startswith(w[:-1]) for w in written if "*" in w)}
    assert fields == known, f"write rows for {sorted(fields - known)}"
    gone = [path for path in written if path.startswith("algorithm.") and not path.endswith("*") and path not in fields]
    assert gone == [], f"{gone} are no fields"
