"""Further grader types by name, alongside the built-in ones."""

import re
import textwrap
import types

import pytest

from rljob_api import errors, process_config
from rljob_api.manifest import reward_options
from rljob_testing import examples
from rljob_workers.verifier.graders import base, exact, registry

EXACT = "rljob_workers.verifier.graders.exact:ExactGrader"


def test_a_further_type_is_found_under_its_name() -> None:
    assert registry.imported([f"mine={EXACT}"]) == {"mine": exact.ExactGrader}


@pytest.mark.covers("workflows 2.1")
@pytest.mark.parametrize("entries", [[f"mine={EXACT}", f"mine={EXACT}"], [f"boxed={EXACT}"]])
def test_a_name_that_is_taken_is_refused(entries: list[str]) -> None:
    name = entries[-1].partition("=")[0]
    with pytest.raises(errors.ManifestError, match=f"the name {name} is taken"):
        registry.imported(entries)


@pytest.mark.parametrize("entry", ["mine", "mine=module", "=module:Grader", "mine=:Grader", "mine=module:"])
def test_an_entry_of_another_form_is_refused(entry: str) -> None:
    with pytest.raises(errors.ManifestError, match="must read name=module:attribute"):
        registry.imported([entry])


PAGE = examples.ROOT / "docs/contributing.md"
_BLOCK = re.compile(r"^( *)```python\n\1# path: (\S+)\n(.*?)^\1```$", re.DOTALL | re.MULTILINE)


def test_worked_example_of_a_built_in_grader_takes_four_files_and_grades() -> None:
    section = PAGE.read_text().split("## Add a grader\n")[1].split("### A built-in type\n")[1].split("\n### ")[0]
    blocks = {path: textwrap.dedent(text) for _, path, text in _BLOCK.findall(section)}
    options_file, grader_file = blocks
    edited = set(re.findall(r"(?:proto|workers|tests)/[\w/]+\.py", section))
    assert len(edited) == 4
    assert [path for path in edited if not (PAGE.parents[1] / path).exists()] == [grader_file]
    module = types.ModuleType("reward_options_with_length")
    module.__dict__.update(vars(reward_options))
    exec(compile(blocks[options_file], options_file, "exec"), module.__dict__)  # noqa: S102  # our own page
    grader_source = blocks[grader_file].replace("reward_options.LengthOptions", "LengthOptions")
    namespace: dict[str, object] = {"LengthOptions": module.LengthOptions}
    exec(compile(grader_source, grader_file, "exec"), namespace)  # noqa: S102
    catalog = {**registry.BUILT_IN, "length": namespace["LengthGrader"]}
    config = process_config.GraderConfig(name="r", type="length", config={"maxWords": 2})
    (grader,) = registry.build([config], catalog)  # type: ignore[arg-type]  # the page's class is no static type
    grades = [grader.grade(base.Answer(prompt="", completion=text, columns={})) for text in ("a b", "a b c", " ")]
    assert [(grade.score, str(grade.reason)) for grade in grades] == [(1.0, "ok"), (0.0, "wrong"), (0.0, "no_answer")]
    wrong = config.model_copy(update={"config": {"maxWords": 0}})
    with pytest.raises(errors.ManifestError, match=r"config\.maxWords is 0, but input should be greater"):
        registry.build([wrong], catalog)  # type: ignore[arg-type]
