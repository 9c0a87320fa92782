"""The pages for users of other systems: their example's settings all are in ours, with the same values."""

import ast
import pathlib
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
import yaml

from rljob_api.validation import load, migration, rules
from rljob_api.validation.migration import System

FOLDER = pathlib.Path(__file__).parents[2] / "docs" / "coming_from"
# Words of theirs for values of ours.
WORDS = {"token-mean": "TokenMean", "group_norm": "grpo", "dapo": "TokenMean"}


def _flat(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, object]]:
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _overrides(text: str) -> Iterator[tuple[str, object]]:
    yield from re.findall(r"^ +([a-z][\w.]+)=(\S+)", text, flags=re.MULTILINE)


def _flags(text: str) -> Iterator[tuple[str, object]]:
    for name, value in re.findall(r"--([a-z][\w.]*)((?: (?!--|\\)\S+)*)", text):
        yield name, value.strip() or True


def _keywords(text: str) -> Iterator[tuple[str, object]]:
    (statement,) = ast.parse(text).body
    assert isinstance(statement, ast.Expr)
    assert isinstance(statement.value, ast.Call)
    for keyword in statement.value.keywords:
        yield str(keyword.arg), ast.literal_eval(keyword.value)


READERS: Mapping[System, tuple[str, str, Callable[[str], Iterator[tuple[str, object]]]]] = {
    System.VERL: ("verl", "sh", _overrides),
    System.PRIME_RL: ("prime_rl", "toml", lambda text: _flat(tomllib.loads(text))),
    System.AREAL: ("areal", "yaml", lambda text: _flat(yaml.safe_load(text))),
    System.OPENRLHF: ("openrlhf", "sh", _flags),
    System.TRL: ("trl", "python", _keywords),
}


def blocks(system: System) -> tuple[str, str]:
    """Return their example and ours."""
    page, language, _ = READERS[system]
    text = (FOLDER / f"{page}.md").read_text(encoding="utf-8")
    (ours,) = [block for block in re.findall(r"```yaml\n(.*?)```", text, flags=re.DOTALL) if "kind: RLJob" in block]
    theirs = next(block for block in re.findall(rf"```{language}\n(.*?)```", text, flags=re.DOTALL) if block != ours)
    return theirs, ours


def settings(system: System) -> list[tuple[str, object]]:
    """Return the names and values of their example."""
    return list(READERS[system][2](blocks(system)[0]))


def written(document: object, path: str) -> list[object]:
    """Return what a document has at a path below spec, an item for each list entry."""
    found = [document]
    for key in path.replace("[]", "").split("."):
        items = [item for each in found for item in (each if isinstance(each, list) else [each])]
        found = [item[key] for item in items if isinstance(item, dict) and key in item]
    return found


def same(theirs: object, ours: object) -> bool:
    """Say whether two values are equal as numbers, or as words once theirs is translated."""
    if isinstance(theirs, list):
        return len(theirs) == 1 and same(theirs[0], ours)
    try:
        return float(str(theirs)) == float(str(ours))
    except ValueError:
        word = str(theirs)
        return WORDS.get(word, word).lower() == str(ours).lower()


@pytest.mark.parametrize("system", READERS)
def test_our_manifest_is_accepted_and_served(system: System) -> None:
    spec = load.load_manifest(blocks(system)[1]).spec
    assert rules.problems(spec) == []


@pytest.mark.parametrize("system", READERS)
def test_every_setting_of_their_example_has_a_name_of_ours(system: System) -> None:
    known = {each.name for each in migration.foreign_fields() if each.system is system}
    named = [name for name, _ in settings(system)]
    assert len(named) > 5
    assert [name for name in named if name not in known] == []


@pytest.mark.parametrize("system", READERS)
def test_every_setting_of_their_example_stands_in_ours_with_its_value(system: System) -> None:
    """A value that a note explains may differ: it is counted otherwise there."""
    document = yaml.safe_load(blocks(system)[1])
    wrong = []
    for name, value in settings(system):
        for each in (row for row in migration.foreign_fields() if row.system is system and row.name == name):
            found = written(document["spec"], each.path)
            if not found or not (each.note or all(same(value, ours) for ours in found)):
                wrong.append((name, value, each.path, found))
    assert wrong == []


def test_a_setting_that_ours_lacks_or_has_otherwise_would_be_found() -> None:
    assert written({"algorithm": {"loss": {}}}, "algorithm.loss.clipLow") == []
    assert written({"data": {"train": [{"path": "a"}, {"path": "b"}]}}, "data.train[].path") == ["a", "b"]
    assert not same("0.2", "0.3")
    assert same("1.70e-5", "0.000017")
