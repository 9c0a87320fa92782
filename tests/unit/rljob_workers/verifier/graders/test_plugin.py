"""A grader of an installed package, `type: plugin:<name>`: found by its entry point, loaded in grading workers."""

import importlib
import pathlib
import sys
from collections.abc import Callable

import pytest

from rljob_api import enums, errors, plugins, process_config, types
from rljob_api.manifest.data import DataSourceSpec
from rljob_testing import packages
from rljob_testing.sections import section
from rljob_workers.verifier import check, code_check, service
from rljob_workers.verifier.graders import base, registry

MODULE = """
import os
from rljob_api import errors
from rljob_api.manifest.reward_options import Options
from rljob_workers.verifier.graders import base


class WordCountOptions(Options):
    most: int = 3


class WordCount(base.SingleTimeLimit):
    needs_worker = True

    def __init__(self, config):
        self._most = base.options(WordCountOptions, config).most

    def check(self, columns):
        if "prompt_kind" not in columns:
            raise errors.DataError("the record has no 'prompt_kind'")

    def warm(self):
        pass

    def quick(self, answer):
        return None

    def grade(self, answer):
        if answer.completion == "who":
            return base.passed(str(os.getpid()))
        words = len(answer.completion.split())
        if words <= self._most:
            return base.passed(str(words))
        return base.failed(base.enums.VerdictReason.WRONG, extracted=str(words), formatted=True)


def returns_nothing(config):
    return object()


def raises(config):
    return 1 / 0


class ReturnsText(WordCount):
    def grade(self, answer):
        return "1.0"


"""
ENTRIES = """[rljob.graders]
word-count = word_count_graders:WordCount
word_text = word_count_graders:ReturnsText
no-grader = word_count_graders:returns_nothing
gone = word_count_graders:Missing
raises = word_count_graders:raises
"""


@pytest.fixture
def installed(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """A folder of packages with the plugin, on this process's path and on that of every worker."""
    packages.install(tmp_path, "word-count-graders", entry_points=ENTRIES, module=MODULE)
    monkeypatch.delitem(sys.modules, "word_count_graders", raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    return tmp_path


def reward(type_: str = "plugin:word-count", **config: object) -> process_config.GraderConfig:
    return process_config.GraderConfig(name="short", type=type_, config=config)


def build(config: process_config.GraderConfig) -> base.Grader:
    (grader,) = registry.build([config], registry.BUILT_IN)
    return grader


async def test_installed_grader_grades_in_a_worker_and_is_not_imported_by_the_verifier(
    installed: pathlib.Path, make_config: Callable[..., process_config.VerifierConfig], running: Callable[..., object]
) -> None:
    config = make_config(reward(most=2))
    texts = ("one two", "one two three", "who")
    items = [
        types.VerifyItem(sample_id=text, attempt=0, prompt="", completion=text, columns={"prompt_kind": "p"})
        for text in texts
    ]
    async with running(config) as verifier:  # type: ignore[attr-defined]  # a context manager of a Service
        verdicts = await verifier.grading.verify(items)
    assert [verdict.reward for verdict in verdicts] == [1.0, 0.0, 1.0]
    assert verdicts[1].reason is enums.VerdictReason.WRONG
    assert verdicts[0].grader == "plugin:word-count/Strict"
    assert verdicts[2].extracted.isdigit()
    assert "word_count_graders" not in sys.modules


def test_grader_that_is_not_installed_is_refused_with_those_that_are(installed: pathlib.Path) -> None:
    with pytest.raises(errors.ManifestError) as refused:
        build(reward("plugin:word-cuont"))
    (sentence,) = refused.value.problems
    assert sentence == (
        "reward 'short': its type is 'plugin:word-cuont', but no package that is installed here declares it as an entry"
        " point of 'rljob.graders'; installed: gone, no-grader, raises, word-count, word_text. Install the package here"
        " and in the image of the role that uses it"
    )


def test_name_that_two_packages_have_is_refused(installed: pathlib.Path) -> None:
    entries = "[rljob.graders]\nword-count = other_graders:WordCount\n"
    packages.install(installed, "other-graders", entry_points=entries, module=MODULE)
    with pytest.raises(errors.ManifestError, match=r"several packages .*: other-graders, word-count-graders$"):
        build(reward())


def test_compat_mode_is_refused(installed: pathlib.Path) -> None:
    config = process_config.GraderConfig(name="short", type="plugin:word-count", mode="Compat")
    with pytest.raises(errors.ManifestError, match="plugin:word-count reproduces no published grader"):
        build(config)


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        (reward(most="many"), r"'short' \(type plugin:word-count\): config\.most is 'many', but input should be"),
        (reward(least=1), r"config\.least is 1, but plugin:word-count has no such option; it has most"),
        (reward("plugin:gone"), r"is 'word_count_graders:Missing', but .*word_count_graders\.py has no Missing"),
        (reward("plugin:raises"), r"word_count_graders:raises raised ZeroDivisionError at word_count_graders\.py:"),
        (reward("plugin:no-grader"), r"returns_nothing made no grader: no needs_worker, check, warm, quick, grade"),
    ],
)
def test_wrong_options_and_what_is_no_grader_are_refused(
    installed: pathlib.Path, config: process_config.GraderConfig, sentence: str
) -> None:
    with pytest.raises(errors.ManifestError, match=sentence):
        build(config).warm()


def test_grade_of_another_type_is_the_graders_own_error(installed: pathlib.Path) -> None:
    grader = build(reward("plugin:word_text"))
    grader.warm()
    with pytest.raises(errors.GraderError, match="plugin:word_text returned a str, not a Grade"):
        grader.grade(base.Answer(prompt="", completion="x", columns={}))


async def test_worker_refuses_to_start_with_a_plugin_whose_options_are_wrong(
    installed: pathlib.Path, make_config: Callable[..., process_config.VerifierConfig]
) -> None:
    verifier = service.Service(make_config(reward(most="many")))
    try:
        with pytest.raises(errors.SandboxError, match="config.most is 'many'"):
            await verifier.start()
    finally:
        await verifier.close()


def test_check_before_a_job_names_a_record_that_the_plugin_cannot_grade(
    installed: pathlib.Path, make_config: Callable[..., process_config.VerifierConfig], tmp_path: pathlib.Path
) -> None:
    path = tmp_path / "train.jsonl"
    path.write_text('{"prompt": "p", "answer": "1", "prompt_kind": "x"}\n{"prompt": "q", "answer": "1"}\n')
    source = section(DataSourceSpec, name="train", path=str(path), max_prompt_tokens=64)
    config = make_config(reward())
    found = check.findings(config, [check.Graded(source=source)])
    (problem,) = found.problems
    assert "reward 'short': the record has no 'prompt_kind'" in problem


def test_check_of_a_plan_loads_the_plugin(installed: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert code_check.main(["", "plugin:word-count", '{"most": 1}']) == 0
    assert code_check.main(["", "plugin:word-count", '{"most": "many"}']) == int(enums.ExitCode.BAD_INPUT)
    assert "config.most is 'many'" in capsys.readouterr().err
    assert code_check.main(["", "plugin:nobody", "{}"]) == int(enums.ExitCode.BAD_INPUT)
    assert f"entry point of {plugins.GRADERS!r}" in capsys.readouterr().err
