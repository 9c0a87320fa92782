"""A user's own predicate over a whole group."""

import pathlib
from collections.abc import Mapping

import pytest

from rljob_api import errors, types
from rljob_testing import makers
from rljob_workers.rollout import filters

RECORD = types.PromptRecord(prompt_id="p", source="s", columns={"prompt": "hi", "level": 3})


def test_it_sees_the_rewards_masks_and_columns_of_the_group() -> None:
    seen: list[Mapping[str, object]] = []

    def predicate(group: Mapping[str, object]) -> bool:
        seen.append(group)
        return True

    rows = makers.make_group(rewards=(1.0, 0.0)).trajectories
    assert filters.keeps_group(predicate, RECORD, rows)
    (group,) = seen
    assert (group["raw_rewards"], group["record"]) == ([1.0, 0.0], {"prompt": "hi", "level": 3})
    assert group["input_ids"] == [list(row.tokens) for row in rows]


def raises(group: Mapping[str, object]) -> bool:
    raise ZeroDivisionError("nothing")


@pytest.mark.parametrize(
    ("predicate", "said"),
    [
        (raises, "raised ZeroDivisionError at test_group_predicate.py:.* in raises"),
        (lambda group: 1, "returned 1, but must return True or False"),
        (lambda group: None, "returned None, but must return True or False"),
    ],
)
def test_a_predicate_that_gives_no_answer_fails_the_group_by_name(predicate: filters.Predicate, said: str) -> None:
    rows = makers.make_group(rewards=(1.0, 0.0)).trajectories
    with pytest.raises(errors.EpisodeError, match=f"spec.data.filterGroups.predicate {said}"):
        filters.keeps_group(predicate, RECORD, rows)


def test_it_is_loaded_from_the_users_file_and_must_be_a_function(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "predicate_of_a_test.py"
    file.write_text("def hard(group):\n    return max(group['raw_rewards']) < 1\n\nBOUND = 3\n")
    predicate = filters.load_predicate("predicate_of_a_test:hard", file=str(file))
    assert predicate is not None
    assert not filters.keeps_group(predicate, RECORD, makers.make_group(rewards=(1.0, 0.0)).trajectories)
    assert filters.load_predicate("", file="") is None
    with pytest.raises(errors.ManifestError, match="which is int and not a function"):
        filters.load_predicate("predicate_of_a_test:BOUND", file=str(file))
