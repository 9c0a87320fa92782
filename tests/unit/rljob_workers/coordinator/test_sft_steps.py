"""How many steps of a run are supervised, which a number of epochs says only once the data are read."""

import pathlib
from collections.abc import Callable

import pytest

from rljob_api import errors, process_config
from rljob_workers.coordinator import resume

MakeConfig = Callable[..., process_config.CoordinatorConfig]


def config_of(make_config: MakeConfig, folder: pathlib.Path, **sft: object) -> process_config.CoordinatorConfig:
    """Return the small job with the first twelve of its records as examples."""
    lines = (folder / "train.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    (folder / "examples.jsonl").write_text("".join(lines[:12]), encoding="utf-8")
    source = {"maxPromptTokens": 56}
    sources = [
        {**source, "name": "train", "path": "train.jsonl"},
        {**source, "name": "examples", "path": "examples.jsonl", "phase": "SFT"},
    ]
    # By name: what conftest.py writes is the same list without the examples.
    return make_config(train=sources, sft={"examplesPerStep": 5, **sft})


@pytest.mark.parametrize(("sft", "count"), [({"steps": 4}, 4), ({"epochs": 1}, 3), ({"epochs": 2}, 5)])
def test_epochs_are_as_many_steps_as_hold_every_example(
    make_config: MakeConfig, tmp_path: pathlib.Path, sft: dict[str, object], count: int
) -> None:
    config = config_of(make_config, tmp_path, **sft)
    data = resume.load_data(config)
    assert resume.sft_steps(data, config) == count
    assert [(index.name, len(index.prompt_ids)) for index in data.indexes] == [("train", 20)]
    assert [(index.name, len(index.prompt_ids)) for index in data.examples] == [("examples", 12)]


def test_more_supervised_steps_than_the_run_has_are_refused_with_what_they_come_from(
    make_config: MakeConfig, tmp_path: pathlib.Path
) -> None:
    with pytest.raises(errors.ManifestError, match="spec.sft.epochs is 5, which over 12 examples makes 12 steps of 5"):
        resume.load_data(config_of(make_config, tmp_path, epochs=5))


def test_a_run_goes_on_with_as_many_supervised_steps_as_it_began_with(
    make_config: MakeConfig, tmp_path: pathlib.Path
) -> None:
    config = config_of(make_config, tmp_path, steps=4)
    state = resume.open_state(config, data_digest="d", now=0.0, sft_steps=4)
    state.ledger.close()
    state.lock.close()
    with pytest.raises(errors.ManifestError, match=r"supervised steps \(spec.sft\) = 4, but this job has .* = 5"):
        resume.open_state(config_of(make_config, tmp_path, steps=5), data_digest="d", now=0.0, sft_steps=5)


def test_an_evaluation_alone_has_no_supervised_steps(make_config: MakeConfig, tmp_path: pathlib.Path) -> None:
    config = config_of(make_config, tmp_path, steps=4).model_copy(update={"evaluates_only": True})
    assert resume.sft_steps(resume.load_data(config), config) == 0
