"""`docs/coverage/*.md`: which test holds which requirement of `docs/design`: `python -m generators.coverage_pages`.

A test says what it holds by a marker, `@pytest.mark.covers("operator 8.7", "sandbox A-31")`: the page and the number of
the rule, which is its anchor there. A marker with a page alone is about that page of `docs/`.
"""

import ast
import collections
import re
from collections.abc import Iterator, Mapping, Sequence

import yaml

from generators import ROOT

DESIGN, PAGES = ROOT / "docs" / "design", ROOT / "docs" / "coverage"
# What has no test, and why: requirement to reason.
OPEN = PAGES / "open.yaml"
SUBJECTS = ("algorithms", "graders", "sandbox", "weights", "workflows")
_ANCHOR = re.compile(r'<a id="s-([\w-]+)"></a>')
_WORDS = 100

Test = tuple[str, str]
ATTACKS: Test = (
    "unit/rljob_workers/verifier/sandbox/attacks/test_attacks.py",
    "test_attack_has_its_outcome_and_no_reward_but_for_a_right_answer",
)


def anchors(subject: str) -> list[str]:
    """Return the anchors of a design page, in its order, without their beginning `s-`."""
    return _ANCHOR.findall((DESIGN / f"{subject}.md").read_text())


def families(subject: str) -> dict[str, set[str]]:
    """Return anchor -> itself, the headings that it is under, and what is under it if it is a heading."""
    families: dict[str, set[str]] = {}
    above: list[str] = []
    for key in anchors(subject):
        if re.fullmatch(r"\d+(-\d+)*", key):
            above = [other for other in above if key.startswith(f"{other}-")]
        families[key] = {key, *above}
        for other in above:
            families[other].add(key)
        if re.fullmatch(r"\d+(-\d+)?", key):
            above.append(key)
    return families


def anchor(number: str) -> str:
    """Return a requirement's number as its anchor has it: 8.7 is 8-7, A-31 is a-31."""
    return number.replace(".", "-").lower()


def covered() -> dict[str, list[Test]]:
    """Return requirement -> (file below `tests/`, name) of the tests whose markers name it, in order of files."""
    tests: dict[str, list[Test]] = collections.defaultdict(list)
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for name, requirement in _markers(path.read_text()):
            tests[requirement].append((str(path.relative_to(ROOT / "tests")), name))
    # Rows of the attack table are run by one test, a case each.
    table = ROOT / "tests" / "rljob_testing" / "attack_rows.py"
    for attack in sorted(set(re.findall(r'"(A-\d+)"', table.read_text()))):
        tests[f"sandbox {attack}"].append(ATTACKS)
    return dict(tests)


def _markers(source: str) -> Iterator[tuple[str, str]]:
    if ".covers(" not in source:
        return
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        for decorator in node.decorator_list:
            if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "pytest.mark.covers":
                for argument in decorator.args:
                    yield node.name, ast.literal_eval(argument)


def reasons() -> dict[str, str]:
    """Return requirement -> why no test holds it."""
    return dict(yaml.safe_load(OPEN.read_text()))


def titles(subject: str) -> dict[str, str]:
    """Return anchor -> the first words of its heading, paragraph or row."""
    titles = {}
    lines = (DESIGN / f"{subject}.md").read_text().splitlines()
    for number, line in enumerate(lines):
        match = _ANCHOR.search(line)
        if match:
            text = _ANCHOR.sub("", line).strip("#|*- ") or lines[number + 1].strip("# ")
            cells = " ".join(cell.strip() for cell in text.split(" | ")[:2]).replace("**", "")
            titles[match[1]] = cells if len(cells) <= _WORDS else cells[:_WORDS].rsplit(" ", 1)[0] + " ..."
    return titles


def page(subject: str, tests: Mapping[str, Sequence[Test]], open_: Mapping[str, str]) -> str:
    """Return the page of a subject: a paragraph for each requirement that has tests, or a reason for having none."""
    numbers = {requirement: anchor(requirement.split()[1]) for requirement in [*tests, *open_] if " " in requirement}
    parts = [
        f"# Coverage: {subject}",
        f"Which test holds which requirement of [{subject}](../design/{subject}.md). Made by `make gen` from the "
        "markers of the tests; do not edit. Tests are below `tests/`.",
    ]
    for key, title in titles(subject).items():
        mine = [rule for rule, number in numbers.items() if number == key and rule.split()[0] == subject]
        lines = [
            f"- {name.removeprefix('test_').replace('_', ' ')} (`{file}`)"
            for rule in mine
            for file, name in tests.get(rule, ())
        ]
        lines += [f"- open: {open_[rule]}" for rule in mine if rule in open_]
        if lines:
            safe = title.replace("|", "\\|")
            parts.append(f"**[{safe}](../design/{subject}.md#s-{key})**\n" + "\n".join(lines))
    return "\n\n".join(parts) + "\n"


def main() -> None:
    tests, open_ = covered(), reasons()
    for subject in SUBJECTS:
        (PAGES / f"{subject}.md").write_text(page(subject, tests, open_))


if __name__ == "__main__":
    main()
