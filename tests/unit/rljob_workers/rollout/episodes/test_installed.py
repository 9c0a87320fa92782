"""An environment of an installed package: `workflow.type: plugin:<name>`, and no file beside the manifest."""

import pathlib

import pytest

from rljob_api import enums, errors, types
from rljob_testing import episodes, examples, packages
from rljob_testing import rollout as fakes
from rljob_workers.rollout import code_check
from rljob_workers.rollout.episodes import protocols, registry

RECORD = types.PromptRecord(prompt_id="p", source="s", columns={"prompt": "hi", "answer": "7"})
TASK = protocols.Task(record=RECORD, input_ids=(104, 105), prompt_text="hi")
ENTRY_POINTS = """
    [rljob.environments]
    guess-number = guess_package:GuessNumber
    no-class = guess_package:Step
    gone = guess_package:Missing
"""


@pytest.fixture(autouse=True)
def installed(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """The example of an environment, in a package."""
    module = (examples.EXAMPLES / "guess_number.py").read_text()
    packages.install(tmp_path, "guess_package", entry_points=ENTRY_POINTS, module=module)
    packages.put_on_path(tmp_path, monkeypatch)
    return tmp_path


def make(workflow: str, **config: object) -> protocols.RolloutCollector:
    return registry.make_collector(
        workflow=workflow, config=config, tokens=fakes.FakeTokens(), template="raw", max_model_len=64
    )


async def test_an_installed_environment_is_acted_in_by_the_text_agent() -> None:
    episode = await make("plugin:guess-number", tries=2).arun_episode(
        llm_client=episodes.FakeModel((ord("3"), episodes.EOS), (ord("7"), episodes.EOS)),
        gconfig=types.Sampling(max_tokens=4),
        task=TASK,
        grader=episodes.FakeGrader(),
        seed=0,
    )
    assert episode is not None
    assert (episode.total_reward, episode.rows[0].num_turns) == (1.0, 2)


def test_one_that_is_not_installed_is_refused_with_those_that_are() -> None:
    with pytest.raises(errors.ManifestError) as refused:
        make("plugin:guess-word")
    assert refused.value.problems == (
        "spec.workflow.type is 'plugin:guess-word', but no package that is installed here declares it as an entry point"
        " of 'rljob.environments'; installed: gone, guess-number, no-class. Install the package here and in the image"
        " of the role that uses it",
    )


@pytest.mark.parametrize(
    ("workflow", "sentence"),
    [("plugin:gone", "guess_package:Missing cannot be imported"), ("plugin:no-class", "and not a class")],
)
def test_one_that_cannot_be_used_is_refused(workflow: str, sentence: str) -> None:
    with pytest.raises(errors.ManifestError, match=sentence):
        make(workflow)


def test_the_check_of_a_plan_loads_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert code_check.main(["", "plugin:guess-number", "{}", "{}", "false"]) == 0
    assert code_check.main(["", "plugin:nobody", "{}", "{}", "false"]) == int(enums.ExitCode.BAD_INPUT)
    assert "'plugin:nobody', but no package" in capsys.readouterr().err
